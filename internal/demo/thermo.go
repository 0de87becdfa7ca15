package demo

import (
	"fmt"
	"strconv"
	"strings"
)

// Thermo is the thermodynamic output of a run: for each step the line LAMMPS
// printed, its fields separated by single spaces.
type Thermo map[int]string

// readThermo collects the lines between the heading that starts with "Step" and "Loop time". It skips lines mixed
// with output of another rank.
func readThermo(lines []string) Thermo {
	t := make(Thermo)
	columns := 0
	for _, line := range lines {
		fields := strings.Fields(line)
		switch {
		case len(fields) > 0 && fields[0] == "Step":
			columns = len(fields)
		case strings.HasPrefix(line, "Loop time"):
			columns = 0
		case columns > 0 && len(fields) == columns:
			if step, err := strconv.Atoi(fields[0]); err == nil {
				t[step] = strings.Join(fields, " ")
			}
		}
	}
	return t
}

// compare returns an error that names the first step from first on at which t
// differs from the reference, or that only one of them has.
func (t Thermo) compare(reference Thermo, first, last int) error {
	steps := 0
	for step := first; step <= last; step++ {
		want, expected := reference[step]
		got, there := t[step]
		switch {
		case expected && !there:
			return fmt.Errorf("step %d is missing in the output", step)
		case there && !expected:
			return fmt.Errorf("step %d is in the output, but not in the undisturbed run's", step)
		case got != want:
			return fmt.Errorf("step %d differs:\n  undisturbed %s\n  this run    %s", step, want, got)
		case there:
			steps++
		}
	}
	if steps == 0 {
		return fmt.Errorf("there is no output for any step from %d to %d", first, last)
	}
	return nil
}

// last returns the highest step, -1 if there is none.
func (t Thermo) last() int {
	last := -1
	for step := range t {
		last = max(last, step)
	}
	return last
}
