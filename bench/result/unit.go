package result

import (
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// A Unit says what a number counts, and how the number is formatted. Any other text is
// a unit as well: "MiB/s", "µs", "creates/s".
type Unit string

// Units that determine the format of a number.
const (
	Plain    Unit = ""         // three digits
	Whole    Unit = "whole"    // a count with all digits
	Ratio    Unit = "ratio"    // three decimals
	Times    Unit = "times"    // a ratio of speeds: "1.42x"
	Percent  Unit = "percent"  // the value is a fraction: 0.02 is "2%"
	Duration Unit = "duration" // the value is seconds: "12.3 ms"
	Size     Unit = "size"     // the value is bytes: "1.5 MiB"
)

// Label returns the unit in the header of a column or at an axis. It is empty if each
// number has its own unit.
func (u Unit) Label() string {
	switch u {
	case Plain, Whole, Ratio, Times, Percent, Duration, Size:
		return ""
	}
	return string(u)
}

// Full returns v with its unit.
func (u Unit) Full(v float64) string {
	if label := u.Label(); label != "" {
		return u.Format(v) + " " + label
	}
	return u.Format(v)
}

// Format returns v without its unit, for a column with the unit in its header.
func (u Unit) Format(v float64) string {
	switch u {
	case Whole:
		return grouped(v)
	case Ratio:
		return strconv.FormatFloat(v, 'f', 3, 64)
	case Times:
		return strconv.FormatFloat(v, 'f', 2, 64) + "x"
	case Percent:
		return digits(v*100) + "%"
	case Duration:
		return duration(v)
	case Size:
		return size(v)
	}
	return digits(v)
}

// size formats bytes with package humanize, which takes no sign.
func size(v float64) string {
	if v < 0 {
		return "-" + size(-v)
	}
	return humanize.IBytes(uint64(math.Round(v)))
}

// duration formats seconds in the unit that leaves one to three digits before the point.
func duration(v float64) string {
	for _, u := range []struct {
		seconds float64
		name    string
	}{{3600, "h"}, {60, "min"}, {1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}} {
		least := u.seconds
		if u.seconds == 60 {
			least = 100 // up to this number, seconds are easy to read
		}
		if math.Abs(v) >= least {
			return digits(v/u.seconds) + " " + u.name
		}
	}
	if v == 0 {
		return "0 s"
	}
	return digits(v/1e-9) + " ns"
}

// digits formats a number with three digits, or with all digits before the point.
func digits(v float64) string {
	a := math.Abs(v)
	switch {
	case a == 0:
		return "0"
	case a >= 99.95:
		return grouped(v)
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.9995:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case a >= 0.001:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// grouped inserts commas between groups of three digits, for numbers of five digits and more.
func grouped(v float64) string {
	s := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	if len(s) > 4 {
		var b strings.Builder
		for i, c := range s {
			if i > 0 && (len(s)-i)%3 == 0 {
				b.WriteByte(',')
			}
			b.WriteRune(c)
		}
		s = b.String()
	}
	if v < 0 {
		return "-" + s
	}
	return s
}
