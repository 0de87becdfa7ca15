package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// alone returns a copy of nvmecr in an otherwise empty directory.
func alone(t *testing.T) (program string) {
	text, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	program = filepath.Join(dir, "nvmecr")
	require.NoError(t, os.WriteFile(program, text, 0o700))
	return program
}

// TestBenchIsExecuted checks that the benchmark runs in the process of the command, with the same terminal, signals, arguments and
// environment.
func TestBenchIsExecuted(t *testing.T) {
	program := alone(t)
	script := "#!/bin/sh\necho \"$$ $0\"; echo \"$VARIABLE\"; [ $# -eq 0 ] || printf '<%s>\\n' \"$@\"\n" +
		"[ -z \"$DIE\" ] || kill -TERM $$\nread word; echo \"$word\"; exit 7\n"
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(program), benchProgram), []byte(script), 0o700))
	start := func(t *testing.T, variable string, args ...string) (*exec.Cmd, *strings.Builder) {
		var out strings.Builder
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), asNvmecr+"=nvmecr", "VARIABLE=a value", variable)
		cmd.Stdin, cmd.Stdout = strings.NewReader("typed\n"), &out
		require.NoError(t, cmd.Start())
		return cmd, &out
	}
	for name, tt := range map[string]struct{ args, want []string }{
		"nothing":                {[]string{"bench"}, nil},
		"flags":                  {[]string{"bench", "checkpoint", "--ranks", "4", "-n=3", "--help"}, []string{"checkpoint", "--ranks", "4", "-n=3", "--help"}},
		"words":                  {[]string{"bench", "a b", "", "--", "-x"}, []string{"a b", "", "--", "-x"}},
		"help":                   {[]string{"help", "bench"}, []string{"help"}},
		"help of an experiment":  {[]string{"help", "bench", "scale"}, []string{"help", "scale"}},
		"completion":             {[]string{"__complete", "bench", "che"}, []string{"__complete", "che"}},
		"completion without why": {[]string{"__completeNoDesc", "bench", "goals", "--on", ""}, []string{"__completeNoDesc", "goals", "--on", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, out := start(t, "DIE=", tt.args...)
			require.Error(t, cmd.Wait())
			assert.Equal(t, 7, cmd.ProcessState.ExitCode())
			want := []string{fmt.Sprint(cmd.Process.Pid, " ", filepath.Join(filepath.Dir(program), benchProgram)), "a value"}
			for _, w := range tt.want {
				want = append(want, "<"+w+">")
			}
			assert.Equal(t, append(want, "typed", ""), strings.Split(out.String(), "\n"))
		})
	}
	t.Run("signal", func(t *testing.T) {
		cmd, _ := start(t, "DIE=1", "bench")
		require.Error(t, cmd.Wait())
		ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
		assert.True(t, ws.Signaled() && ws.Signal() == syscall.SIGTERM, "%v", cmd.ProcessState)
	})
}

// TestBenchIsMissing checks that a command without the benchmark names the remedy, and still completes the word.
func TestBenchIsMissing(t *testing.T) {
	program := alone(t)
	run := func(args ...string) (string, int) {
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), asNvmecr+"=nvmecr")
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	missing := "nvmecr: bench is a separate program: nvmecr-bench is not beside " + program + ": run make, or reinstall\n"
	for _, args := range []string{"bench", "bench --help", "bench goals", "help bench"} {
		said, code := run(strings.Fields(args)...)
		assert.Equal(t, missing, said, args)
		assert.Equal(t, 1, code, args)
	}
	for _, args := range []string{"--help", "__complete ben", "__complete bench"} {
		said, code := run(strings.Fields(args)...)
		assert.Regexp(t, `bench\s+Measure this machine`, said, args)
		assert.Zero(t, code, args)
	}

	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(program), benchProgram), []byte("#!/nowhere\n"), 0o700))
	said, code := run("bench")
	assert.Contains(t, said, filepath.Join(filepath.Dir(program), benchProgram)+": ")
	assert.Equal(t, 1, code)
}

// TestNothingOfTheBenchmark checks that neither the command nor the runtime contains packages of the benchmark.
func TestNothingOfTheBenchmark(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "nvmecr/cmd/nvmecr", "nvmecr/cmd/libnvmecr").Output()
	require.NoError(t, err)
	packages := strings.Fields(string(out))
	require.Contains(t, packages, "nvmecr/cmd/nvmecr/command")
	for _, p := range packages {
		assert.NotRegexp(t, `^(nvmecr/bench|gonum\.org|git\.sr\.ht|codeberg\.org|golang\.org/x/image)(/|$)`, p)
	}
}
