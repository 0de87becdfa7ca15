package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMirroredTargets checks that a job with mirrored targets continues when the first target, which has all names, is lost for good, and
// that the next run, with another namespace in its place, has all data.
func TestMirroredTargets(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	targets, flags := servedTargets(t, s, 2)
	run, err := s.Start(append(append([]string{s.Nvmecr, "run", "--copies", "partner", "--copies-sync", "--timeout", "16s"}, flags...), "--", "sh", "-ec", `
write() { for r in 0 1; do PMI_SIZE=2 PMI_RANK=$r sh -ec 'head -c 3000000 /dev/urandom | tee '$1'.$PMI_RANK > /nvmecr/'$1'.$PMI_RANK' || exit 1 & done; wait; }
write before; touch written
until [ -e lost ]; do sleep 0.05; done
write after
for r in 0 1; do for n in before after; do cmp $n.$r /nvmecr/$n.$r; done; done`))
	require.NoError(t, err)
	for begin := time.Now(); !exists(filepath.Join(s.Dir, "written")); time.Sleep(50 * time.Millisecond) {
		require.False(t, run.Ended(), "%v", run.Stderr.Lines())
		require.Less(t, time.Since(begin), hang)
	}
	targets[0].Kill()
	require.Error(t, targets[0].Wait(t.Context()))
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "lost"), nil, 0o600))
	require.NoError(t, run.Wait(t.Context()), "%v", run.Stderr.Lines())
	said := strings.Join(run.Stderr.Lines(), "\n")
	require.Contains(t, said, "is lost")
	require.Contains(t, said, "goes on without target")

	require.NoError(t, os.Remove(filepath.Join(s.Dir, "target.0")))
	_, replaced := serve(t, s, "--listen", awayAddress()+":0", "--namespace", fmt.Sprint("file:", filepath.Join(s.Dir, "target.new"), "?size=256M"))
	out := call(t, s, "run", "--target", replaced, "--target", flags[3], "--", "sh", "-ec", "for f in before.* after.*; do cmp $f /nvmecr/$f; done")
	require.Zero(t, out.code, "%+v", out)
	require.Contains(t, out.stderr, "is complete again")
	require.Contains(t, call(t, s, "checkpoints").stderr, "all of the store is on two targets")
}

// TestMirrorRepair checks that damage on either side of a mirror is detected, and restored from the other side.
func TestMirrorRepair(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	flags := append(copyTargets(t, s, 2, 0, 1), "--copies", "partner", "--copies-sync")
	sh(t, s, "head -c 300000 /dev/urandom | tee file > /nvmecr/data", flags...).ok(t)
	data, err := os.ReadFile(filepath.Join(s.Dir, "file"))
	require.NoError(t, err)
	first := spoilTarget(t, s, 2, data[:64])
	spoilTarget(t, s, 2, data[100_000:][:64], first)
	r := call(t, s, "verify")
	require.Equal(t, 1, r.code)
	require.Equal(t, 2, strings.Count(r.stdout, ": damaged on target "), r.stdout)
	sh(t, s, "cmp file /nvmecr/data", flags...).ok(t)
	require.Equal(t, 2, strings.Count(call(t, s, "verify", "--repair").ok(t), " of two, and restored\n"))
	require.NotContains(t, call(t, s, "verify").ok(t), "damaged")
}
