//go:build spdk

package spdk_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/busy"
	"nvmecr/internal/shortdir"
	"nvmecr/internal/spdklib"
	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/spdk"
	"nvmecr/nvmf/tcp/fakepeer"
)

// soon is how much longer than its time-out a call may take, since SPDK has to
// disconnect first.
const soon = 2 * time.Second

// TestSilentFromNth has the target stop answering at each step of Open. Each Open must
// end with its context, and must not prevent later connections.
func TestSilentFromNth(t *testing.T) {
	const wait, steps = 150 * time.Millisecond, 100
	var asked, silentFrom atomic.Int32
	id := attended(t, func(*fakepeer.Conn, *nvme.SQE) error { return nil },
		func(*nvme.SQE) bool { return asked.Add(1) > silentFrom.Load() })
	o := spdk.Options{HostNQN: hostName(0), KeepAlive: -1}
	silentFrom.Store(steps)
	require.NoError(t, openDevice(t, id, o).Close()) // the first device initializes SPDK, which takes long
	open := func(n int32) (nvmf.Reserver, error) {
		asked.Store(0)
		silentFrom.Store(n)
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		clock := busy.Start(t)
		d, err := spdk.Open(ctx, id, o)
		assert.Less(t, clock.Now(), wait+soon, "at step %d", n)
		return d, err
	}
	attempts := 0
	for n := int32(0); ; attempts++ {
		require.Less(t, n, int32(steps), "Open never succeeds")
		d, err := open(n)
		if err == nil {
			silentFrom.Store(steps)
			assert.NoError(t, d.Close())
			break
		}
		require.ErrorContains(t, err, "has not answered", "at step %d", n)
		assert.ErrorContains(t, err, id.String())
		n += int32(attempts % 2) // two attempts for each step
	}
	assert.Greater(t, attempts, 24, "fewer attempts than the limit of connections to one target")
}

// stoppable is a process of SPDK's target, which a test stops with SIGSTOP.
type stoppable struct {
	*os.Process
	id nvmf.TransportID
}

const stoppableConfig = `{"subsystems": [
	{"subsystem": "bdev", "config": [
		{"method": "bdev_malloc_create", "params": {"name": "memory", "num_blocks": 8192, "block_size": 4096}}]},
	{"subsystem": "nvmf", "config": [
		{"method": "nvmf_create_transport", "params": {"trtype": "TCP"}},
		{"method": "nvmf_create_subsystem", "params": {"nqn": "%[1]s", "allow_any_host": true, "serial_number": "STOPPABLE"}},
		{"method": "nvmf_subsystem_add_ns", "params": {"nqn": "%[1]s", "namespace": {"bdev_name": "memory", "nsid": 1}}},
		{"method": "nvmf_subsystem_add_listener", "params": {"nqn": "%[1]s",
			"listen_address": {"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "%[2]s"}}}]}]}`

func startStoppable(t *testing.T) *stoppable {
	program, err := exec.LookPath(filepath.Join(os.Getenv("NVMECR_SPDK"), "nvmf_tgt"))
	if err != nil {
		t.Skip("nvmf_tgt is not in PATH, and not in a directory that NVMECR_SPDK names")
	}
	r := embedded(t, 512, 0) // finds a free port
	r.stop(t)
	s := &stoppable{id: r.id(t)}
	dir := t.TempDir()
	config := filepath.Join(dir, "config")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, stoppableConfig, targetNQN, s.id.Service), 0o600))
	said, err := os.Create(filepath.Join(dir, "said"))
	require.NoError(t, err)
	defer said.Close()
	cmd := exec.Command(program, "--no-huge", "-s", "512", "-m", "1", "-u", "--disable-cpumask-locks", "-r", filepath.Join(shortdir.New(t), "rpc"), "-c", config)
	if path := spdklib.Path("../.."); path != "" {
		cmd.Env = append(os.Environ(), spdklib.Variable+"="+path)
	}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	s.Process = cmd.Process
	t.Cleanup(func() {
		assert.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // reports that the process was killed
		if t.Failed() {
			text, _ := os.ReadFile(said.Name())
			t.Logf("SPDK's target said:\n%s", text)
		}
	})
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(said.Name())
		return strings.Contains(string(text), "Target Listening")
	}, time.Minute, 10*time.Millisecond)
	return s
}

// TestStopped stops and continues SPDK's target.
func TestStopped(t *testing.T) {
	s := startStoppable(t)
	signal := func(sig syscall.Signal) func(*testing.T) {
		return func(t *testing.T) { require.NoError(t, s.Signal(sig)) }
	}
	halted{s.id, signal(syscall.SIGSTOP), signal(syscall.SIGCONT), time.Second, soon}.test(t)
}

// TestPeerStopped stops and continues another target, with the commands in takeEnv and bringEnv.
func TestPeerStopped(t *testing.T) {
	id := peer(t)
	take, bring := os.Getenv(takeEnv), os.Getenv(bringEnv)
	if take == "" || bring == "" {
		t.Skipf("%s and %s are not set to commands that stop and continue the target", takeEnv, bringEnv)
	}
	halted{id, func(t *testing.T) { shell(t, take) }, func(t *testing.T) { shell(t, bring) }, 4 * time.Second, 5 * soon}.test(t)
}

// halted is a target that can be stopped.
type halted struct {
	id           nvmf.TransportID
	stop, goOn   func(*testing.T)
	wait, margin time.Duration // the time-out of calls, and how much longer calls may take
}

// test checks that all calls end with their context while the target is stopped. Their
// errors must state the reason. After the target continues, the device must work again.
func (h halted) test(t *testing.T) {
	o := spdk.Options{ConnectTimeout: 20 * h.wait, CommandTimeout: h.wait}
	d := openDevice(t, h.id, o)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	q := openQueue(t, d, 4)
	block := make([]byte, d.Identity().LBASize)
	read := func() error { return do(q, transfer(nvmf.Read, d, 0, block)) }
	require.NoError(t, read())
	for name, call := range map[string]func(ctx context.Context) error{
		"open": func(ctx context.Context) error {
			_, err := spdk.Open(ctx, h.id, o)
			return err
		},
		"queue": func(ctx context.Context) error {
			_, err := d.OpenQueue(ctx, 1)
			return err
		},
		"reserve": func(ctx context.Context) error { return d.Reserve(ctx, 7) },
		"reset":   q.Reset,
	} {
		t.Run(name, func(t *testing.T) {
			h.stop(t)
			if name == "reset" {
				require.ErrorIs(t, read(), nvmf.ErrConnectionLost)
			}
			ctx, cancel := context.WithTimeout(t.Context(), h.wait)
			defer cancel()
			began, clock := time.Now(), busy.Start(t)
			err := call(ctx)
			t.Logf("after %s: %v", time.Since(began).Round(time.Millisecond), err)
			assert.Less(t, clock.Now(), h.wait+h.margin)
			h.goOn(t)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			for _, part := range []string{h.id.String(), "has not answered", "stopped, overloaded or cut off", "--timeout"} {
				assert.ErrorContains(t, err, part)
			}
			h.works(t, d, q, read)
		})
	}
}

// works checks that a device and a queue work, after a Reset if they have lost their connection.
func (h halted) works(t *testing.T, d nvmf.Device, q nvmf.Queue, read func() error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := read(); err != nil { // the call that timed out may have ended the association
		require.ErrorIs(t, err, nvmf.ErrConnectionLost)
		require.NoError(t, q.Reset(ctx))
		require.NoError(t, read())
	}
	other, err := d.OpenQueue(ctx, 1)
	require.NoError(t, err)
	assert.NoError(t, other.Close())
}
