//go:build interop

package interop

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/jsonrpc"
	"nvmecr/internal/shortdir"
	"nvmecr/internal/spdklib"
	"nvmecr/nvmf"
)

// TestMain sets the library path of SPDK's programs, also for copying the libraries to a guest.
func TestMain(m *testing.M) {
	if path := spdklib.Path("../.."); path != "" {
		os.Setenv(spdklib.Variable, path)
	}
	os.Exit(m.Run())
}

// spdkProgram finds one of SPDK's programs, or skips the test.
func spdkProgram(t *testing.T, name string) string {
	t.Helper()
	if dir := os.Getenv("NVMECR_SPDK"); dir != "" {
		name = filepath.Join(dir, name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not in PATH, and not in a directory that NVMECR_SPDK names: SPDK is not installed", filepath.Base(name))
	}
	return path
}

// runTarget runs the target until standard input ends, which happens at the latest when this process ends.
const runTarget = `"$@" </dev/null >&2 &
cat >/dev/null
kill $! 2>/dev/null
wait $!
`

// spdkTarget is a process of SPDK's target.
type spdkTarget struct {
	*jsonrpc.Client
	socket string
}

// startProcess starts SPDK's target; it polls one core until the test ends,
// unless --interrupt-mode is among its arguments.
func startProcess(t *testing.T, args ...string) *spdkTarget {
	program := spdkProgram(t, "nvmf_tgt")
	socket := filepath.Join(shortdir.New(t), "rpc")
	line := append([]string{"-c", runTarget, "sh", program, "--no-huge", "-s", "1536",
		"--iova-mode=va", "-m", "0x1", "--no-pci", "--disable-cpumask-locks", "-r", socket}, args...)
	cmd := exec.Command("sh", line...)
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	lifeline, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		lifeline.Close()
		kill := time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		_ = cmd.Wait() // the status does not matter
		kill.Stop()
		if t.Failed() {
			t.Log("SPDK's target said:\n" + shortest(said.Bytes()))
		}
	})
	for range 1000 {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	rpc := jsonrpc.NewClient(socket)
	t.Cleanup(func() { rpc.Close() })
	return &spdkTarget{rpc, socket}
}

type params = map[string]any

// call calls a method, which must succeed.
func call(t *testing.T, rpc *spdkTarget, method string, p params) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var args any
	if p != nil {
		args = p
	}
	require.NoError(t, rpc.Call(ctx, method, args, nil), method)
}

// startTransport starts SPDK's target without subsystems.
func startTransport(t *testing.T, args ...string) *spdkTarget {
	rpc := startProcess(t, args...)
	call(t, rpc, "framework_wait_init", nil)
	call(t, rpc, "nvmf_create_transport", params{"trtype": "TCP", "max_io_size": 1 << 20})
	return rpc
}

// startSPDK starts SPDK's target with namespaces in memory.
func startSPDK(t *testing.T) *running {
	rpc := startTransport(t)
	port := freePort(t)
	r := &running{subsystems: map[nvmf.Bytes]nvmf.TransportID{}}
	for _, lba := range lbaSizes {
		nqn := subsystemNQN(lba)
		call(t, rpc, "nvmf_create_subsystem", params{"nqn": nqn, "serial_number": fmt.Sprint("INTEROP", lba), "allow_any_host": true, "max_namespaces": 32})
		for _, nsid := range nsids {
			name := fmt.Sprintf("memory-%d-%d", lba, nsid)
			spdkMemory(t, rpc, name, lba)
			call(t, rpc, "nvmf_subsystem_add_ns", params{"nqn": nqn, "namespace": params{"bdev_name": name, "nsid": nsid}})
		}
		spdkListen(t, rpc, nqn, port)
		r.subsystems[lba] = at(port, nqn)
	}
	r.auth = spdkAuth(t, rpc, port)
	return r
}

func spdkMemory(t *testing.T, rpc *spdkTarget, name string, lba nvmf.Bytes) {
	call(t, rpc, "bdev_malloc_create", params{"name": name, "num_blocks": uint64(size / lba), "block_size": uint64(lba)})
}

func spdkListen(t *testing.T, rpc *spdkTarget, nqn string, port int) {
	call(t, rpc, "nvmf_subsystem_add_listener", params{"nqn": nqn,
		"listen_address": params{"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": fmt.Sprint(port)}})
}

// spdkAuth creates the subsystem that requires authentication.
func spdkAuth(t *testing.T, rpc *spdkTarget, port int) *authenticating {
	a := &authenticating{id: at(port, authNQN), host: newHost(), keys: newKeys(), groups: allGroups}
	addKey(t, rpc, "host", a.keys.Host)
	addKey(t, rpc, "target", a.keys.Controller)
	call(t, rpc, "nvmf_create_subsystem", params{"nqn": authNQN, "serial_number": "INTEROPAUTH"})
	spdkMemory(t, rpc, "auth", 4096)
	call(t, rpc, "nvmf_subsystem_add_ns", params{"nqn": authNQN, "namespace": params{"bdev_name": "auth"}})
	call(t, rpc, "nvmf_subsystem_add_host", params{"nqn": authNQN, "host": a.host, "dhchap_key": "host", "dhchap_ctrlr_key": "target"})
	spdkListen(t, rpc, authNQN, port)
	return a
}

// addKey adds a key to SPDK's target under a name.
func addKey(t *testing.T, rpc *spdkTarget, name string, key interface{ Reveal() string }) {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(key.Reveal()), 0o600))
	call(t, rpc, "keyring_file_add_key", params{"name": name, "path": path})
}

// spdkName returns the name of a hash or group in SPDK and Linux: "sha256", "null".
func spdkName(name string) string {
	return strings.ToLower(strings.ReplaceAll(name, "-", ""))
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
