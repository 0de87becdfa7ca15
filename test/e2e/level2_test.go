package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/test/hosts"
)

// writeSets writes three checkpoints by three ranks; rank 1 is killed during the last one.
const writeSets = `for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=$r sh -c '
for step in 100 200 300; do
	mkdir -p /nvmecr/ck-$step/more
	[ $step$PMI_RANK != 3001 ] || { exec 3> /nvmecr/ck-300/state.1; echo x >&3; kill -9 $$; }
	for f in state more/grid; do
		{ echo $f of $PMI_RANK at $step; head -c 3000000 /dev/urandom; } > /nvmecr/ck-$step/$f.$PMI_RANK
	done
done' & done; wait`

// levels returns the checkpoints of the only series in `nvmecr checkpoints --json`: name, levels, and whether it is complete.
func levels(t *testing.T, r result) (list []string) {
	var all []struct {
		Checkpoints []struct {
			Name     string
			Levels   []string
			Complete bool
		}
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &all), "%s%s", r.stdout, r.stderr)
	require.Len(t, all, 1)
	for _, c := range all[0].Checkpoints {
		list = append(list, fmt.Sprintf("%s %v %t", c.Name, c.Levels, c.Complete))
	}
	return list
}

// TestLevel2 copies checkpoints to a directory after the job has died, lists them, and restores them to a lost store.
func TestLevel2(t *testing.T) {
	t.Parallel()
	for _, view := range []config.View{config.ViewJob, config.ViewRank} {
		t.Run(string(view), func(t *testing.T) {
			s := newStage(t)
			s.View = view
			dir := filepath.Join(s.Dir, "lustre")
			require.NoError(t, os.Mkdir(dir, 0o700))
			sh(t, s, writeSets, "--size", "256M")
			const pattern = "ck-{step}/**"
			drain := func(args ...string) result { return call(t, s, append([]string{"drain", "--level2", dir}, args...)...) }
			list := func() []string { return levels(t, call(t, s, "checkpoints", "--level2", dir, "--json", pattern)) }

			put := filepath.Join(dir, "default", "ck-200")
			assert.Equal(t, fmt.Sprintf("200: 6 files of 17 MiB copied to %s\n", put), drain(pattern).ok(t))
			assert.Equal(t, fmt.Sprintf("200: is in %s\n", put), drain(pattern).ok(t))
			assert.Equal(t, []string{"100 [store] true", "200 [store level2] true", "300 [store] false"}, list())
			assert.Equal(t, fmt.Sprintf("200: is in %s\n", put), drain(pattern, "--all", "--keep", "1").ok(t), "older ones are not copied")
			assert.Contains(t, drain(pattern, "--all").ok(t), "100: 6 files of 17 MiB copied")
			before := tree(t, put)
			assert.Len(t, before, 7)

			assert.NotContains(t, call(t, s, "checkpoints", "--json", pattern).ok(t), "storeVerified")
			call(t, s, "verify").ok(t)
			assert.Contains(t, call(t, s, "checkpoints", "--json", pattern).ok(t), "storeVerified")

			require.NoError(t, os.RemoveAll(filepath.Dir(s.Image("default"))))
			damaged := filepath.Join(dir, "default", "ck-100", map[config.View]string{config.ViewJob: "", config.ViewRank: "rank1"}[view], "ck-100", "state.1")
			require.NoError(t, os.Truncate(damaged, 3))
			restore := func(args ...string) result {
				return call(t, s, append([]string{"restore", "--level2", dir}, args...)...)
			}
			assert.Equal(t, fmt.Sprintf("200: 6 files of 17 MiB copied from %s to store %q\n", put, "default"), restore(pattern).ok(t))
			assert.Equal(t, "200\n", call(t, s, "latest", pattern).ok(t))
			back := filepath.Join(s.Dir, "back")
			call(t, s, "cp", "/", back).ok(t)
			delete(before, ".nvmecr-set")
			assert.True(t, sameTree(before, tree(t, back)), "the same files come back")

			r := restore("--checkpoint", "100", pattern)
			assert.NotZero(t, r.code)
			assert.Contains(t, r.stderr, "state.1: checksum mismatch")
			assert.Equal(t, []string{"100 [level2] true", "200 [store level2] true"}, list(), "nothing of what is damaged stays")

			// What the store has is not given up for it.
			damaged = filepath.Join(put, map[config.View]string{config.ViewJob: "", config.ViewRank: "rank1"}[view], "ck-200", "state.1")
			whole, err := os.ReadFile(damaged)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(damaged, 3))
			r = restore("--checkpoint", "200", pattern)
			assert.NotZero(t, r.code)
			assert.Contains(t, r.stderr, "state.1: checksum mismatch")
			assert.Contains(t, r.stderr, "the store keeps what it has")
			again := filepath.Join(s.Dir, "again")
			call(t, s, "cp", "/", again).ok(t)
			assert.True(t, sameTree(before, tree(t, again)))
			require.NoError(t, os.WriteFile(damaged, whole, 0o600))

			drain("--keep", "1", pattern).ok(t)
			assert.Contains(t, list(), "200 [store level2] true")
			assert.NoDirExists(t, filepath.Join(dir, "default", "ck-100"))
		})
	}
}

// tree returns the files below a directory by path.
func tree(t *testing.T, dir string) map[string][]byte {
	files := map[string][]byte{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		files[name], err = os.ReadFile(path)
		return err
	}))
	return files
}

func sameTree(a, b map[string][]byte) bool {
	for name := range a {
		if !bytes.Equal(a[name], b[name]) {
			return false
		}
	}
	return len(a) == len(b)
}

// TestDrainTogether checks that each rank of a job copies a part of a checkpoint, and that the first rank prints the result.
func TestDrainTogether(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	dir := t.TempDir()
	script := `for i in 0 1 2 3 4 5 6; do head -c ${i}00000 /dev/urandom > /nvmecr/ck.1.$i; done
		for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=$r ` + s.Nvmecr + ` drain --together --level2 ` + dir + ` 'ck.{step}.*' & done; wait`
	put := filepath.Join(dir, "default", "ck.1")
	assert.Equal(t, fmt.Sprintf("1: 7 files of 2.0 MiB copied to %s\n", put), sh(t, s, script, "--size", "64M").ok(t))
	back := filepath.Join(s.Dir, "back")
	call(t, s, "cp", "/", back).ok(t)
	copied := tree(t, put)
	delete(copied, ".nvmecr-set")
	assert.True(t, sameTree(tree(t, back), copied))
	call(t, s, "drain", "--together", "--level2", dir).refused(t, "--together", "mpirun")
}

// TestCompressed checks that a compressed set can be read without nvmecr, and restored.
func TestCompressed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	dir := t.TempDir()
	text := strings.Repeat("well compressed ", 1000)
	sh(t, s, "printf '"+text+"' > /nvmecr/ck.1", "--size", "64M").ok(t)
	assert.Contains(t, call(t, s, "drain", "--level2", dir, "--compress", "lz4").ok(t), "1: 1 file of 16 KiB copied")
	info, err := os.Stat(filepath.Join(dir, "default", "ck.1", "ck.1.lz4"))
	require.NoError(t, err)
	assert.Less(t, info.Size(), int64(1000))
	require.NoError(t, os.RemoveAll(filepath.Dir(s.Image("default"))))
	call(t, s, "restore", "--level2", dir).ok(t)
	assert.Equal(t, text, call(t, s, "cat", "/ck.1").ok(t))
	sh(t, s, "true", "--level2", "s3://bucket", "--compress", "lz4").refused(t, "--compress", "bucket")
	call(t, s, "drain", "--level2", dir, "--compress", "gzip").refused(t, "lz4 or zstd")
	call(t, s, "drain", "--level2", dir, "--compress", "lz4", "--incremental").refused(t, "leave --compress or --incremental out")
}

// TestLevel2Refused checks the errors of impossible requests.
func TestLevel2Refused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	sh(t, s, "echo x > /nvmecr/ck.1", "--size", "64M").ok(t)
	call(t, s, "drain").refused(t, "no second level", "--level2")
	call(t, s, "drain", "--level2", filepath.Join(s.Dir, "none")).refused(t, "none", "not a directory")
	dir := t.TempDir()
	call(t, s, "restore", "--level2", dir).refused(t, "no file has a number")
	call(t, s, "drain", "--level2", dir, "--limit", "fast").refused(t, "--limit")
	call(t, s, "drain", "--level2", dir, "other.{step}").refused(t, "no file")
	call(t, s, "drain", "--level2", dir).ok(t)
	call(t, s, "restore", "--level2", dir, "--checkpoint", "2").refused(t, "no checkpoint 2")
}

// TestRunWithLevel2 checks that a run copies complete checkpoints, restores them to a lost store, and skips damaged ones.
func TestRunWithLevel2(t *testing.T) {
	t.Parallel()
	for _, view := range []config.View{config.ViewJob, config.ViewRank} {
		t.Run(string(view), func(t *testing.T) {
			s := newStage(t)
			s.View = view
			dir := filepath.Join(s.Dir, "lustre")
			require.NoError(t, os.Mkdir(dir, 0o700))
			const pattern = "ck-{step}/**"
			flags := []string{"--level2", dir, "--level2-pattern", pattern}
			on := func() []string { return levels(t, call(t, s, "checkpoints", "--level2", dir, "--json", pattern)) }

			sh(t, s, writeSets, append(flags, "--size", "256M")...)
			assert.Equal(t, []string{"100 [store] true", "200 [store level2] true", "300 [store] false"}, on(), "the newest complete one, at the end")
			call(t, s, "drain", "--all", pattern).ok(t) // the second level is recorded
			require.NoError(t, os.RemoveAll(filepath.Dir(s.Image("default"))))

			newest := filepath.Join(dir, "default", "ck-200")
			require.NoError(t, filepath.WalkDir(newest, func(path string, e os.DirEntry, err error) error {
				if err == nil && e.Name() == "grid.2" {
					err = os.Truncate(path, 100)
				}
				return err
			}))
			r := sh(t, s, s.Nvmecr+" latest '"+pattern+"'", flags...)
			assert.Equal(t, "100\n", r.ok(t))
			assert.Contains(t, r.stderr, newest+" is passed over: ")
			assert.Contains(t, r.stderr, "newest complete checkpoint of "+pattern+": 100, copied back from "+filepath.Join(dir, "default", "ck-100"))
			r = sh(t, s, "exit 3")
			assert.Equal(t, 3, r.code)
			assert.Contains(t, r.stderr, newest+" is passed over: ")
			assert.Contains(t, r.stderr, ": 100, in the store")
			assert.Contains(t, sh(t, s, "ls -d /nvmecr/ck-200").stderr, "No such file", "nothing is left of what was passed over")

			require.NoError(t, os.RemoveAll(filepath.Dir(s.Image("default"))))
			require.NoError(t, os.Truncate(filepath.Join(newest, ".nvmecr-set"), 100))
			r = sh(t, s, s.Nvmecr+" latest '"+pattern+"'", flags...)
			assert.Equal(t, "100\n", r.ok(t), "its list of files is damaged, too")
			assert.Contains(t, r.stderr, newest+" is passed over: not a manifest")
			assert.LessOrEqual(t, strings.Count(r.stderr, "not a manifest"), 3, "at the start, by what copies, at its end and perhaps before, and not by each rank: %s", r.stderr)
			assert.Equal(t, 1, call(t, s, "checkpoints").code)

			if view == config.ViewJob {
				// It keeps no other one from being copied, and from being removed.
				r = sh(t, s, "mkdir /nvmecr/ck-400 && for f in a b; do echo $f >/nvmecr/ck-400/$f; done", flags...)
				r.ok(t)
				assert.NotContains(t, r.stderr, "may not be copied")
				assert.DirExists(t, filepath.Join(dir, "default", "ck-400"))
				call(t, s, "drain", "--keep", "1", pattern)
				assert.NoDirExists(t, filepath.Join(dir, "default", "ck-100"))
			}

			before := on()
			sh(t, s, "true", append(flags, "--fresh")...).refused(t, "--fresh", dir, "checkpoint", "--name")
			assert.Equal(t, before, on(), "the store is as before")
			require.NoError(t, os.Rename(dir, dir+".away"))
			sh(t, s, "true").refused(t, "second level "+dir)
		})
	}
}

// TestDrainFromHosts checks that processes on all hosts of a run copy its checkpoints.
func TestDrainFromHosts(t *testing.T) {
	t.Parallel()
	c := newCluster(t, config.ViewJob)
	targets := c.serve("mem:64M")
	dir := filepath.Join(c.Dir, "lustre")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chown(dir, hosts.User, hosts.User))
	script := `trap : USR1; r=$OMPI_COMM_WORLD_RANK; head -c 1000000 /dev/urandom > /nvmecr/step-1.$r; cp /nvmecr/step-1.$r new.$r; mv new.$r step-1.$r; while [ ! -e end ]; do sleep 0.1; done`
	flags := []string{"--name", "hosts", "--target", targets[0], "--target", targets[1], "--level2", dir, "--level2-every", "1000", "--log", "info"}
	job := c.run("n1", flags, c.mpirun([]string{"n1", "n2", "n3"}, 6, "sh", "-c", script))
	until := func(what, pattern string, n int) {
		t.Helper()
		require.Eventually(t, func() bool {
			found, _ := filepath.Glob(filepath.Join(c.Dir, pattern))
			return job.Ended() || len(found) == n
		}, hang, 10*time.Millisecond)
		require.False(t, job.Ended(), "%s: %v", what, job.Stderr.Lines())
	}
	until("processes of other hosts", "lustre/hosts/.peers/*", 2)
	until("files", "step-1.*", 6)
	run, err := childOf(job.PID())
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(run, syscall.SIGUSR1))
	until("copied", "lustre/hosts/step-1/step-1.*", 6)
	for rank := range 6 {
		name := fmt.Sprint("step-1.", rank)
		want, err := os.ReadFile(filepath.Join(c.Dir, name))
		require.NoError(t, err)
		have, err := os.ReadFile(filepath.Join(dir, "hosts/step-1", name))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(want, have), name)
	}
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "end"), nil, 0o600))
	require.NoError(t, job.Wait(t.Context()))
	assert.Contains(t, strings.Join(job.Stderr.Lines(), "\n"), "copied to "+filepath.Join(dir, "hosts/step-1")+", by 3 hosts")
}

// TestDrainBesideRun checks that a drain by hand copies checkpoints of the store of the run that uses the second level, and is refused for another store of the
// same name.
func TestDrainBesideRun(t *testing.T) {
	t.Parallel()
	s, other := newStage(t), newStage(t)
	s.View, other.View = config.ViewJob, config.ViewJob
	dir := filepath.Join(s.Dir, "lustre")
	require.NoError(t, os.Mkdir(dir, 0o700))
	sh(t, other, "echo other > /nvmecr/step-1", "--size", "64M").ok(t)
	fifo := fifo(t, s, "go")
	job, err := s.Start([]string{s.Nvmecr, "run", "--size", "64M", "--level2", dir, "--level2-every", "1000", "--", "sh", "-c", "echo mine > /nvmecr/step-1; echo up; read x < " + fifo})
	require.NoError(t, err)
	awaitLines(t, job, 1)
	call(t, other, "drain", "--level2", dir, "--keep", "1").refused(t, "second level "+filepath.Join(dir, "default")+" is in use by process ", "--name")
	assert.NoDirExists(t, filepath.Join(dir, "default", "step-1"))
	assert.Contains(t, call(t, s, "drain", "--level2", dir).ok(t), "1: 1 file of 5 B copied")
	send(t, fifo)
	require.NoError(t, job.Wait(t.Context()))
	assert.Contains(t, call(t, other, "drain", "--level2", dir).ok(t), "1: 1 file of 6 B copied", "after the end of the run")
}

// TestDrainInTime checks that a run copies complete checkpoints at once on a signal that announces its end, while the job continues.
func TestDrainInTime(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.View = config.ViewJob
	dir := filepath.Join(s.Dir, "lustre")
	require.NoError(t, os.Mkdir(dir, 0o700))
	job, err := s.Start([]string{s.Nvmecr, "run", "--size", "64M", "--level2", dir, "--level2-every", "1000", "--",
		"sh", "-c", "trap 'echo told' USR1; echo x > /nvmecr/step-1; echo written; while :; do sleep 0.1; done"})
	require.NoError(t, err)
	until := func(what string, done func() bool) {
		t.Helper()
		require.Eventually(t, func() bool { return job.Ended() || done() }, hang, 10*time.Millisecond)
		require.True(t, done(), "%s: %v", what, job.Stderr.Lines())
	}
	until("written", func() bool { return len(job.Stdout.Lines()) == 1 })
	require.NoError(t, syscall.Kill(job.PID(), syscall.SIGUSR1))
	until("copied", func() bool {
		_, err := os.Stat(filepath.Join(dir, "default", "step-1", "step-1"))
		return err == nil
	})
	until("told", func() bool { return slices.Contains(job.Stdout.Lines(), "told") }) // the shell prints it when its sleep has ended
	assert.False(t, job.Ended())
	job.Kill()
	_ = job.Wait(t.Context())
	_, err = s.Kill()
	require.NoError(t, err)
	assert.Contains(t, call(t, s, "checkpoints").ok(t), "store, level2")
}

// TestLevel2PartLost removes a file of the newest checkpoint from the store. Only that file is copied back, unless the user names a checkpoint that the store
// has as a whole.
func TestLevel2PartLost(t *testing.T) {
	t.Parallel()
	for _, view := range []config.View{config.ViewJob, config.ViewRank} {
		t.Run(string(view), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.View = view
			dir := filepath.Join(s.Dir, "lustre")
			require.NoError(t, os.Mkdir(dir, 0o700))
			flags := []string{"--level2", dir, "--size", "64M"}
			ranks := func(script string) string {
				return "for r in 0 1; do PMI_SIZE=2 PMI_RANK=$r sh -c '" + script + "' & done; wait"
			}
			sh(t, s, ranks("head -c 300000 /dev/urandom > /nvmecr/ckpt.1.$PMI_RANK"), flags...).ok(t)
			want := sh(t, s, "cd /nvmecr; sha1sum ckpt.*; ls -l --time-style=full-iso ckpt.*", flags[:2]...).ok(t)
			sh(t, s, "PMI_SIZE=2 PMI_RANK=1 rm /nvmecr/ckpt.1.1", flags[:2]...).ok(t)
			r := sh(t, s, "cd /nvmecr; sha1sum ckpt.*; ls -l --time-style=full-iso ckpt.*", flags[:2]...)
			assert.Equal(t, want, r.ok(t))
			assert.Contains(t, r.stderr, ": 1, 1 file of 293 KiB copied back from "+filepath.Join(dir, "default", "ckpt.1"))
			assert.Contains(t, call(t, s, "restore", "--checkpoint", "1", "--level2", dir).ok(t), "1: 2 files of 586 KiB copied from ")
		})
	}
}
