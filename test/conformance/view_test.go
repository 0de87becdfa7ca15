package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/fuseview"
)

// TestConformanceView runs every case through FUSE, by a program without the preload library.
func TestConformanceView(t *testing.T) {
	cases := readCases(t)
	accepted := readDifferences(t, "differences_view.txt")
	s := newStage(t)
	plain := s.compile("plain", "-O1")
	verbs := set(ask(t, plain, "verbs"))
	cases = slices.DeleteFunc(cases, func(c testCase) bool { return !c.has(verbs) })
	for _, user := range []bool{false, true} {
		if user && os.Getuid() != 0 {
			continue
		}
		some := slices.DeleteFunc(slices.Clone(cases), func(c testCase) bool { return c.user != user })
		local, dir := filepath.Join(s.dir, "local"), filepath.Join(s.dir, "view")
		for _, d := range []string{local, dir} {
			require.NoError(t, os.RemoveAll(d))
			require.NoError(t, os.Mkdir(d, 0o700))
			require.NoError(t, os.Chmod(d, 0o777))
		}
		r := newRuntime(t, os.Getuid())
		view, err := fuseview.Mount(dir, []fuseview.Tree{{Process: r.Process}}, fuseview.Options{AllowOther: os.Getuid() == 0})
		if err != nil {
			t.Skipf("no FUSE here: %v", err)
		}
		require.NoError(t, os.Chmod(dir, 0o777))
		want := s.run(plain, local, "plain", user, some)
		got := s.run(plain, dir, "plain", user, some)
		assert.NoError(t, view.Close())
		accepted.compare(t, some, want, got)
	}
	if os.Getuid() == 0 && !t.Failed() {
		accepted.stale(t)
	}
}
