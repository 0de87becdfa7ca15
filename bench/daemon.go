package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/store"
)

// A daemon is a process that serves until its standard input ends.
type daemon struct {
	cmd      *exec.Cmd
	lifeline io.Closer
	closed   func() // called after the process has ended; may be nil
}

// startDaemon starts a process that prints word when it is ready. Any other output is
// an error.
func startDaemon(cmd *exec.Cmd, word string) (*daemon, error) {
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var complaint strings.Builder
	cmd.Stderr = &complaint
	cmd.Dir = "/" // not the directory that the process serves
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	d := &daemon{cmd: cmd, lifeline: lifeline}
	said, err := bufio.NewReader(stdout).ReadString('\n')
	if said = strings.TrimSpace(said); said == word {
		return d, nil
	}
	_ = d.Close()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, strings.TrimSpace(complaint.String()))
	}
	return nil, errors.New(said)
}

// Close ends the process.
func (d *daemon) Close() error {
	d.lifeline.Close()
	kill := time.AfterFunc(targetEnd, func() { _ = d.cmd.Process.Kill() })
	defer kill.Stop()
	_ = d.cmd.Wait() // the exit status is irrelevant
	if d.closed != nil {
		d.closed()
	}
	return nil
}

// startServer starts the server of a run on this host, as `nvmecr run` does.
func (e *Env) startServer(cfg *config.Config) (*daemon, error) {
	group := store.LockGroup(cfg.Run)
	if err := owner.Prepare(group); err != nil {
		return nil, err
	}
	cmd, word := exec.Command(e.Nvmecr, "serve"), "serving"
	if cfg.Export != "" {
		word = "exported"
	}
	cmd.Env = cfg.Environ(base())
	d, err := startDaemon(cmd, word)
	if err != nil {
		owner.RemoveGroup(group)
		return nil, err
	}
	d.closed = func() { owner.RemoveGroup(group) }
	return d, nil
}
