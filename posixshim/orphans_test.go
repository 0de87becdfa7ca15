//go:build !race

package posixshim_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestOrphans checks that a forked child works on after the end of its parent: nvmecr serve makes its calls.
func TestOrphans(t *testing.T) {
	program := compile(t, "gcc", "orphans.c", "-Wall", "-Wextra", "-Wno-unused-result", "-Werror", "-pthread")
	for _, how := range []string{"exit", "_exit", "exec", "kill"} {
		t.Run(how, func(t *testing.T) {
			want := output(t, exec.Command(program, t.TempDir(), how))
			assert.Empty(t, diff(t, want, output(t, newStore(t).command(program, mount, how))))
		})
	}
}

// TestOrphansWithoutServer checks that such a child gets EIO, and prints one line, where nvmecr serve does not run, and where the
// process is not of a run.
func TestOrphansWithoutServer(t *testing.T) {
	program := compile(t, "gcc", "orphans.c", "-Wno-unused-result", "-pthread")
	for _, run := range []string{"NVMECR_RUN=5e8c5f67-6b1c-4f3a-9c0f-3f1a52a1c1a4", "NVMECR_RUN="} {
		cmd := newStore(t).command(program, mount, "kill")
		cmd.Env = append(cmd.Env, run)
		stdout, stderr, err := finish(t, cmd)
		assert.Error(t, err)
		assert.Equal(t, "open(\"relative\", O_WRONLY | O_CREAT | O_EXCL, 0640): EIO\n", stdout)
		assert.Regexp(t, `^nvmecr: process \d+ cannot use /nvmecr: its parent has ended, and there is no nvmecr serve of its run\n$`, stderr)
	}
}
