package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// table has the lines of calls.txt, in the order of the file.
type table struct {
	groups  []*group
	runtime []*function // life and runtime functions
	calls   []*call
	skipped []skip
}

type group struct {
	title string
	calls []*call
}

// function is one function of the Go runtime.
type function struct {
	name   string
	life   bool // a function of cmd/libnvmecr, not a method of posixshim.Process
	remote bool // may be sent to a server
	value  bool // returns a number
	doc    string
	params []field
}

// field is a parameter of a runtime function. The head of calls.txt lists the kinds.
type field struct{ kind, name string }

// call is one interposed libc function.
type call struct {
	ret    string
	name   string
	params []param
	expr   string
	aka    []string
	signal bool
	jump   bool
	cancel bool
	error  bool   // returns the error and leaves errno alone
	null   string // the expression if the path is NULL
	raw    []raw
}

// raw is a system call that does the same as a call.
type raw struct {
	name string
	args int // how many parameters of the call it has; -1: all
}

// param is a parameter of a call.
type param struct {
	kind     string // "fd", "path", "at", "dir"; "" if the call is not routed by it
	decl     string // as in the prototype: "const char *path"
	name     string
	variadic bool
}

type skip struct {
	names  []string
	reason string
}

var (
	functionLine = regexp.MustCompile(`^(life|local|runtime) (int )?(\w+)\((.*)\) : (.+)$`)
	callLine     = regexp.MustCompile(`^call (.*?)(\w+)\((.*)\) = (.+)$`)
	skipLine     = regexp.MustCompile(`^skip ([\w ]+) : (.+)$`)
	lastWord     = regexp.MustCompile(`(\w+)(\[\d*\])?$`)
	pointerName  = regexp.MustCompile(`\(\*(\w+)\)`)
)

// routed gives the declaration of each kind of parameter. The second parameter of a kind has a 2 after its name.
var routed = map[string]struct{ ctype, name string }{
	"fd":   {"int ", "fd"},
	"path": {"const char *", "path"},
	"at":   {"int ", "dirfd"},
	"dir":  {"DIR *", "stream"},
}

func parse(text string) (*table, error) {
	t := &table{}
	seen := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if err := t.parseLine(line, seen); err != nil {
			return nil, fmt.Errorf("calls.txt:%d: %w", i+1, err)
		}
	}
	return t, nil
}

func (t *table) parseLine(line string, seen map[string]bool) error {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "group":
		t.groups = append(t.groups, &group{title: rest})
		return nil
	case "life", "local", "runtime":
		f, err := parseFunction(line)
		t.runtime = append(t.runtime, f)
		return err
	case "skip":
		m := skipLine.FindStringSubmatch(line)
		if m == nil {
			return fmt.Errorf("not of the form skip NAME... : REASON")
		}
		t.skipped = append(t.skipped, skip{strings.Fields(m[1]), m[2]})
		return nil
	case "call":
		c, err := parseCall(line)
		if err != nil {
			return err
		}
		for _, name := range append([]string{c.name}, c.aka...) {
			if seen[name] {
				return fmt.Errorf("%s is there twice", name)
			}
			seen[name] = true
		}
		t.calls = append(t.calls, c)
		g := t.groups[len(t.groups)-1]
		g.calls = append(g.calls, c)
		return nil
	}
	return fmt.Errorf("unknown word %q", word)
}

func parseFunction(line string) (*function, error) {
	m := functionLine.FindStringSubmatch(line)
	if m == nil {
		return nil, fmt.Errorf("not of the form runtime [int] NAME(PARAMETERS) : TEXT")
	}
	f := &function{life: m[1] == "life", remote: m[1] == "runtime", value: m[2] != "", name: m[3], doc: m[5]}
	for _, p := range splitParams(m[4]) {
		kind, name, _ := strings.Cut(p, " ")
		if _, ok := marshal[kind]; !ok {
			return nil, fmt.Errorf("%s: unknown type %q", f.name, kind)
		}
		f.params = append(f.params, field{kind, name})
	}
	return f, nil
}

func parseCall(line string) (*call, error) {
	parts := strings.Split(line, " ; ")
	m := callLine.FindStringSubmatch(parts[0])
	if m == nil {
		return nil, fmt.Errorf("not of the form call TYPE NAME(PARAMETERS) = EXPRESSION")
	}
	c := &call{ret: m[1], name: m[2], expr: m[4]}
	for _, attribute := range parts[1:] {
		words := strings.Fields(attribute)
		switch words[0] {
		case "aka":
			c.aka = words[1:]
		case "signal":
			c.signal = true
		case "jump":
			c.jump = true
		case "cancel":
			c.cancel = true
		case "error":
			c.error = true
		case "null":
			c.null = strings.TrimSpace(strings.TrimPrefix(attribute, "null"))
		case "raw":
			for _, word := range words[1:] {
				r, err := parseRaw(word)
				if err != nil {
					return nil, err
				}
				c.raw = append(c.raw, r)
			}
		default:
			return nil, fmt.Errorf("unknown attribute %q", words[0])
		}
	}
	count := map[string]int{}
	for _, p := range splitParams(m[3]) {
		if r, ok := routed[p]; ok {
			name := r.name
			if count[p]++; count[p] > 1 {
				name = fmt.Sprint(name, count[p])
			}
			c.params = append(c.params, param{kind: p, decl: r.ctype + name, name: name})
			continue
		}
		decl, variadic := strings.CutPrefix(p, "...")
		if variadic && decl == "" {
			c.params = append(c.params, param{variadic: true})
			continue
		}
		name := lastWord.FindStringSubmatch(decl)
		if n := pointerName.FindStringSubmatch(decl); n != nil {
			name = n
		}
		if name == nil {
			return nil, fmt.Errorf("parameter %q has no name", p)
		}
		c.params = append(c.params, param{decl: decl, name: name[1], variadic: variadic})
	}
	return c, nil
}

// parseRaw parses NAME or NAME/ARGUMENTS.
func parseRaw(word string) (raw, error) {
	name, count, some := strings.Cut(word, "/")
	if !some {
		return raw{name, -1}, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil {
		return raw{}, fmt.Errorf("raw %s: %q is not a number of arguments", name, count)
	}
	return raw{name, n}, nil
}

// splitParams splits s at the commas that are outside of parentheses.
func splitParams(s string) []string {
	if s == "" || s == "void" {
		return nil
	}
	var out []string
	depth, start := 0, 0
	for i, r := range s {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth == 0:
			out = append(out, strings.TrimSpace(s[start:i]))
			start = i + 1
		}
	}
	return append(out, strings.TrimSpace(s[start:]))
}

// count returns how many parameters of a kind the call has.
func (c *call) count(kind string) int {
	n := 0
	for _, p := range c.params {
		if p.kind == kind {
			n++
		}
	}
	return n
}
