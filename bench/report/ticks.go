package report

import (
	"math"

	"gonum.org/v1/plot"

	"nvmecr/bench/result"
)

// A ticker sets ticks at the measured values, at powers of ten, or at 1, 2 and 5 times
// a power of ten.
type ticker struct {
	axis result.Axis
	at   []float64 // if not empty, the ticks
}

// Ticks implements plot.Ticker.
func (t ticker) Ticks(low, high float64) []plot.Tick {
	var at []float64
	switch {
	case t.axis.Names != nil:
		var ticks []plot.Tick
		for i, name := range t.axis.Names {
			ticks = append(ticks, plot.Tick{Value: float64(i), Label: name})
		}
		return ticks
	case len(t.at) > 0:
		at = t.at
	case t.axis.Log:
		at = logTicks(low, high, t.axis.Unit)
	default:
		at = niceTicks(low, high, t.axis.Unit)
	}
	var ticks []plot.Tick
	for _, v := range at {
		if v >= low*(1-1e-12) && v <= high*(1+1e-12) || v == 0 {
			ticks = append(ticks, plot.Tick{Value: v, Label: tickLabel(t.axis.Unit, v)})
		}
	}
	return ticks
}

// tickLabel returns the label of a tick without unnecessary digits, since ticks are
// round numbers.
func tickLabel(u result.Unit, v float64) string {
	switch u {
	case result.Ratio, result.Times, result.Plain:
		u = result.Plain
	case result.Whole, result.Percent, result.Duration, result.Size:
		return trimZeros(u.Format(v))
	}
	return trimZeros(u.Format(v))
}

// trimZeros drops zeros after the point: "1.50 ms" becomes "1.5 ms".
func trimZeros(s string) string {
	number, unit := s, ""
	for i, c := range s {
		if (c < '0' || c > '9') && c != '.' && c != ',' && c != '-' {
			number, unit = s[:i], s[i:]
			break
		}
	}
	point := -1
	for i, c := range number {
		if c == '.' {
			point = i
		}
	}
	if point < 0 {
		return s
	}
	for number[len(number)-1] == '0' {
		number = number[:len(number)-1]
	}
	if len(number)-1 == point {
		number = number[:point]
	}
	return number + unit
}

// niceTicks returns 4 to 7 round values that enclose low to high. Round numbers of bytes are powers
// of two.
func niceTicks(low, high float64, unit result.Unit) []float64 {
	if high <= low {
		high = low + 1
	}
	step := niceStep((high-low)/5, unit)
	var ticks []float64
	for v := math.Floor(low/step+1e-9) * step; ; v += step {
		ticks = append(ticks, v)
		if v >= high-1e-9*step {
			return ticks
		}
	}
}

func niceStep(about float64, unit result.Unit) float64 {
	if unit == result.Size && about >= 1 {
		return math.Pow(2, math.Ceil(math.Log2(about)))
	}
	power := math.Pow(10, math.Floor(math.Log10(about)))
	for _, by := range []float64{1, 2, 5} {
		if by*power >= about*(1-1e-9) {
			return max(by*power, least(unit))
		}
	}
	return max(10*power, least(unit))
}

// least returns the smallest useful step.
func least(unit result.Unit) float64 {
	if unit == result.Whole {
		return 1
	}
	return 0
}

// logTicks returns the powers of ten, or every second or third one if there are many.
// If there are few, it adds 2 and 5 times the powers. For bytes it uses powers of four
// in the same way.
func logTicks(low, high float64, unit result.Unit) []float64 {
	base, by := 10.0, []float64{1, 2, 5}
	if unit == result.Size {
		base, by = 4, []float64{1, 2}
	}
	first, last := math.Floor(log(low, base)+1e-9), math.Ceil(log(high, base)-1e-9)
	if last-first > 2 {
		by = by[:1]
	}
	step := max(math.Ceil((last-first)/7), 1)
	var ticks []float64
	for e := first; e <= last; e += step {
		for _, b := range by {
			ticks = append(ticks, b*math.Pow(base, e))
		}
	}
	return ticks
}

func log(v, base float64) float64 { return math.Log(v) / math.Log(base) }

// logFloor and logCeil return the next 1, 2 or 5 times a power of ten, or the next
// power of two for bytes.
func logFloor(v float64, unit result.Unit) float64 {
	if unit == result.Size {
		return math.Pow(2, math.Floor(math.Log2(v)+1e-9))
	}
	power := math.Pow(10, math.Floor(math.Log10(v)+1e-9))
	for _, b := range []float64{5, 2} {
		if v >= b*power*(1-1e-9) {
			return b * power
		}
	}
	return power
}

func logCeil(v float64, unit result.Unit) float64 {
	if unit == result.Size {
		return math.Pow(2, math.Ceil(math.Log2(v)-1e-9))
	}
	power := math.Pow(10, math.Floor(math.Log10(v)+1e-9))
	for _, b := range []float64{1, 2, 5} {
		if v <= b*power*(1+1e-9) {
			return b * power
		}
	}
	return 10 * power
}
