package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestShards checks that a job can read after one of four targets was killed, and that after the loss of another one the next run has
// every byte, on replaced targets. The loss of a third one is reported.
func TestShards(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	targets, flags := servedTargets(t, s, 4)
	run, err := s.Start(append(append([]string{s.Nvmecr, "run", "--copies", "rs:2+2", "--timeout", "8s"}, flags...), "--", "sh", "-c", `
for r in 0 1 2 3; do PMI_SIZE=4 PMI_RANK=$r sh -c 'head -c 3000000 /dev/urandom | tee before.$PMI_RANK > /nvmecr/ck.200.$PMI_RANK' & done; wait
until [ -e lost ]; do sleep 0.05; done
PMI_SIZE=4 PMI_RANK=1 cat /nvmecr/ck.200.3 > after.3`))
	require.NoError(t, err)
	list := func() string { return call(t, s, "checkpoints").stdout }
	for begin := time.Now(); !strings.Contains(list(), "store, rs:2+2 protected  "); time.Sleep(100 * time.Millisecond) {
		require.False(t, run.Ended(), "%v", run.Stderr.Lines())
		require.Less(t, time.Since(begin), hang)
	}
	targets[3].Kill()
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "lost"), nil, 0o600))
	_ = run.Wait(t.Context()) // its end fails on the lost target
	want, err := os.ReadFile(filepath.Join(s.Dir, "before.3"))
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(s.Dir, "after.3"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), strings.Join(run.Stderr.Lines(), "\n"))

	replace := func(numbers ...int) {
		_, err := s.Kill()
		require.NoError(t, err)
		for _, i := range numbers {
			require.NoError(t, os.Remove(filepath.Join(s.Dir, fmt.Sprint("target.", i))))
		}
		targets, flags = servedTargets(t, s, 4)
	}
	replace(0, 3)
	assert.Contains(t, call(t, s, append([]string{"checkpoints"}, flags...)...).stdout, "rs:2+2 without shards 0 3: bears 0 more")
	const compare = "for r in 0 1 2 3; do cmp /nvmecr/ck.200.$r before.$r || exit 1; done"
	r := sh(t, s, compare, flags...)
	r.ok(t)
	assert.Contains(t, r.stderr, "copied back from copies/ck.200")
	assert.Contains(t, list(), "store, rs:2+2 protected  ")
	replace(0, 1, 2)
	assert.Contains(t, call(t, s, append([]string{"checkpoints"}, flags...)...).stdout, "rs:2+2 without shards 0 1 2: too few")
	r = sh(t, s, compare, flags...)
	assert.NotZero(t, r.code)
	assert.NotContains(t, r.stderr, "newest complete checkpoint")
}

// TestShardsRepaired checks that damaged shards, and the files that they belong to, are repaired from each other.
func TestShardsRepaired(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	flags := append(copyTargets(t, s, 3, 0, 1, 2), "--copies", "rs:2+1")
	sh(t, s, "for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=$r sh -c 'head -c 300000 /dev/urandom > /nvmecr/ck.200.$PMI_RANK' & done; wait", flags...).ok(t)
	before, after := filepath.Join(s.Dir, "before"), filepath.Join(s.Dir, "after")
	call(t, s, "cp", "/", before).ok(t)
	files := tree(t, before)
	for name, data := range files { // of each a unit of the file, and another one of a shard of data
		if strings.HasSuffix(name, ".2") {
			first := spoilTarget(t, s, 3, data[40000:40064])
			spoilTarget(t, s, 3, data[140000:140064], first)
		}
	}
	assert.Equal(t, 2, strings.Count(call(t, s, "verify").stdout, ": damaged\n"))
	out := call(t, s, "verify", "--repair").ok(t)
	assert.Equal(t, 2, strings.Count(out, ": damaged, and restored\n"), out)
	assert.NotContains(t, call(t, s, "verify").ok(t), "damaged")
	call(t, s, "cp", "/", after).ok(t)
	require.True(t, sameTree(files, tree(t, after)))
	copyTargets(t, s, 3, 1)
	assert.Contains(t, call(t, s, "rebuild").stderr, "copied back from copies/ck.200")
	sh(t, s, "true", "--copies", "rs:3+1").refused(t, "rs:3+1", "take --copies rs:2+1")
}
