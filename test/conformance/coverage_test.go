package conformance

import (
	"debug/elf"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	callName = regexp.MustCompile(`^call .*?(\w+)\(.* = `)
	akaNames = regexp.MustCompile(`; aka ([\w ]+)`)
)

// interposed returns every name that the shim interposes.
func interposed(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, line := range readLines(t, "../../posixshim/calls.txt") {
		if m := callName.FindStringSubmatch(line); m != nil {
			names = append(names, m[1])
		}
		if m := akaNames.FindStringSubmatch(line); m != nil {
			names = append(names, strings.Fields(m[1])...)
		}
	}
	return names
}

// checkCoverage fails for names of the shim's table that no program calls and uncovered.txt does not list, and for unnecessary entries of
// uncovered.txt.
func checkCoverage(t *testing.T, programs ...string) {
	t.Helper()
	called := map[string]bool{}
	for _, program := range programs {
		f, err := elf.Open(program)
		require.NoError(t, err)
		symbols, err := f.ImportedSymbols()
		require.NoError(t, err)
		require.NoError(t, f.Close())
		for _, s := range symbols {
			called[s.Name] = true
		}
	}
	excused := map[string]bool{}
	for _, line := range readLines(t, "uncovered.txt") {
		names, reason, ok := strings.Cut(line, ": ")
		require.True(t, ok && reason != "", "uncovered.txt: %q has no reason", line)
		for name := range strings.FieldsSeq(names) {
			excused[name] = true
		}
	}
	all := interposed(t)
	for _, name := range all {
		switch {
		case called[name] && excused[name]:
			t.Errorf("uncovered.txt: %s is covered", name)
		case !called[name] && !excused[name]:
			t.Errorf("%s is interposed, no case calls it, and uncovered.txt does not say why", name)
		}
		delete(excused, name)
	}
	assert.Greater(t, len(all), 200)
	assert.Empty(t, slices.Sorted(maps.Keys(excused)), "uncovered.txt: these are not interposed")
}
