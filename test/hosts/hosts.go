package hosts

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	_ "embed"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

//go:embed host.sh
var hostScript string

// User is the id of the user, and of the group, of commands on hosts: nobody.
const User = 65534

// A Network is a set of connected hosts.
type Network struct {
	t     testing.TB
	dir   string // directory in /tmp that the hosts share
	board *process
	hosts map[string]*Host
}

// A Host is one of a Network.
type Host struct {
	Name    string
	Address string

	mac     string // kept by Boot, since other hosts cache it
	network *Network
	init    *process
}

// New creates hosts that share dir, which then belongs to the user. They are removed at the end of the test. The test is skipped if the
// machine does not permit hosts.
func New(t testing.TB, dir string, names ...string) *Network {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("hosts are namespaces of the kernel: only root makes them")
	}
	for _, program := range []string{"unshare", "nsenter", "ip", "bash", "python3"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("hosts are made by %s, which is not installed", program)
		}
	}
	n := &Network{t: t, dir: filepath.Join(dir, "hosts"), hosts: make(map[string]*Host)}
	require.NoError(t, os.Mkdir(n.dir, 0o755))
	for i, name := range names {
		n.hosts[name] = &Host{Name: name, Address: fmt.Sprintf("10.77.0.%d", i+1), mac: fmt.Sprintf("02:00:0a:4d:00:%02x", i+1), network: n}
	}
	n.writeFiles()
	require.NoError(t, chown(dir))
	board, err := start("unshare", "--net", "sh", "-c", "ip link add bridge type bridge && ip link set bridge up && echo ready && read x")
	if err != nil {
		t.Skipf("no bridge between hosts: %v", err)
	}
	n.board = board
	t.Cleanup(board.end)
	for _, name := range names {
		h := n.hosts[name]
		require.NoError(t, h.start(), name)
		t.Cleanup(func() { h.init.end() })
	}
	n.serveAgent()
	return n
}

// writeFiles writes the files that differ from the machine's own.
func (n *Network) writeFiles() {
	table := "127.0.0.1 localhost\n"
	for name, h := range n.hosts {
		table += h.Address + " " + name + "\n"
		n.write(name+".machine", strings.ReplaceAll(uuid.NewString(), "-", "")+"\n", 0o644)
		n.write(name+".boot", uuid.NewString()+"\n", 0o644)
	}
	n.write("hosts", table, 0o644)
	n.write("host.sh", hostScript, 0o755)
	n.write("agent.py", agentScript, 0o755)
}

func (n *Network) write(name, text string, mode os.FileMode) {
	require.NoError(n.t, os.WriteFile(filepath.Join(n.dir, name), []byte(text), mode))
}

// chown gives the user the content of a directory.
func chown(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, User, User))
	})
}

// Host returns the host of that name.
func (n *Network) Host(name string) *Host {
	require.Contains(n.t, n.hosts, name)
	return n.hosts[name]
}

// start boots the host and plugs it in.
func (h *Host) start() (err error) {
	h.init, err = start("unshare", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc",
		"bash", filepath.Join(h.network.dir, "host.sh"), filepath.Dir(h.network.dir), h.Name)
	if err != nil {
		return err
	}
	pid, board := strconv.Itoa(h.init.first), strconv.Itoa(h.network.board.first)
	for _, line := range []string{
		"ip link add dev " + h.Name + " netns " + board + " type veth peer name eth0 address " + h.mac + " netns " + pid,
		"nsenter --target " + board + " --net ip link set " + h.Name + " master bridge up",
		"nsenter --target " + pid + " --net ip addr add " + h.Address + "/24 dev eth0",
		"nsenter --target " + pid + " --net ip link set eth0 up",
	} {
		if err := call(line); err != nil {
			return err
		}
	}
	return nil
}

// In returns the command line that runs argv on the host, as the user, in the directory that hosts share.
func (h *Host) In(argv ...string) []string {
	id := strconv.Itoa(User)
	return append(h.Root("setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--", "env", "-C", filepath.Dir(h.network.dir)), argv...)
}

// Root returns the command line that runs argv on the host, as root.
func (h *Host) Root(argv ...string) []string {
	return append([]string{"nsenter", "--target", strconv.Itoa(h.init.first), "--net", "--uts", "--ipc", "--pid", "--mount", "--"}, argv...)
}

// Cut takes the host off the network; its processes live on.
func (h *Host) Cut() { h.link("down") }

// Join ends a Cut.
func (h *Host) Join() { h.link("up") }

func (h *Host) link(state string) {
	h.network.t.Helper()
	require.NoError(h.network.t, call("nsenter --target "+strconv.Itoa(h.network.board.first)+" --net ip link set "+h.Name+" "+state))
}

// Kill cuts the power of a host: it sends no more packets, and its processes have ended when Kill returns.
func (h *Host) Kill() {
	h.network.t.Helper()
	h.Cut()
	h.init.end()
	_ = call("nsenter --target " + strconv.Itoa(h.network.board.first) + " --net ip link delete " + h.Name) // may have been removed with the peer
}

// Boot starts a killed host again, with another boot id.
func (h *Host) Boot() {
	h.network.t.Helper()
	h.network.write(h.Name+".boot", uuid.NewString()+"\n", 0o644)
	require.NoError(h.network.t, h.start())
}

// A process is the first process of a namespace. It lives as long as its input is open.
type process struct {
	cmd   *exec.Cmd
	first int // its id
}

// start starts a process and waits until it prints that it is ready.
func start(argv ...string) (*process, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	if _, err := cmd.StdinPipe(); err != nil { // closed when this process ends
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, first: cmd.Process.Pid}
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		p.end()
		return nil, fmt.Errorf("%s: %s", strings.Join(argv, " "), stderr.String())
	}
	if children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.first)); err == nil && argv[len(argv)-1] != "read x" {
		if child, err := strconv.Atoi(strings.TrimSpace(string(children))); err == nil {
			p.first = child // child of unshare --fork
		}
	}
	return p, nil
}

// end kills the process, and all others in its PID namespace.
func (p *process) end() {
	_ = syscall.Kill(p.first, syscall.SIGKILL) // it may have ended
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // returns an error: killed
}

func call(line string) error {
	argv := strings.Fields(line)
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, out)
	}
	return nil
}
