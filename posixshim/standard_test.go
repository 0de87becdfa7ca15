//go:build !race

package posixshim_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// standard builds standard.cc and the library that it needs. The library keeps the standard streams before or after the preloaded
// library is initialized.
func standard(t *testing.T, library, program []string) string {
	dir := t.TempDir()
	so := filepath.Join(dir, "libkeeps.so")
	out, err := exec.Command(tool(t, "g++"), append([]string{"-shared", "-fPIC", "-o", so, "testdata/keeps.cc"}, library...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return compile(t, "g++", "standard.cc", append([]string{so, "-Wl,-rpath," + dir}, program...)...)
}

// TestStandardStreams checks standard input, output and error in files of the mount, for C++ streams, for code that
// has kept the streams, and for system calls. They must behave as in a local directory. Programs of GCC 12 initialize
// std::cout themselves. With later versions libstdc++ initializes it, before all other libraries.
func TestStandardStreams(t *testing.T) {
	for _, c := range []struct {
		name             string
		library, program []string
	}{
		{"each initialises", nil, nil},
		{"the first initialises", []string{"-Wl,-z,initfirst"}, nil},
		{"a copy of libstdc++", []string{"-static-libstdc++"}, []string{"-static-libstdc++"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			program := standard(t, c.library, c.program)
			local := t.TempDir()
			want := strings.ReplaceAll(combined(t, exec.Command("sh", "testdata/standard.sh", local, program)), local, mount)
			got := combined(t, newStore(t).command("sh", "testdata/standard.sh", mount, program))
			assert.Empty(t, diff(t, want, got))
			assert.Contains(t, want, "nor this")
		})
	}
}

// combined returns what a command prints on stdout and stderr.
func combined(t *testing.T, cmd *exec.Cmd) string {
	stdout, stderr, err := finish(t, cmd)
	require.NoError(t, err, stderr)
	return stdout + stderr
}

// TestStandardStreamsOfRanks checks standard output in files of the mount for the ranks of a job.
func TestStandardStreamsOfRanks(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			s := newStore(t, fmt.Sprintf(runtimeOf, mpi.name), fmt.Sprintf(runtimeOf, "plain"))
			program := standard(t, nil, nil)
			const script = `"$1" given > "$2/log" 2> "$2/error"; "$1" dup2 "$2/own" 2> /dev/null; exec >> "$2/log"; grep -c . "$2/log" "$2/own" >&2`
			stdout, stderr, err := finish(t, s.ranks(mpi.mpirun, "sh", "-c", script, "sh", program, mount))
			require.NoError(t, err, stderr)
			assert.Empty(t, stdout)
			want := ""
			for range 4 {
				want += mount + "/log:11\n" + mount + "/own:11\n"
			}
			assert.Len(t, stderr, len(want), stderr) // the order of the lines is not defined
			assert.NotContains(t, stderr, "nvmecr:")
		})
	}
}
