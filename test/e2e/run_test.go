package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/proc"
)

func TestRunPassesStatusAndArguments(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := call(t, s, "run", "--", "sh", "-c", `printf '%s|' "$@"; exit 42`, "sh", "--name", "a b")
	assert.Equal(t, 42, r.code)
	assert.Equal(t, "--name|a b|", r.stdout)
	assert.Equal(t, 1, strings.Count(r.stderr, "\n"), "says where the data is, and no more: %s", r.stderr)
	assert.Contains(t, r.stderr, `store "default"`)
	assert.Contains(t, r.stderr, s.Image("default"))
}

func TestASecondRunFindsTheFirstOnesFiles(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	sh(t, s, "echo one > /nvmecr/a", "--size", "64M").ok(t)
	assert.Equal(t, "one\n", sh(t, s, "cat /nvmecr/a; echo two >> /nvmecr/a").ok(t))
	assert.Equal(t, "one\ntwo\n", sh(t, s, "cat /nvmecr/a").ok(t))

	sh(t, s, "true", "--size", "128M").refused(t, "64 MiB", "--fresh")
	assert.Equal(t, "one\ntwo\n", call(t, s, "cat", "/a").ok(t))

	assert.NotEqual(t, 0, sh(t, s, "cat /nvmecr/a", "--fresh", "--size", "128M").code)
	assert.NotEqual(t, 0, call(t, s, "cat", "/a").code)
	assert.Empty(t, sh(t, s, "ls /nvmecr").ok(t))
}

func TestStoresOfOtherNamesAreApart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	sh(t, s, "echo one > /ckpt/a", "--name", "x", "--size", "64M", "--mount", "/ckpt").ok(t)
	assert.Empty(t, sh(t, s, "ls /ckpt", "--name", "y", "--size", "64M", "--mount", "/ckpt").ok(t))
	assert.Equal(t, "one\n", call(t, s, "cat", "--name", "x", "/ckpt/a").ok(t), "the mount in front of the path")
	call(t, s, "ls", "--name", "z").refused(t, `no store "z"`, "x, y")
}

func TestOneRunAtATime(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	fifo := filepath.Join(s.Dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	job, err := s.Start(append(s.RunFlags("default", "--size", "64M"), "sh", "-c", "echo up > /nvmecr/a; echo up; read x < "+fifo))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(job.Stdout.Lines()) > 0 }, hang, time.Millisecond)

	sh(t, s, "true").refused(t, "in use by process")
	call(t, s, "release").refused(t, "in use by process")
	assert.Contains(t, call(t, s, "ls").ok(t), "/a", "reading from outside while it runs")

	require.NoError(t, os.WriteFile(fifo, []byte("go\n"), 0))
	require.NoError(t, job.Wait(t.Context()))
	sh(t, s, "true").ok(t)
}

// TestTargetEndsWithItsRun kills `nvmecr run` alone.
func TestTargetEndsWithItsRun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	job, err := s.Start(append(s.RunFlags("default", "--size", "64M"), "sh", "-c", "echo $PPID; sleep 1000"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(job.Stdout.Lines()) > 0 }, hang, time.Millisecond)
	var run int
	_, err = fmt.Sscan(job.Stdout.Lines()[0], &run)
	require.NoError(t, err)
	target := 0
	for _, p := range proc.Descendants(run) {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p)); err == nil && strings.Contains(string(line), "--until-eof") {
			target = p
		}
	}
	require.NotZero(t, target)
	require.NoError(t, syscall.Kill(run, syscall.SIGKILL))
	require.Eventually(t, func() bool { return proc.Ended(target) }, hang, time.Millisecond)
	sh(t, s, "true").ok(t)
}

func TestReleaseFreesTheName(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	sh(t, s, "echo one > /nvmecr/a", "--size", "64M").ok(t)
	call(t, s, "release").ok(t)
	assert.NoFileExists(t, s.Image("default"))
	call(t, s, "release").refused(t, `no store "default"`)

	// A real namespace can be used by another store afterwards.
	_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:64M")
	sh(t, s, "echo one > /nvmecr/a", "--name", "x", "--target", target).ok(t)
	sh(t, s, "true", "--name", "y", "--target", target).refused(t, `"x"`)
	call(t, s, "release", "--name", "x").ok(t)
	sh(t, s, "echo two > /nvmecr/a", "--name", "y", "--target", target).ok(t)
	assert.Equal(t, "two\n", call(t, s, "cat", "--name", "y", "/a").ok(t), "the record says where it is")
}

func TestCopyOut(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	sh(t, s, "mkdir -p /nvmecr/d/e && seq 100000 | dd of=/nvmecr/d/e/f status=none && ln -s e/f /nvmecr/d/l && chmod 640 /nvmecr/d/e/f", "--size", "64M").ok(t)
	dest := filepath.Join(s.Dir, "out")
	call(t, s, "cp", "/", dest).ok(t)
	want, err := exec.Command("seq", "100000").Output()
	require.NoError(t, err)
	for _, name := range []string{"d/e/f", "d/l"} {
		got, err := os.ReadFile(filepath.Join(dest, name))
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	info, err := os.Lstat(filepath.Join(dest, "d/l"))
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&os.ModeSymlink)
	info, err = os.Stat(filepath.Join(dest, "d/e/f"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o640), info.Mode().Perm())
	call(t, s, "cp", "/d/nothing", dest).refused(t, "/d/nothing", "nvmecr ls")
}

func TestRanksFromTheLauncher(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("mpirun.openmpi"); err != nil {
		t.Skip("OpenMPI (mpirun.openmpi) is not installed: make deps")
	}
	s := newRankStage(t)
	args := []string{"run", "--size", "64M", "--", "mpirun.openmpi", "--oversubscribe", "-n", "2"}
	if os.Getuid() == 0 {
		args = append(args, "--allow-run-as-root")
	}
	call(t, s, append(args, "sh", "-c", "echo $OMPI_COMM_WORLD_RANK > /nvmecr/rank")...).ok(t)
	call(t, s, "cat", "/rank").refused(t, "--rank")
	for _, rank := range []string{"0", "1"} {
		assert.Equal(t, rank+"\n", call(t, s, "cat", "--rank", rank, "/rank").ok(t))
	}
	call(t, s, "cat", "--rank", "2", "/rank").refused(t, "2 ranks")
	dest := filepath.Join(s.Dir, "out")
	call(t, s, "cp", "/", dest).ok(t)
	assert.FileExists(t, filepath.Join(dest, "rank1/rank"))
	stat := call(t, s, "stat").ok(t)
	assert.Contains(t, stat, "3 partitions", "with that of job scripts")
	assert.Contains(t, stat, "1 path in several ranks, each of which has a file of its own:\n  /rank: 2 ranks\n")
	assert.Equal(t, 2, strings.Count(call(t, s, "stat", "--json").ok(t), "\"namesakes\": [\n"))

	// Another number of ranks finds no files, and neither these ranks nor a script may change a rank's file.
	for _, command := range [][]string{append(slices.Replace(slices.Clone(args), 7, 8, "3"), "sh", "-c", "echo no > /nvmecr/rank"), {"run", "--", "sh", "-c", "echo no > /nvmecr/rank"}} {
		r := call(t, s, command...)
		assert.NotEqual(t, 0, r.code, command)
		assert.Contains(t, r.stderr, "2 ranks")
		assert.Equal(t, "0\n", call(t, s, "cat", "--rank", "0", "/rank").ok(t))
	}
}

// TestCopyStaysInside checks that a copy keeps holes, and writes nothing outside of its directory, whatever links are in it.
func TestCopyStaysInside(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	sh(t, s, `cd /nvmecr && mkdir d e && echo inside > d/f && echo deep > e/g && ln -s /etc l
		truncate -s 100M sparse && printf end | dd of=sparse bs=1 seek=60M conv=notrunc status=none
		touch "$(printf 'bad\\033[2Jname')" && exec 3>"$(printf 'open\\033[2J')" && kill -9 $$`)
	dest, out := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(out, filepath.Join(dest, "d")), "where d is to go")
	r := call(t, s, "cp", "/", dest)
	assert.NotEqual(t, 0, r.code)
	assert.NotContains(t, r.stderr, "\033")
	assert.Contains(t, r.stderr, dest+"/d has to be a directory, and is a file or a link: remove it")
	assert.NoFileExists(t, filepath.Join(out, "f"))
	require.NoError(t, os.Remove(filepath.Join(dest, "d")))
	call(t, s, "cp", "/", dest).ok(t)
	call(t, s, "cp", "/", dest).ok(t)
	assert.NoFileExists(t, filepath.Join(out, "f"))
	for name, want := range map[string]string{"d/f": "inside\n", "e/g": "deep\n"} {
		got, err := os.ReadFile(filepath.Join(dest, name))
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
	link, err := os.Readlink(filepath.Join(dest, "l"))
	require.NoError(t, err)
	assert.Equal(t, "/etc", link)
	info, err := os.Stat(filepath.Join(dest, "sparse"))
	require.NoError(t, err)
	assert.EqualValues(t, 100<<20, info.Size())
	assert.Less(t, info.Sys().(*syscall.Stat_t).Blocks*512, int64(1<<20))
	f, err := os.Open(filepath.Join(dest, "sparse"))
	require.NoError(t, err)
	defer f.Close()
	b := make([]byte, 3)
	_, err = f.ReadAt(b, 60<<20)
	require.NoError(t, err)
	assert.Equal(t, "end", string(b))
}
