package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// mountView starts `nvmecr mount flags... DIR` and returns the directory. It is unmounted when the test ends.
func mountView(t *testing.T, s *demo.Stage, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	job, err := s.Start(append(append([]string{s.Nvmecr, "mount"}, flags...), dir))
	require.NoError(t, err)
	t.Cleanup(func() {
		job.Interrupt()
		assert.NoError(t, job.Wait(context.WithoutCancel(t.Context())))
	})
	for len(job.Stderr.Lines()) == 0 && !job.Ended() {
		time.Sleep(time.Millisecond)
	}
	said := strings.Join(job.Stderr.Lines(), "\n")
	if strings.Contains(said, "by FUSE: ") {
		t.Skip(said)
	}
	require.Contains(t, said, "read-only")
	return dir
}

// TestMount reads a job's files with ordinary programs while the job writes them.
func TestMount(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	goOn, done := filepath.Join(s.Dir, "go"), filepath.Join(s.Dir, "done")
	script := "mkdir /nvmecr/d; echo one > /nvmecr/d/a; ln -s a /nvmecr/d/l; cp /bin/true /nvmecr/d/true; " +
		"while [ ! -e " + goOn + " ]; do sleep 0.01; done; echo two >> /nvmecr/d/a; : > /nvmecr/d/b; : > " + done +
		"; while [ -e " + goOn + " ]; do sleep 0.01; done"
	job, err := s.Start([]string{s.Nvmecr, "run", "--size", "64M", "--", "sh", "-c", script})
	require.NoError(t, err)
	for call(t, s, "cat", "/d/true").code != 0 {
		require.False(t, job.Ended(), "%v", job.Stderr.Lines())
	}
	dir := mountView(t, s)
	one := mountView(t, s, "--rank", "0")
	read := func(name ...string) string {
		b, err := os.ReadFile(filepath.Join(name...))
		require.NoError(t, err)
		return string(b)
	}
	assert.Equal(t, "one\n", read(dir, "rank0/d/a"))
	assert.Equal(t, "one\n", read(one, "d/l"))
	require.NoError(t, exec.Command(filepath.Join(one, "d/true")).Run(), "a program is executed")
	_, err = os.Create(filepath.Join(one, "new"))
	require.ErrorIs(t, err, syscall.EROFS)
	require.ErrorIs(t, os.Remove(filepath.Join(dir, "rank0/d/a")), syscall.EROFS)
	tail, err := os.Open(filepath.Join(dir, "rank0/d/a"))
	require.NoError(t, err)
	defer tail.Close()

	require.NoError(t, os.WriteFile(goOn, nil, 0o600))
	require.Eventually(t, func() bool { _, err := os.Stat(done); return err == nil }, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool { return read(dir, "rank0/d/a") == "one\ntwo\n" }, time.Minute, time.Millisecond)
	buf := make([]byte, 100)
	n, err := tail.Read(buf)
	require.NoError(t, err)
	assert.Equal(t, "one\ntwo\n", string(buf[:n]), "a file that was open shows what was appended")
	names, err := filepath.Glob(filepath.Join(one, "d/*"))
	require.NoError(t, err)
	assert.Len(t, names, 4)
	require.NoError(t, os.Remove(goOn))
	require.NoError(t, job.Wait(t.Context()))
	assert.Equal(t, "one\ntwo\n", read(one, "d/a"), "the job has ended")
}
