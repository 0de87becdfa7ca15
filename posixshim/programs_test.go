//go:build !race

package posixshim_test

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Programs and scripts of the mount.

func TestExecutes(t *testing.T) {
	program := compile(t, "gcc", "executes.c", "-Wall", "-Wextra", "-Werror")
	local, beside, elsewhere := t.TempDir(), t.TempDir(), t.TempDir()
	s := newStore(t)
	for _, c := range []struct {
		what string
		runs int // at least so often something was executed
	}{
		{"make", 0},
		{"fork", 100},
		{"vfork", 100},
		{"search", 80},
		{"odd", 15},
	} {
		t.Run(c.what, func(t *testing.T) {
			want := output(t, exec.Command(program, local, beside, c.what))
			got := output(t, s.command(program, mount, elsewhere, c.what))
			assert.Empty(t, diff(t, want, got))
			assert.GreaterOrEqual(t, strings.Count(got, "executed"), c.runs)
		})
	}
}

func TestProgramsOfTheMount(t *testing.T) {
	for _, shell := range []string{"dash", "bash"} {
		t.Run(shell, func(t *testing.T) {
			for _, name := range []string{shell, "make", "python3", "perl"} {
				tool(t, name)
			}
			want := output(t, exec.Command("env", "LC_ALL=C.UTF-8", shell, "testdata/programs.sh", t.TempDir(), t.TempDir(), shell))
			got := output(t, newStore(t).command(shell, "testdata/programs.sh", mount, t.TempDir(), shell))
			assert.Empty(t, diff(t, want, got))
			assert.Contains(t, got, "#define SIZE 8\n")
		})
	}
}

// A large program is copied as it is; one that cannot be read is not executed.
func TestLargeProgram(t *testing.T) {
	const end = "the end of this program"
	s := newStore(t)
	program := compile(t, "gcc", "large.c")
	f, err := os.OpenFile(program, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte(end), 40<<20-int64(len(end))) // what is behind the program is its own
	require.NoError(t, err)
	require.NoError(t, f.Close())
	execute := []string{"-c", "cd " + mount + " && ./large " + strconv.Itoa(len(end)) + "; echo $?"}
	output(t, s.command("cp", program, mount+"/large"))
	assert.Equal(t, "41943040 "+end+"\n0\n", output(t, s.command("sh", execute...)))

	stdout, stderr, err := finish(t, s.command("sh", "-c", "cd "+mount+"; ulimit -f 100; ./large; echo $?"))
	require.NoError(t, err)
	assert.Equal(t, "126\n", stdout)
	assert.Contains(t, stderr, "File too large")

	image, err := os.OpenFile(strings.TrimPrefix(s.target, "file:"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { _ = image.Close() }()
	content, err := unix.Mmap(int(image.Fd()), 0, 512<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	at := bytes.Index(content, []byte(end))
	require.Positive(t, at)
	content[at]++
	require.NoError(t, unix.Munmap(content))
	stdout, stderr, err = finish(t, s.command("sh", execute...))
	require.NoError(t, err)
	assert.Equal(t, "126\n", stdout)
	assert.Contains(t, stderr, "Input/output error")
}
