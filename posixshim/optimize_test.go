//go:build !race

package posixshim_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEveryOptimization builds the preloaded library with other optimization levels than the default, and runs
// programs that depend on its use of the stack: vfork, dlopen, exec, signals. In the build with -fsanitize=undefined,
// undefined behaviour ends the program.
func TestEveryOptimization(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the library twice")
	}
	lib, err := libraries()
	require.NoError(t, err)
	programs := []*exec.Cmd{exec.Command("sh", "testdata/shell.sh")}
	for _, source := range []string{"calls.c", "forks.c", "interrupts.c"} {
		programs = append(programs, exec.Command(compile(t, "gcc", source, "-pthread")))
	}
	want := make([]string, len(programs))
	for i, p := range programs {
		want[i] = output(t, exec.Command(p.Path, append(p.Args[1:], t.TempDir())...))
	}
	for name, flags := range map[string][]string{
		"O0, UBSan": {"SHIM_OPTIMIZE=-O0", "SHIM_EXTRA=-fsanitize=undefined -fno-sanitize-recover=undefined"},
		"O1":        {"SHIM_OPTIMIZE=-O1"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			preload := filepath.Join(dir, "libnvmecr.so")
			args := append([]string{"-C", "..", "-f", "posixshim/shim.mk", "BIN=" + dir, preload}, flags...)
			out, err := exec.Command("make", args...).CombinedOutput()
			require.NoError(t, err, string(out))
			const runtime = "libnvmecr-plain.so"
			require.NoError(t, os.Symlink(filepath.Join(lib, runtime), filepath.Join(dir, runtime)))
			for i, p := range programs {
				s := newStore(t)
				s.preload = preload
				got := output(t, s.command(p.Path, append(p.Args[1:], mount)...))
				assert.Empty(t, diff(t, want[i], got), p.String())
			}
			s := newStore(t).view()
			s.preload = preload
			module := compile(t, "gcc", "library.c", "-shared", "-fPIC", "-DNAME=probe")
			assert.Contains(t, output(t, s.command("sh", "-c", "cp "+module+" /nvmecr/probe.so && python3 -c \"import ctypes; print(ctypes.CDLL('/nvmecr/probe.so').probe())\"")), "begin probe")
		})
	}
}
