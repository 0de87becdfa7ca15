package hosts

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	_ "embed"

	"github.com/stretchr/testify/require"
)

//go:embed agent.py
var agentScript string

// Agent returns the program with which launchers start commands on other hosts.
func (n *Network) Agent() string { return filepath.Join(n.dir, "agent.py") }

// serveAgent starts the commands that Agent requests, until the test ends.
func (n *Network) serveAgent() {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(n.dir, "agent")})
	require.NoError(n.t, err)
	require.NoError(n.t, os.Chown(l.Addr().String(), User, User))
	n.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return // the test has ended
			}
			go func() {
				defer c.Close()
				status := 255
				if cmd, err := n.receive(c); err == nil {
					_ = cmd.Run() // the status is in cmd
					status = cmd.ProcessState.ExitCode()
					for _, f := range []any{cmd.Stdin, cmd.Stdout, cmd.Stderr} {
						_ = f.(*os.File).Close()
					}
				}
				fmt.Fprint(c, status)
			}()
		}
	}()
}

// receive reads a request: host, command, and standard files.
func (n *Network) receive(c *net.UnixConn) (*exec.Cmd, error) {
	message, control := make([]byte, 64<<10), make([]byte, 128)
	count, controlCount, _, _, err := c.ReadMsgUnix(message, control)
	if err != nil {
		return nil, err
	}
	var request struct{ Host, Command string }
	if err := json.Unmarshal(message[:count], &request); err != nil {
		return nil, err
	}
	messages, err := syscall.ParseSocketControlMessage(control[:controlCount])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("no standard files: %w", err)
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	h, ok := n.hosts[request.Host]
	if !ok || len(fds) != 3 {
		return nil, fmt.Errorf("host %q, %d standard files", request.Host, len(fds))
	}
	line := h.In("sh", "-c", request.Command)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + n.dir, "SHELL=/bin/sh"}
	cmd.Dir = n.dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.NewFile(uintptr(fds[0]), "stdin"), os.NewFile(uintptr(fds[1]), "stdout"), os.NewFile(uintptr(fds[2]), "stderr")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, nil
}
