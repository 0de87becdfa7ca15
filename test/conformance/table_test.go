package conformance

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A testCase is one line of cases.txt.
type testCase struct {
	name  string
	steps []string
	user  bool // run by a user other than root
}

// readCases returns the table.
func readCases(t *testing.T) []testCase {
	t.Helper()
	var cases []testCase
	seen := map[string]bool{}
	for _, line := range readLines(t, "cases.txt") {
		if strings.HasPrefix(line, " ") {
			require.NotEmpty(t, cases, line)
			last := &cases[len(cases)-1]
			last.steps = append(last.steps, splitSteps(line)...)
			continue
		}
		name, steps, ok := strings.Cut(line, ": ")
		require.True(t, ok, "cases.txt: %q has no name", line)
		require.False(t, seen[name], "cases.txt: %q is there twice", name)
		seen[name] = true
		c := testCase{name: name, steps: splitSteps(steps)}
		if c.steps[0] == "user" {
			c.user, c.steps = true, c.steps[1:]
		}
		cases = append(cases, c)
	}
	return cases
}

func splitSteps(text string) []string {
	steps := strings.Split(text, ";")
	for i := range steps {
		steps[i] = strings.Join(strings.Fields(steps[i]), " ")
	}
	return slices.DeleteFunc(steps, func(s string) bool { return s == "" })
}

// verb returns the verb of a step.
func verb(step string) string {
	word, _, _ := strings.Cut(step, " ")
	if _, after, ok := strings.Cut(word, "="); ok {
		return after
	}
	return word
}

// has reports whether all verbs of a case are among these.
func (c testCase) has(verbs map[string]bool) bool {
	return !slices.ContainsFunc(c.steps, func(s string) bool { return !verbs[verb(s)] })
}

// readLines returns the lines of a file that are neither empty nor comments.
func readLines(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool {
		return strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#")
	})
}

// A trace has the results of the steps of each case: "step = result".
type trace map[string][]string

// parseTrace parses the output of a run.
func parseTrace(text string) (tr trace, whole bool) {
	tr = trace{}
	name := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch after, isCase := strings.CutPrefix(line, "case "); {
		case isCase:
			name = after
			tr[name] = nil
		case line == "end":
			whole = true
		default:
			tr[name] = append(tr[name], strings.TrimRight(line, " "))
		}
	}
	return tr, whole
}
