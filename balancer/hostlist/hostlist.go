// Package hostlist reads and writes the lists of names that Slurm uses in its configuration, options and variables, such as
// cn[001-003,7],gpu[1-2]x[0-1]: each bracket stands for the numbers in it, and those with leading zeros keep their width.
//
// All functions are pure and safe for concurrent use.
package hostlist

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Max is the maximum number of names in a list.
const Max = 1 << 20

// Expand returns the names in the order of the list, with duplicates. It fails for an invalid list, and for one of
// more than Max names.
func Expand(list string) ([]string, error) {
	var names []string
	for _, part := range split(list) {
		if part == "" {
			return nil, fmt.Errorf("%q: an empty name in a list of hosts", list)
		}
		more, err := expand(part, Max-len(names))
		if err != nil {
			return nil, fmt.Errorf("%q: %w", list, err)
		}
		names = append(names, more...)
	}
	return names, nil
}

// split splits a list at commas outside of brackets.
func split(list string) (parts []string) {
	depth, begin := 0, 0
	for i, c := range list {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth == 0:
			parts = append(parts, list[begin:i])
			begin = i + 1
		}
	}
	if list == "" {
		return nil
	}
	return append(parts, list[begin:])
}

// expand returns the names of one part, at most limit.
func expand(part string, limit int) ([]string, error) {
	before, rest, bracket := strings.Cut(part, "[")
	if !bracket {
		if strings.ContainsAny(part, "] \t") {
			return nil, fmt.Errorf("%q is not the name of a host", part)
		}
		if limit < 1 {
			return nil, fmt.Errorf("more than %d hosts", Max)
		}
		return []string{part}, nil
	}
	inside, after, closed := strings.Cut(rest, "]")
	if !closed || strings.Contains(inside, "[") || strings.Contains(before, "]") {
		return nil, fmt.Errorf("%q has an unbalanced bracket", part)
	}
	if strings.ContainsAny(before, " \t") {
		return nil, fmt.Errorf("%q is not the name of a host", part)
	}
	tails := []string{""}
	if after != "" {
		var err error
		if tails, err = expand(after, limit); err != nil {
			return nil, err
		}
	}
	var names []string
	for _, r := range strings.Split(inside, ",") {
		first, last, width, err := numbers(r)
		if err != nil {
			return nil, err
		}
		if last-first >= uint64(limit) || (int(last-first)+1)*len(tails) > limit-len(names) {
			return nil, fmt.Errorf("more than %d hosts", Max)
		}
		for n := first; n <= last; n++ {
			for _, tail := range tails {
				names = append(names, fmt.Sprintf("%s%0*d%s", before, width, n, tail))
			}
		}
	}
	return names, nil
}

// numbers parses "7" or "001-003". width is the width of numbers with leading zeros, or 1.
func numbers(text string) (first, last uint64, width int, err error) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	first, err = strconv.ParseUint(from, 10, 63)
	if err == nil {
		last, err = strconv.ParseUint(to, 10, 63)
	}
	if err != nil || last < first {
		return 0, 0, 0, fmt.Errorf("%q is neither a number nor a range of numbers", text)
	}
	width = 1
	if from[0] == '0' {
		width = len(from)
	}
	return first, last, width, nil
}

// Compress returns a list with one bracket for names that differ only in their last number. It is sorted by the text
// before that number, in order of first appearance, and then by number.
func Compress(names []string) string {
	type numbered struct {
		before string
		width  int // 0: without a number
	}
	found := make(map[numbered][]uint64)
	var order []numbered
	for _, name := range names {
		k := numbered{before: strings.TrimRight(name, "0123456789")}
		digits := name[len(k.before):]
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil {
			k = numbered{before: name}
		} else if k.width = 1; digits[0] == '0' && len(digits) > 1 {
			k.width = len(digits)
		}
		if _, ok := found[k]; !ok {
			order = append(order, k)
		}
		found[k] = append(found[k], n)
	}
	var parts []string
	for _, k := range order {
		if k.width == 0 {
			parts = append(parts, k.before)
			continue
		}
		parts = append(parts, k.before+compress(found[k], k.width))
	}
	return strings.Join(parts, ",")
}

func compress(numbers []uint64, width int) string {
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	var ranges []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		text := fmt.Sprintf("%0*d", width, numbers[i])
		if j > i {
			text += fmt.Sprintf("-%0*d", width, numbers[j])
		}
		ranges = append(ranges, text)
		i = j + 1
	}
	if len(numbers) == 1 {
		return ranges[0]
	}
	return "[" + strings.Join(ranges, ",") + "]"
}
