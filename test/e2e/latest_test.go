package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/demo"
)

// asRank runs a shell script as one rank of a job of three.
func asRank(t *testing.T, s *demo.Stage, target string, rank int, script string) result {
	return call(t, s, "run", "--target", target, "--", "env", fmt.Sprint("PMI_RANK=", rank), "PMI_SIZE=3", "sh", "-c", script)
}

// TestLatest lists the newest complete checkpoint, in the job script and from outside: with no checkpoint, with some, and after a torn
// one.
func TestLatest(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	target := "file:" + image(t, s, 64, "")
	const pattern = "melt.{step}.*"
	latest := func(args ...string) result {
		return call(t, s, append([]string{"latest", "--target", target}, args...)...)
	}
	none := func(r result, words ...string) {
		t.Helper()
		r.refused(t, append(words, "no complete checkpoint")...)
		assert.Equal(t, 1, r.code)
		assert.Empty(t, r.stdout)
	}
	none(latest(pattern), pattern)
	none(latest())

	write := func(step, rank int) {
		script := fmt.Sprintf("cd /nvmecr; echo x > melt.%d.%d", step, rank)
		if rank == 0 {
			script += fmt.Sprintf("; echo base > melt.%d.base; echo > log", step)
		}
		asRank(t, s, target, rank, script).ok(t)
	}
	write(200, 0)
	write(200, 2)
	none(latest(pattern), "200 is incomplete", "rank 1 has no file of it")
	write(200, 1)
	for rank := range 3 {
		write(400, rank)
	}
	write(600, 0)
	write(600, 2)
	asRank(t, s, target, 1, "exec 3> /nvmecr/melt.600.1; echo x >&3; kill -9 $$")

	for _, args := range [][]string{{pattern}, {"/nvmecr/" + pattern}, {}} {
		r := latest(args...)
		assert.Equal(t, "400\n", r.ok(t))
		assert.Equal(t, "nvmecr: passed over: 600 is incomplete: melt.600.1 of rank 1 was not closed\n", r.stderr)
	}
	r := asRank(t, s, target, 0, s.Nvmecr+" latest --files '"+pattern+"'")
	assert.Equal(t, "/nvmecr/melt.400.0 /nvmecr/melt.400.1 /nvmecr/melt.400.2 /nvmecr/melt.400.base", strings.Join(strings.Fields(r.ok(t)), " "))
	assert.Equal(t, "600\n", latest("--rank", "0").ok(t))

	var series []struct {
		Pattern, Latest string
		Checkpoints     []struct {
			Name     string
			Complete bool
			Missing  []struct {
				Rank *int
				Path string
				Open bool
			}
			Ranks []int
			Size  int
			Files []struct{ Path string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(latest("--json").ok(t)), &series))
	require.Len(t, series, 1)
	assert.Equal(t, pattern, series[0].Pattern)
	assert.Equal(t, "400", series[0].Latest)
	require.Len(t, series[0].Checkpoints, 3)
	last := series[0].Checkpoints[2]
	assert.Equal(t, "600", last.Name)
	assert.False(t, last.Complete)
	require.Len(t, last.Missing, 1)
	assert.Equal(t, 1, *last.Missing[0].Rank)
	assert.Equal(t, "/melt.600.1", last.Missing[0].Path)
	assert.True(t, last.Missing[0].Open)
	assert.Equal(t, []int{0, 1, 2}, last.Ranks)
	assert.Len(t, last.Files, 4)
	assert.Equal(t, 2+2+2+5, last.Size)
}

// TestLatestOfTree checks that in one tree, where the writer of a file is not reported, the run names the newest checkpoint at its end.
func TestLatestOfTree(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.View = config.ViewJob
	r := sh(t, s, "cd /nvmecr; for f in 200.0 200.1 400.0 400.1 600.0; do echo x > melt.$f; done; echo > log; exec 3> melt.600.1; echo x >&3; kill -9 $$", "--size", "64M")
	assert.Contains(t, r.stderr, "7 files of 13 B new or changed; newest complete: /melt.400.*\n")
	r = call(t, s, "latest")
	assert.Equal(t, "400\n", r.ok(t))
	assert.Equal(t, "nvmecr: passed over: 600 is incomplete: melt.600.1 was not closed\n", r.stderr)
	assert.NotContains(t, call(t, s, "latest", "--json").ok(t), `"rank": 0`)
}

// TestLatestCannotTell checks that an unknown result differs from "there is none".
func TestLatestCannotTell(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	path := image(t, s, 64, "")
	target := "file:" + path
	unknown := func(words []string, args ...string) {
		t.Helper()
		r := call(t, s, append([]string{"latest"}, args...)...)
		r.refused(t, words...)
		assert.Equal(t, 2, r.code)
		assert.Empty(t, r.stdout)
	}
	for rank := range 3 {
		asRank(t, s, target, rank, "cd /nvmecr; echo x > out_1.h5; echo x > log.7; echo x > state.cpt; mkdir -p d; echo x > d/best.pt").ok(t)
	}
	unknown([]string{`no store "melt"`}, "--name", "melt")
	unknown([]string{"several series", "log.{step}, out_{step}.h5", "nvmecr latest 'log.{step}'"}, "--target", target)
	unknown([]string{"not a pattern", "{step}"}, "--target", target, "melt.*")
	unknown([]string{"--writers 3", "3 ranks"}, "--target", target, "--writers", "0,3", "out_{step}.h5")
	unknown([]string{"takes [PATTERN]"}, "--target", target, "a", "b")
	assert.Equal(t, "1\n", call(t, s, "latest", "--target", target, "out_{step}.h5").ok(t))
	assert.Equal(t, "1\n", call(t, s, "latest", "--target", target, "--writers", "0,2", "out_{step}.h5").ok(t))
	assert.Equal(t, "state\n", call(t, s, "latest", "--target", target, "{name}.cpt").ok(t))
	assert.Equal(t, "/nvmecr/d/best.pt\n", call(t, s, "latest", "--files", "--target", target, "/nvmecr/d/{name}.pt").ok(t))

	damage(t, path)
	unknown([]string{"rank 0"}, "--target", target, "out_{step}.h5")
	r := call(t, s, "latest", "--json", "--target", target, "out_{step}.h5")
	r.refused(t, "rank 0")
	assert.Contains(t, r.stdout, `"complete": false`)
	assert.Equal(t, "1\n", call(t, s, "latest", "--target", target, "--rank", "2", "out_{step}.h5").ok(t))
}

// TestLatestOfATree checks that a checkpoint that is overwritten in place is complete when it is closed, and not before.
func TestLatestOfATree(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	latest := []string{"latest", "--name", "x", "ck.{step}.*"}
	rank := func(script string) result {
		return sh(t, s, "PMI_RANK=1 PMI_SIZE=2 sh -c '"+script+"'; "+s.Nvmecr+" latest \"ck.{step}.*\"", "--name", "x", "--view=job")
	}
	assert.Equal(t, "2\n", rank("cd /nvmecr; echo one > ck.1.a; echo two > ck.2.a").ok(t))
	assert.Equal(t, "2\n", rank("exec 3<> /nvmecr/ck.2.a").ok(t), "nothing is written")
	assert.Equal(t, "2\n", rank("exec 3<> /nvmecr/ck.2.a; printf T >&3").ok(t))
	assert.Equal(t, "1\n", rank("exec 3<> /nvmecr/ck.2.a; printf TW >&3; kill -9 $$").ok(t))
	assert.Equal(t, "1\n", call(t, s, latest...).ok(t), "from outside")
	assert.Equal(t, "2\n", rank("cat /nvmecr/ck.2.a > /dev/null; echo again > /nvmecr/ck.2.a").ok(t))
}

// TestLatestOfRanksInATree checks that each rank of the job that wrote a checkpoint must have a file of it, however many ranks other runs
// have had.
func TestLatestOfRanksInATree(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	run := func(scripts ...string) string { // returns the message at the end of the run
		r := sh(t, s, strings.Join(scripts, "; "), "--name", "x", "--view=job", "--size", "256M")
		r.ok(t)
		return r.stderr
	}
	write := func(kind string, step, size int, ranks ...int) string { // other ranks die before they create their files
		return fmt.Sprintf("for r in %s; do PMI_RANK=$r PMI_SIZE=%d sh -c 'echo x > /nvmecr/%s.$0.%d' $r; done",
			strings.Trim(fmt.Sprint(ranks), "[]"), size, kind, step)
	}
	latest := func(args ...string) result { return call(t, s, append([]string{"latest", "--name", "x"}, args...)...) }
	passed := func(step int, words string) string {
		return fmt.Sprintf("nvmecr: passed over: %d is incomplete: %s\n", step, words)
	}

	killed := "PMI_RANK=2 PMI_SIZE=4 sh -c 'echo x > /nvmecr/log; kill -9 $$'"
	assert.Contains(t, run(killed, write("ckpt", 1, 4, 0, 1, 3)), "no checkpoint is complete: /ckpt.*.{step}")
	r := latest("ckpt.*.{step}")
	r.refused(t, "1 is incomplete: rank 2 has no file of it")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, run(write("ckpt", 1, 4, 0, 1, 2, 3), write("ckpt", 2, 4, 3, 2, 1, 0)), "newest complete: /ckpt.*.2\n")
	assert.Equal(t, "2\n", latest().ok(t))
	run(write("ckpt", 3, 2, 0, 1), write("ckpt", 4, 2, 0))
	r = latest()
	assert.Equal(t, "3\n", r.ok(t), "two ranks are enough where the job has two")
	assert.Equal(t, passed(4, "ckpt.1.4 is not there, rank 1 has no file of it"), r.stderr)
	run(write("ckpt", 4, 6, 0, 1, 2, 3, 4, 5), write("ckpt", 5, 6, 0, 1, 2, 4, 5))
	r = latest()
	assert.Equal(t, "4\n", r.ok(t))
	assert.Equal(t, passed(5, "ckpt.3.5 is not there, rank 3 has no file of it"), r.stderr)

	run(write("node", 1, 6, 0, 3), write("node", 2, 6, 0, 3))
	r = latest("node.*.{step}")
	r.refused(t, "2 is incomplete", "the one before lacks the same", "--writers")
	assert.Equal(t, 2, r.code)
	assert.Equal(t, "2\n", latest("--writers", "0,3", "node.*.{step}").ok(t))
	r = latest("--rank", "0")
	r.refused(t, "one tree for all ranks")
	assert.Equal(t, 2, r.code)
}

// TestHalfWrittenBesideJob checks that no listing ever counts a checkpoint as complete while a job is still writing it in one tree.
func TestHalfWrittenBesideJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	run, err := s.Start(append(s.RunFlags("default"), "sh", "-c", `
n=100; until [ -e stop ]; do n=$((n + 1))
for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=$r sh -c 'sleep 0.0$((2 * PMI_RANK)); echo x > /nvmecr/ck.'$n'.$PMI_RANK' & done; wait; done`))
	require.NoError(t, err)
	begin := time.Now()
	for looks := 0; looks < 30; {
		require.Less(t, time.Since(begin), hang)
		var series []struct {
			Checkpoints []struct {
				Complete bool
				Files    []struct{ Path string }
			}
		}
		r := call(t, s, "checkpoints", "--json", "ck.{step}.*")
		if r.code != 0 { // nothing written yet
			continue
		}
		complete := 0
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &series))
		for _, one := range series {
			for _, c := range one.Checkpoints {
				if c.Complete {
					require.Len(t, c.Files, 3)
					complete++
				}
			}
		}
		looks += min(complete, 1)
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "stop"), nil, 0o600))
	require.NoError(t, run.Wait(t.Context()))
}
