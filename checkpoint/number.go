package checkpoint

import (
	"regexp"
	"slices"
	"strings"
)

// A span is a part of a path.
type span struct{ start, end int }

func (s span) of(path string) string { return path[s.start:s.end] }

// A number is a run of digits in a path, or a directory's name with decimals.
type number struct {
	span
	component   span
	word        string // the letters before it, in lower case; - _ . or = may be in between
	afterLetter bool   // a letter is directly before it
	ofPart      bool   // it is the number of a part of a job or of a file
	excluded    bool   // it cannot be a step, whatever its value
}

// whole reports whether the number is the whole name of a directory.
func (n *number) whole(path string) bool {
	return n.span == n.component && n.end < len(path)
}

var (
	// A number behind a word that ends in one of these is a step.
	stepWords = []string{"step", "iter", "iteration", "cycle"}
	// These words mean a checkpoint in most names.
	checkpointWords = []string{"ckpt", "checkpoint", "chkpt", "chk", "cpt", "restart", epochWord}
	// A number behind one of these is not a step. A longer word may end in some of them.
	rankWords       = []string{"rank", "proc", "process", "processor", "task"}
	otherWords      = []string{"part", "shard", "chunk", "block", "layer", "level", "expert", "worker", "thread", "node", "host"}
	otherWordsWhole = []string{"pe", "of", "v", "version"}
)

func endsIn(word string, ends []string) bool {
	return slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(word, end) })
}

// epochWord precedes a number that a name may have in addition to the step, and that grows with the step: epoch=3-step=400.ckpt.
const epochWord = "epoch"

var (
	decimal   = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)
	digits    = regexp.MustCompile(`[0-9]+`)
	epochs    = regexp.MustCompile(`(?i)(` + epochWord + `[-_.=]*)[0-9]+`)
	ofSome    = regexp.MustCompile(`^[-_.]?of[-_.]?[0-9]`)
	extension = regexp.MustCompile(`\.[A-Za-z]+[0-9]$`)
)

// numbers returns the numbers in a path, from left to right.
func numbers(path string) (list []number) {
	for start := 0; start <= len(path); {
		end := start + strings.IndexByte(path[start:]+"/", '/')
		component := span{start, end}
		if name := component.of(path); end < len(path) && decimal.MatchString(name) {
			list = append(list, number{span: component, component: component})
		} else {
			for _, m := range digits.FindAllStringIndex(name, -1) {
				list = append(list, newNumber(path, span{start + m[0], start + m[1]}, component))
			}
		}
		start = end + 1
	}
	return list
}

func newNumber(path string, at, component span) number {
	n := number{span: at, component: component}
	before, after := path[component.start:at.start], path[at.end:component.end]
	trimmed := strings.TrimRight(before, "-_.=")
	n.afterLetter = before != "" && trimmed == before && isLetter(before[len(before)-1])
	begin := len(trimmed)
	for begin > 0 && isLetter(trimmed[begin-1]) {
		begin--
	}
	n.word = strings.ToLower(trimmed[begin:])
	n.ofPart = ofSome.MatchString(after) || endsIn(n.word, rankWords) || endsIn(n.word, otherWords) || slices.Contains(otherWordsWhole, n.word)
	n.excluded = n.ofPart || after != "" && isLetter(after[0]) || after == "" && extension.MatchString(component.of(path))
	return n
}

// isLetter reports whether a byte is a letter; bytes that are not ASCII count as letters.
func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// Worded reports whether a word in front of {step} says that the pattern is of checkpoints: a word for a step, or for a checkpoint.
func Worded(pattern string) bool {
	before, _, ok := strings.Cut(pattern, stepPlace)
	if !ok {
		return false
	}
	before = before[strings.LastIndexByte(before, '/')+1:]
	word := newNumber(before+"0", span{len(before), len(before) + 1}, span{0, len(before) + 1}).word
	return endsIn(word, stepWords) || endsIn(word, checkpointWords)
}

// findStep returns the number of a path that counts steps, by the rules of the package comment. rank tells which of the
// numbers are the number of the rank.
func findStep(path string, all []number, rank rankPlace) (at span, ok bool) {
	var some, others []number
	for i, n := range all {
		switch {
		case n.excluded:
		case endsIn(n.word, stepWords):
			return n.span, true
		case rank.is[i]:
			others = append(others, n)
		default:
			some = append(some, n)
		}
	}
	if len(some) == 0 && !rank.several { // better a number that may be a rank than none
		some = others
	}
	for _, n := range some {
		if endsIn(n.word, checkpointWords) {
			return n.span, true
		}
	}
	for _, n := range some {
		if n.whole(path) {
			return n.span, true
		}
	}
	return lastNumber(some)
}

// lastNumber returns the first number without a letter before it of the last
// component that has one, or else the longest number of the last component.
func lastNumber(some []number) (at span, ok bool) {
	var best *number
	for i := range some {
		n := &some[i]
		deeper := best == nil || n.component != best.component
		switch {
		case best != nil && n.afterLetter != best.afterLetter:
			if best.afterLetter {
				best = n
			}
		case deeper, n.afterLetter && n.end-n.start > best.end-best.start:
			best = n
		}
	}
	if best == nil {
		return span{}, false
	}
	return best.span, true
}

// plain returns a number without leading zeros.
func plain(text string) string {
	whole, fraction, _ := strings.Cut(text, ".")
	if whole = strings.TrimLeft(whole, "0"); whole == "" {
		whole = "0"
	}
	if fraction = strings.TrimRight(fraction, "0"); fraction == "" {
		return whole
	}
	return whole + "." + fraction
}

// compareNumbers compares numbers in the form that plain returns.
func compareNumbers(a, b string) int {
	wholeA, fractionA, _ := strings.Cut(a, ".")
	wholeB, fractionB, _ := strings.Cut(b, ".")
	if len(wholeA) != len(wholeB) {
		return len(wholeA) - len(wholeB)
	}
	if c := strings.Compare(wholeA, wholeB); c != 0 {
		return c
	}
	return strings.Compare(fractionA, fractionB)
}
