package spdk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

const root = "../.."

// build builds the command and the libraries with SPDK in a directory, and returns it; "" without SPDK.
var build = sync.OnceValues(func() (string, error) {
	paths, err := exec.Command(root + "/scripts/spdk-rpath.sh").Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", nil // pkg-config does not find SPDK
	} else if err != nil {
		return "", err
	}
	bin, err := filepath.Abs(filepath.Join(root, "build/spdk"))
	if err != nil {
		return "", err
	}
	for _, argv := range [][]string{
		{"go", "build", "-tags", "spdk", "-o", bin + "/nvmecr", "./cmd/nvmecr"},
		{"make", "-s", "-f", "posixshim/shim.mk", "TAGS=-tags spdk", "BIN=" + bin, bin + "/libnvmecr.so", bin + "/libnvmecr-plain.so"},
	} {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=1", "CGO_LDFLAGS="+os.Getenv("CGO_LDFLAGS")+" "+string(paths))
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%v: %w\n%s", argv, err, out)
		}
	}
	return bin, nil
})

// bench runs the programs of a test.
type bench struct {
	*demo.Stage
	t       *testing.T
	targets map[string]string // by name
	user    uint32
}

func newBench(t *testing.T) *bench {
	bin, err := build()
	require.NoError(t, err)
	if bin == "" {
		t.Skip("pkg-config does not find SPDK")
	}
	stage, err := demo.NewStage(bin + "/nvmecr")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, stage.Close()) })
	job, err := stage.Start([]string{stage.Nvmecr, "target", "--listen", "127.0.0.1:0", "--namespace", "mem:1G"})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return job.Ended() || len(job.Stdout.Lines()) > 0 }, time.Minute, time.Millisecond)
	require.NotEmpty(t, job.Stdout.Lines(), "the target has ended")
	b := &bench{Stage: stage, t: t, targets: map[string]string{"ours": job.Stdout.Lines()[0]}}
	if peer := os.Getenv("NVMECR_TEST_SPDK"); peer != "" {
		b.targets["SPDK's"] = peer
	}
	return b
}

// each runs a test on each target.
func (b *bench) each(test func(t *testing.T, target string)) {
	t := b.t
	for name, target := range b.targets {
		t.Run(name, func(t *testing.T) {
			defer b.release(t, target) // the next test may run as another user
			test(t, target)
		})
	}
}

// release frees the target.
func (b *bench) release(t *testing.T, target string) {
	cmd := exec.Command(b.Nvmecr, "release", "--target", target)
	cmd.Env, cmd.Dir, cmd.SysProcAttr = b.Environ(), b.Dir, b.credential()
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
}

func (b *bench) credential() *syscall.SysProcAttr {
	if b.user == 0 {
		return nil
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: b.user, Gid: b.user}}
}

// run runs a program with a driver and returns its output and status.
func (b *bench) run(t *testing.T, driver, target string, flags []string, argv ...string) (stdout, stderr string, state *os.ProcessState) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args := append([]string{"run", "--driver", driver, "--target", target}, flags...)
	cmd := exec.CommandContext(ctx, b.Nvmecr, append(append(args, "--"), argv...)...)
	cmd.Env, cmd.Dir = append(b.Environ(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "LC_ALL=C.UTF-8"), b.Dir
	cmd.SysProcAttr = b.credential()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	require.NoError(t, ctx.Err(), "%v hangs: %s%s", argv, out.String(), errs.String())
	if exit := new(exec.ExitError); !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	said := errs.String()
	if strings.HasPrefix(said, "nvmecr: store ") { // the line about the store
		_, said, _ = strings.Cut(said, "\n")
	}
	return out.String(), said, cmd.ProcessState
}

// ok is run for a program that must succeed without messages.
func (b *bench) ok(t *testing.T, target string, flags []string, argv ...string) string {
	t.Helper()
	stdout, stderr, state := b.run(t, "spdk", target, flags, argv...)
	require.True(t, state.Success(), "%s\n%s%s", state, stdout, stderr)
	assert.Empty(t, stderr)
	return stdout
}

// fresh begins with an empty store.
var fresh = []string{"--fresh"}

// compile builds a program.
func compile(t *testing.T, source string) string {
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not installed")
	}
	program := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	out, err := exec.Command(compiler, "-O1", "-pthread", "-o", program, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// TestSameByEitherDriver checks that programs which try to interfere with the runtime have the same output with both drivers.
func TestSameByEitherDriver(t *testing.T) {
	b := newBench(t)
	b.each(func(t *testing.T, target string) {
		for _, name := range []string{"closes", "openers", "forks", "vforks", "streams", "signals", "raw", "interrupts"} {
			t.Run(name, func(t *testing.T) {
				program := compile(t, filepath.Join(root, "posixshim/testdata", name+".c"))
				want, _, state := b.run(t, "go", target, fresh, program, "/nvmecr")
				require.True(t, state.Success(), "%s\n%s", state, want)
				got, stderr, state := b.run(t, "spdk", target, fresh, program, "/nvmecr")
				require.True(t, state.Success(), "%s\n%s%s", state, got, stderr)
				assert.Equal(t, want, got)
				assert.NotRegexp(t, "SPDK|EAL", stderr, "some of them say something there themselves")
			})
		}
	})
}

// TestGuest checks that the driver does not change the process, except for its files.
func TestGuest(t *testing.T) {
	b := newBench(t)
	program := compile(t, "testdata/guest.c")
	b.each(func(t *testing.T, target string) {
		stdout, stderr, state := b.run(t, "spdk", target, fresh, program, "/nvmecr", "4")
		require.True(t, state.Success(), "%s\n%s%s", state, stdout, stderr)
		assert.Equal(t, `a: wrote 1, read 1, closed 1
where it runs: same 1
SIGBUS: 1
b: wrote 1, read 1, closed 1
c: wrote 1, read 1, closed 1
a: wrote 1, read 1, closed 1
a: wrote 1, read 1, closed 1
0
busy: 0
`, stdout)
		assert.Equal(t, "guest: hello\n", stderr, "the system's log has its name")
		assert.Equal(t, "flushed at the end\n", b.ok(t, target, nil, "cat", "/nvmecr/last"))
	})
}

// TestCrash checks that synced data exists when the program runs again.
func TestCrash(t *testing.T) {
	b := newBench(t)
	b.each(func(t *testing.T, target string) {
		_, _, state := b.run(t, "spdk", target, fresh, "sh", "-c", `exec perl -e '
			open(F, ">", "/nvmecr/f"); print F "$_\n" for 1..100000; F->flush; F->sync; kill "KILL", $$'`)
		require.False(t, state.Success())
		want, err := exec.Command("seq", "100000").Output()
		require.NoError(t, err)
		assert.Equal(t, string(want), b.ok(t, target, nil, "cat", "/nvmecr/f"))
	})
}

// TestExec checks that files stay usable over exec.
func TestExec(t *testing.T) {
	b := newBench(t)
	b.each(func(t *testing.T, target string) {
		assert.Equal(t, "one\ntwo\nthree\n", b.ok(t, target, fresh, "sh", "-c",
			`exec 4>/nvmecr/f; echo one >&4; exec sh -c 'echo two >&4; sh -c "echo three >&4"; exec 4>&-; exec cat /nvmecr/f'`))
	})
}

// TestVersion checks that the command prints the version of SPDK.
func TestVersion(t *testing.T) {
	b := newBench(t)
	out, err := exec.Command(b.Nvmecr, "version").Output()
	require.NoError(t, err)
	assert.Regexp(t, `(?m)^drivers: go, spdk \d+\.\d+`, string(out))
}

// TestOtherUser runs as an unprivileged user, with files that processes of another user have left.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: every other test is one of another user")
	}
	b := newBench(t)
	require.NoError(t, filepath.WalkDir(b.Dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, 65534, 65534))
	}))
	b.user = 65534
	b.each(func(t *testing.T, target string) {
		assert.Equal(t, "mine\n", b.ok(t, target, fresh, "sh", "-c", "echo mine >/nvmecr/f; cat /nvmecr/f"))
	})
}

// TestManyRanks runs many more polling ranks than processors.
func TestManyRanks(t *testing.T) {
	const ranks = 16
	launcher, err := exec.LookPath("mpirun.openmpi")
	if err != nil {
		t.Skip("mpirun.openmpi is not installed")
	}
	b := newBench(t)
	b.each(func(t *testing.T, target string) {
		stdout := b.ok(t, target, fresh,
			demo.MPIRun(launcher, ranks, "sh", "-c", `f=/nvmecr/of.$OMPI_COMM_WORLD_RANK
				yes $OMPI_COMM_WORLD_RANK | head -c 8M | dd of=$f bs=64k iflag=fullblock conv=fsync status=none
				yes $OMPI_COMM_WORLD_RANK | head -c 8M | cmp - $f && echo same`)...)
		assert.Equal(t, strings.Repeat("same\n", ranks), stdout)
	})
}
