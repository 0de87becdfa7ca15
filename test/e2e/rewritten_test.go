package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// oneSet is a job of so many ranks that writes one checkpoint.
func oneSet(ranks, step, text string) string {
	return "for r in $(seq 0 $((" + ranks + "-1))); do PMI_SIZE=" + ranks + " PMI_RANK=$r sh -c 'echo " + text + " of $PMI_RANK >/nvmecr/ck." + step + ".$PMI_RANK' & done; wait"
}

// TestRanksGrow writes a checkpoint with one rank, and the same one with more ranks, whose names match another pattern. The files of the
// one rank are not restored in place of those of more ranks, nor repeatedly.
func TestRanksGrow(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"copies", "level2"} {
		t.Run(level, func(t *testing.T) {
			s := newStage(t)
			flags := append(copyTargets(t, s, 3, 0, 1, 2), "--copies", "partner")
			if level == "level2" {
				require.NoError(t, os.Mkdir(filepath.Join(s.Dir, "lustre"), 0o700))
				flags = append(flags[:6], "--level2", filepath.Join(s.Dir, "lustre"))
			}
			sh(t, s, oneSet("1", "300", "old"), flags...).ok(t)
			sh(t, s, oneSet("1", "400", "old")).ok(t)
			r := sh(t, s, oneSet("2", "400", "new"))
			r.ok(t)
			assert.Contains(t, r.stderr, "newest complete checkpoint of ck.{step}.0: 400, in the store")

			r = sh(t, s, "cat /nvmecr/ck.400.*")
			assert.Equal(t, "new of 0\nnew of 1\n", r.ok(t))
			assert.NotContains(t, r.stderr, "copied back")
			assert.Contains(t, r.stderr, "newest complete checkpoint of ck.{step}.*: 400, in the store")
			list := levels(t, call(t, s, "checkpoints", "--json"))
			assert.Equal(t, []string{"300 [store " + level + "] true", "400 [store " + level + "] true"}, list, "each is listed once")
		})
	}
}

// TestRewritten checks that a rebuild does not restore copies of a checkpoint which the job has written again since.
func TestRewritten(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	sh(t, s, oneSet("3", "400", "old"), append(copyTargets(t, s, 3, 0, 1, 2), "--copies", "partner")...).ok(t)
	killed(t, s, oneSet("3", "400", "new"))
	r := call(t, s, "rebuild")
	r.ok(t)
	assert.NotContains(t, r.stdout+r.stderr, "copied back")
	assert.Equal(t, "new of 0\nnew of 1\nnew of 2\n", sh(t, s, "cat /nvmecr/ck.400.*").ok(t))
}

// killed kills a run after its job has done something and before the run copies the result.
func killed(t *testing.T, s *demo.Stage, script string) {
	job, err := s.Start([]string{s.Nvmecr, "run", "--", "sh", "-c", script + "; echo done; sleep 600"})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(job.Stdout.Tail(10), "done") }, hang, 10*time.Millisecond)
	_, err = s.Kill()
	require.NoError(t, err)
	_ = job.Wait(t.Context()) // it was killed
}

// TestTwoOfOneName checks that of two checkpoints of one name on a level the newer one is restored. A drain leaves both if it is killed
// before it has removed the older one.
func TestTwoOfOneName(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	dir := filepath.Join(s.Dir, "lustre", "default")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	flags := []string{"--level2", filepath.Dir(dir)}
	for _, text := range []string{"old", "new"} {
		sh(t, s, oneSet("3", "400", text), append(flags, "--size", "256M")...).ok(t)
		if text == "old" {
			require.NoError(t, os.CopyFS(filepath.Join(s.Dir, "old"), os.DirFS(filepath.Join(dir, "ck.400"))))
		}
	}
	require.NoError(t, os.Rename(filepath.Join(s.Dir, "old"), filepath.Join(dir, "ck.400")))
	require.NoError(t, os.RemoveAll(filepath.Dir(s.Image("default"))))
	assert.Equal(t, "new of 0\nnew of 1\nnew of 2\n", sh(t, s, "cat /nvmecr/ck.400.*", flags...).ok(t))
	r := sh(t, s, "true", flags...)
	r.ok(t)
	assert.Contains(t, r.stderr, ": 400, in the store")
}

// TestRestoreDamaged checks that a damaged checkpoint of the second level does not replace files of the store.
func TestRestoreDamaged(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	dir := filepath.Join(s.Dir, "lustre")
	require.NoError(t, os.Mkdir(dir, 0o700))
	sh(t, s, oneSet("3", "400", "old"), "--level2", dir, "--size", "256M").ok(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "default", "ck.400", "ck.400.1"), []byte("odd of 1\n"), 0o600))
	content := func() string { return sh(t, s, "cat /nvmecr/ck.400.*").ok(t) }
	assert.Equal(t, "400: is in the store\n", call(t, s, "restore").ok(t))
	assert.Contains(t, call(t, s, "restore", "--from", "level2").stderr, "; the store keeps what it has\n")
	assert.Equal(t, "old of 0\nold of 1\nold of 2\n", content())
	killed(t, s, oneSet("3", "400", "new"))
	call(t, s, "restore").refused(t, "400: the store has files of these names with other content; --checkpoint 400 replaces them")
	assert.Contains(t, call(t, s, "restore", "--checkpoint", "400").stderr, "; the store keeps what it has\n")
	assert.Equal(t, "new of 0\nnew of 1\nnew of 2\n", content())
}
