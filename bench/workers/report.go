package workers

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"nvmecr/bench/stats"
)

// A Report has the measurements of one rank for one command.
type Report struct {
	Rank   int
	values map[string]int64
	boot   string
}

// Number returns a measurement by its name; 0 if the rank did not report it.
func (r Report) Number(name string) int64 { return r.values[name] }

// Time returns a number of nanoseconds by its name.
func (r Report) Time(name string) time.Duration { return time.Duration(r.values[name]) }

// Took returns the time that the rank took for the command.
func (r Report) Took() time.Duration { return r.Time("end") - r.Time("begin") }

func parseReport(line string) (Report, error) {
	r := Report{values: make(map[string]int64)}
	words := strings.Fields(line)
	if len(words) == 0 || words[0] != "done" {
		return r, fmt.Errorf("it said %q, not what it has done", line)
	}
	for _, w := range words[1:] {
		name, text, ok := strings.Cut(w, "=")
		n, err := strconv.ParseInt(text, 10, 64)
		if !ok || err != nil {
			return r, fmt.Errorf("it said %q, which is no NAME=NUMBER", w)
		}
		r.values[name] = n
	}
	return r, nil
}

// A Round has the reports of all ranks that executed a command.
type Round []Report

// Span returns the time from the begin of the first rank to the end of the last one.
// The clocks of hosts differ, so for several hosts it is the longest span of one host.
func (r Round) Span() time.Duration {
	first, last := make(map[string]int64), make(map[string]int64)
	longest := time.Duration(0)
	for _, x := range r {
		begin, end := x.values["begin"], x.values["end"]
		if b, ok := first[x.boot]; !ok || begin < b {
			first[x.boot] = begin
		}
		last[x.boot] = max(last[x.boot], end)
		longest = max(longest, time.Duration(last[x.boot]-first[x.boot]))
	}
	return longest
}

// Sample returns a number for all ranks.
func (r Round) Sample(name string) stats.Sample {
	s := make(stats.Sample, len(r))
	for i, x := range r {
		s[i] = float64(x.values[name])
	}
	return s
}

// Sum returns the sum of a number over all ranks.
func (r Round) Sum(name string) (sum int64) {
	for _, x := range r {
		sum += x.values[name]
	}
	return sum
}

// Max returns the maximum of a number over all ranks.
func (r Round) Max(name string) (highest int64) {
	for _, x := range r {
		highest = max(highest, x.values[name])
	}
	return highest
}
