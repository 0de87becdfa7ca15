package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/test/interop/guest/wire"
)

// Options of a guest.
type Options struct {
	Kernel Kernel
	// Modules are loaded in this order, with their dependencies: NAME [PARAMETERS].
	Modules []string
	// Programs are programs of this machine, names or paths. They have the same path in the guest, with the shared libraries that ldd
	// lists.
	Programs []string
	// Files are files and directories of this machine, by their path in the guest; libraries as for Programs. Files that a program opens
	// by itself belong here.
	Files map[string]string
	// Memory is the memory in MiB, 0 for 1024. It includes all files of the guest.
	Memory int
	// Args are additional arguments of QEMU.
	Args []string
	// Append is appended to the kernel's command line.
	Append string
	// Ports are the ports of the guest that can be reached from this machine; see Port.
	Ports []int
}

// A Guest is a running virtual machine. It is safe for concurrent use.
type Guest struct {
	dir   string
	cmd   *exec.Cmd
	conn  net.Conn
	ports map[int]int
	ended chan struct{} // closed when QEMU has ended

	mu      sync.Mutex // guards the fields below, and writing to conn
	out     *json.Encoder
	last    int
	waiting map[int]chan wire.Reply
}

// A Result is the result of a script.
type Result struct {
	Code           int // the exit status
	Stdout, Stderr string
}

// Err returns nil for a script that succeeded.
func (r Result) Err() error {
	if r.Code == 0 {
		return nil
	}
	return fmt.Errorf("exit status %d: %s%s", r.Code, r.Stdout, r.Stderr)
}

// Gateway is the address by which a guest reaches listeners on 127.0.0.1 of this machine.
const Gateway = "10.0.2.2"

// Start boots a guest with files below dir, which must exist, and waits until it can run scripts. It ends with Close, or when this
// process ends.
func Start(ctx context.Context, dir string, o Options) (g *Guest, err error) {
	dir, err = os.MkdirTemp(dir, "guest")
	if err != nil {
		return nil, err
	}
	g = &Guest{dir: dir, ports: map[int]int{}, ended: make(chan struct{}), waiting: map[int]chan wire.Reply{}}
	for _, p := range o.Ports {
		if g.ports[p], err = freePort(); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	image := filepath.Join(dir, "initrd")
	if err := writeImage(ctx, image, o); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := g.boot(ctx, o, image); err != nil {
		return nil, errors.Join(fmt.Errorf("guest with Linux %s: %w\n%s", o.Kernel.Version, err, g.Console()), g.Close())
	}
	return g, nil
}

// patience is how long a guest may take to boot, on a busy machine without KVM.
const patience = 4 * time.Minute

// boot starts QEMU and waits for the agent.
func (g *Guest) boot(ctx context.Context, o Options, image string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return err
	}
	console, err := os.Create(g.console())
	if err != nil {
		return err
	}
	defer console.Close()
	channel, err := g.channel()
	if err != nil {
		return err
	}
	defer channel.Close()
	g.cmd = exec.Command(qemu, g.arguments(o, image)...)
	g.cmd.Stdout, g.cmd.Stderr, g.cmd.ExtraFiles = console, console, []*os.File{channel}
	// Signals of the terminal are for this process.
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := g.cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = g.cmd.Wait() // the console has the reason
		close(g.ended)
	}()
	g.out = json.NewEncoder(g.conn)
	ready := make(chan wire.Reply, 1)
	g.waiting[0] = ready
	go g.receive()
	reply, err := g.await(ctx, ready)
	if err != nil {
		return err
	}
	return g.removeImage(image, reply)
}

func (g *Guest) removeImage(image string, reply wire.Reply) error {
	if reply.Code != 0 {
		return errors.New(string(reply.Stderr))
	}
	return os.Remove(image)
}

// channel creates the channel, and returns QEMU's end. It is a socket without a name, since names have at most 107 bytes, and the paths
// of temporary directories may be longer.
func (g *Guest) channel() (theirs *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the guest's channel: %w", err)
	}
	ours := os.NewFile(uintptr(ends[0]), "channel")
	defer ours.Close()
	theirs = os.NewFile(uintptr(ends[1]), "channel")
	if g.conn, err = net.FileConn(ours); err != nil {
		return nil, errors.Join(err, theirs.Close())
	}
	return theirs, nil
}

// channelFD is the descriptor of QEMU's end: the first of Cmd.ExtraFiles.
const channelFD = 3

func (g *Guest) arguments(o Options, image string) []string {
	memory := o.Memory
	if memory == 0 {
		memory = 1024
	}
	network := "user,id=net"
	for inside, outside := range g.ports {
		network += fmt.Sprintf(",hostfwd=tcp:127.0.0.1:%d-:%d", outside, inside)
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35", "-cpu", "max", "-accel", accelerator(),
		"-smp", "2", "-m", strconv.Itoa(memory), "-serial", "stdio",
		"-kernel", o.Kernel.image(), "-initrd", image, "-append", "console=ttyS0 panic=-1 loglevel=5 " + o.Append,
		"-netdev", network, "-device", "virtio-net-pci,netdev=net", "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=channel,fd=%d", channelFD),
		"-device", "virtserialport,chardev=channel,name=" + wire.Channel,
	}
	return append(args, o.Args...)
}

// accelerator returns KVM if the processor supports it. /dev/kvm alone is no proof: in some virtual machines it exists although no kernel
// boots with it.
func accelerator() string {
	facts, _ := os.ReadFile("/proc/cpuinfo") // on an error use the interpreter, which always works
	kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err == nil {
		kvm.Close()
	}
	if err == nil && regexp.MustCompile(`(?m)^flags\s*:.*\s(vmx|svm)\s`).Match(facts) {
		return "kvm"
	}
	return "tcg,thread=multi"
}

// receive distributes replies until the guest ends.
func (g *Guest) receive() {
	in := json.NewDecoder(g.conn)
	for {
		var r wire.Reply
		if in.Decode(&r) != nil {
			return
		}
		g.mu.Lock()
		if c, ok := g.waiting[r.ID]; ok {
			delete(g.waiting, r.ID)
			c <- r
		}
		g.mu.Unlock()
	}
}

func (g *Guest) await(ctx context.Context, c <-chan wire.Reply) (wire.Reply, error) {
	select {
	case r := <-c:
		return r, nil
	case <-ctx.Done():
		return wire.Reply{}, context.Cause(ctx)
	case <-g.ended:
		return wire.Reply{}, errors.New("the guest has ended")
	}
}

// Run runs a script by /bin/sh of the guest to its end; when ctx ends it is killed. The error is nil also for a script that fails.
func (g *Guest) Run(ctx context.Context, script string) (Result, error) {
	return g.RunInput(ctx, script, nil)
}

// RunInput is Run with a standard input.
func (g *Guest) RunInput(ctx context.Context, script string, stdin []byte) (Result, error) {
	c := make(chan wire.Reply, 1)
	g.mu.Lock()
	g.last++
	id := g.last
	g.waiting[id] = c
	err := g.out.Encode(wire.Request{ID: id, Script: script, Stdin: stdin})
	g.mu.Unlock()
	if err != nil {
		return Result{}, err
	}
	r, err := g.await(ctx, c)
	if err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.waiting, id)
		_ = g.out.Encode(wire.Request{ID: id, Kill: true}) // fails if the guest has ended
		return Result{}, err
	}
	return Result{r.Code, string(r.Stdout), string(r.Stderr)}, nil
}

// Port returns the port on 127.0.0.1 of this machine for a port of the guest.
func (g *Guest) Port(inside int) int { return g.ports[inside] }

func (g *Guest) console() string { return filepath.Join(g.dir, "console") }

// Console returns the end of the output of the guest's kernel.
func (g *Guest) Console() string {
	text, _ := os.ReadFile(g.console()) // used in messages only
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// Close ends the guest.
func (g *Guest) Close() error {
	if g.conn != nil {
		g.conn.Close()
	}
	if g.cmd != nil && g.cmd.Process != nil {
		_ = g.cmd.Process.Kill() // may have ended
		<-g.ended
	}
	return os.RemoveAll(g.dir)
}

// freePort returns a port that is free at the moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
