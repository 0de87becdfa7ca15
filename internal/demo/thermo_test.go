package demo

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const printed = `Setting up Verlet run ...
Step Temp E_pair
     0     3.0   -6.77
    50     1.6   -4.73
Loop time of 1.0 on 4 procs for 50 steps with 10 atoms
 100 200 300
`

func TestReadThermo(t *testing.T) {
	got := readThermo(strings.Split(printed, "\n"))
	assert.Equal(t, Thermo{0: "0 3.0 -6.77", 50: "50 1.6 -4.73"}, got)
	assert.Equal(t, 50, got.last())
	assert.Equal(t, -1, Thermo{}.last())
}

func TestCompare(t *testing.T) {
	reference := Thermo{0: "0 3.0", 50: "50 1.6", 100: "100 1.5"}
	for name, c := range map[string]struct {
		got         Thermo
		first, last int
		want        string // of the error
	}{
		"same":               {Thermo{50: "50 1.6", 100: "100 1.5"}, 50, 100, ""},
		"begun earlier":      {Thermo{0: "0 9.9", 50: "50 1.6"}, 50, 50, ""},
		"last digit differs": {Thermo{50: "50 1.6", 100: "100 1.4"}, 50, 100, "step 100 differs"},
		"line missing":       {Thermo{50: "50 1.6"}, 50, 100, "step 100 is missing"},
		"line too many":      {Thermo{50: "50 1.6", 60: "60 1"}, 50, 60, "step 60 is in the output"},
		"nothing to compare": {Thermo{}, 1, 49, "no output for any step"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.got.compare(reference, c.first, c.last)
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}
