package conformance

import (
	"fmt"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestConformance runs every case of the table in all ways.
func TestConformance(t *testing.T) {
	cases := readCases(t)
	accepted := readDifferences(t, "differences.txt")
	s := newStage(t)
	plain := s.compile("plain", "-O1")
	verbs := set(ask(t, plain, "verbs"))
	var fromC []testCase
	for _, c := range cases {
		if c.has(verbs) {
			fromC = append(fromC, c)
		}
	}
	require.Greater(t, len(fromC), 500)
	fortified := s.compile("fortified", "-O2", "-D_FORTIFY_SOURCE=2")
	t.Run("coverage", func(t *testing.T) { checkCoverage(t, plain, fortified) })
	for _, run := range []struct{ name, program, flavour string }{
		{"C", plain, "plain"},
		{"C, absolute paths and 64-bit names", plain, "wide"},
		{"C, relative to a directory", plain, "at"},
		{"C, fortified", fortified, "plain"},
	} {
		t.Run(run.name, func(t *testing.T) {
			s.t = t
			s.compare(accepted, run.program, run.flavour, fromC)
		})
	}
	constants := map[string]int64{}
	for _, line := range ask(t, plain, "constants") {
		var name string
		var value int64
		_, err := fmt.Sscan(line, &name, &value)
		require.NoError(t, err)
		constants[name] = value
	}
	t.Run("Go", func(t *testing.T) { compareGo(t, accepted, constants, cases) })
	for _, c := range cases {
		require.True(t, c.has(verbs) || goPlays(c), "%s: nobody has all of its verbs", c.name)
	}
	if os.Getuid() == 0 && !t.Failed() {
		accepted.stale(t)
	}
}

// compareGo runs the cases that can be run from Go.
func compareGo(t *testing.T, accepted *differences, constants map[string]int64, cases []testCase) {
	goruntime.LockOSThread() // never unlocked: the thread changes its user
	self := os.Getuid()
	var fromGo []testCase
	for _, c := range cases {
		if goPlays(c) && (self == 0 || !slices.ContainsFunc(c.steps, func(s string) bool { return strings.HasPrefix(s, "become ") })) {
			fromGo = append(fromGo, c)
		}
	}
	require.Greater(t, len(fromGo), 150)
	defer unix.Umask(unix.Umask(umask))
	base, err := os.MkdirTemp("", "nvmecr-conformance")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(base, 0o755))
	k := &kernel{base: base}
	want := (&player{t: t, sys: k, constants: constants}).play(fromGo, base, self)
	if self == 0 {
		k.become(t, 0)
	}
	require.NoError(t, os.RemoveAll(base))
	got := (&player{t: t, sys: newRuntime(t, self), constants: constants}).play(fromGo, mount, self)
	accepted.compare(t, fromGo, want, got)
}

func set(names []string) map[string]bool {
	s := map[string]bool{}
	for _, name := range names {
		s[name] = true
	}
	return s
}
