// Command agent is the first process of a guest: it loads modules, configures the network, and executes requests of the host. When the
// host closes the channel it powers the guest off.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/test/interop/guest/wire"
)

func main() {
	port, err := start()
	if err == nil {
		serve(port)
	} else {
		fmt.Println("agent:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // nothing can be done if it fails
}

// start makes the system usable and returns the channel to the outside.
func start() (*os.File, error) {
	os.Clearenv()
	for k, v := range map[string]string{"PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/busybox", "HOME": "/", "LC_ALL": "C.UTF-8"} {
		if err := os.Setenv(k, v); err != nil {
			return nil, err
		}
	}
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			return nil, fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	loaded := loadModules()
	port, err := openChannel()
	if err != nil {
		return nil, errors.Join(loaded, err)
	}
	ready := wire.Reply{}
	if err := errors.Join(loaded, setUp()); err != nil {
		ready = wire.Reply{Code: 1, Stderr: []byte(err.Error())}
	}
	return port, json.NewEncoder(port).Encode(ready)
}

// loadModules loads the modules of the list, in order.
func loadModules() error {
	list, err := os.ReadFile(wire.ModuleList)
	if err != nil {
		return err
	}
	var errs []error
	for _, line := range strings.Split(strings.TrimSpace(string(list)), "\n") {
		path, parameters, _ := strings.Cut(line, " ")
		if err := loadModule(path, parameters); err != nil {
			errs = append(errs, fmt.Errorf("module %s: %w", filepath.Base(path), err))
		}
	}
	return errors.Join(errs...)
}

func loadModule(path, parameters string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), parameters, 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// openChannel waits until the driver has created the port.
func openChannel() (*os.File, error) {
	for range 1000 {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name") // the pattern is valid
		for _, n := range names {
			if text, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(text)) == wire.Channel {
				return os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(n))), os.O_RDWR, 0)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, errors.New("there is no port " + wire.Channel)
}

// setUp installs busybox's commands and configures the network: address and router are those that QEMU's user network has for every
// guest.
func setUp() error {
	reply := run(wire.Request{Script: `set -e
		/bin/busybox --install -s /busybox
		grep -q configfs /proc/filesystems && mount -t configfs configfs /sys/kernel/config
		ip link set lo up
		ip addr add 10.0.2.15/24 dev eth0
		ip link set eth0 up
		ip route add default via 10.0.2.2`}, nil)
	if reply.Code != 0 {
		return fmt.Errorf("the network: %s", reply.Stderr)
	}
	return nil
}

// serve executes requests until the channel is closed.
func serve(port *os.File) {
	var mu sync.Mutex // guards the variables below
	out := json.NewEncoder(port)
	running := map[int]chan struct{}{}

	in := json.NewDecoder(port)
	for {
		var r wire.Request
		if in.Decode(&r) != nil {
			return
		}
		mu.Lock()
		if r.Kill {
			if c, ok := running[r.ID]; ok {
				delete(running, r.ID)
				close(c)
			}
			mu.Unlock()
			continue
		}
		kill := make(chan struct{})
		running[r.ID] = kill
		mu.Unlock()
		go func() {
			reply := run(r, kill)
			mu.Lock()
			defer mu.Unlock()
			delete(running, r.ID)
			_ = out.Encode(reply) // the reader notices a closed channel
		}()
	}
}

// run runs a script to its end, or until kill is closed.
func run(r wire.Request, kill <-chan struct{}) wire.Reply {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command("/bin/busybox", "sh", "-c", r.Script)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(r.Stdin), &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second // remaining processes may have its output open
	err := cmd.Start()
	if err == nil {
		ended := make(chan struct{})
		go func() {
			select {
			case <-kill:
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have ended
			case <-ended:
			}
		}()
		err = cmd.Wait()
		close(ended)
	}
	reply := wire.Reply{ID: r.ID, Stdout: stdout.Bytes(), Stderr: stderr.Bytes()}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		reply.Code = -1
		if cmd.ProcessState != nil {
			reply.Code = cmd.ProcessState.ExitCode()
		} else {
			reply.Stderr = []byte(err.Error())
		}
	}
	return reply
}
