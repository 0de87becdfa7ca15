package command

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/fuseview"
	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

// serveStart is how long `nvmecr serve` may take to begin, serveEnd how long to end.
const (
	serveStart = 30 * time.Second
	serveEnd   = 15 * time.Second
)

// A servant is `nvmecr serve` as a process of its own, which ends after this one.
type servant struct {
	cmd      *exec.Cmd
	lifeline *os.File // it ends when this closes, also by our death
	stderr   io.Writer
	view     string // that it has exported; "" if it has not
}

// startServant starts it with the settings of the run. The view that it exports is then one of the settings.
func startServant(cfg *config.Config, stderr io.Writer) (*servant, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	stdin, lifeline, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	stdout, ready, err := os.Pipe()
	if err != nil {
		lifeline.Close()
		return nil, err
	}
	defer stdout.Close()
	cfg.Command, cfg.View = self, viewOf(cfg)
	var complaint bytes.Buffer
	cmd := exec.Command(self, "serve")
	cmd.Env = cfg.Environ(os.Environ())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, ready, io.MultiWriter(stderr, &complaint)
	cmd.Dir = "/" // not in what it exports
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	ready.Close()
	if err != nil {
		lifeline.Close()
		return nil, fmt.Errorf("cannot start nvmecr serve: %w", err)
	}
	s := &servant{cmd: cmd, lifeline: lifeline, stderr: stderr, view: cfg.View}
	_ = stdout.SetReadDeadline(time.Now().Add(serveStart))
	said, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("nvmecr serve did not start: %s", strings.TrimSpace(complaint.String()))
	}
	if said = strings.TrimSpace(said); said != exported {
		s.removeView()
		cfg.View = ""
		if said != served && cfg.Log != config.LogError {
			fmt.Fprintf(stderr, "nvmecr: files are not exported to the kernel: %s\n", said)
		}
	}
	return s, nil
}

// viewOf returns the directory of the view, in that of the run, the same on each host; "" where there is to be none. Of
// memory of each process, and of a drive that one process can use at a time, there is none.
func viewOf(cfg *config.Config) string {
	if !cfg.FUSE || slices.ContainsFunc(cfg.Targets, func(t nvmf.TransportID) bool {
		return t.Transport == nvmf.Mem || t.Transport == nvmf.PCIe
	}) {
		return ""
	}
	return filepath.Join(owner.Directory(store.LockGroup(cfg.Run)), "view")
}

// makeViewDirectory makes it, in place of one whose server was killed.
func makeViewDirectory(dir string) error {
	removeDeadViews()
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("directory of the FUSE view: %w", err)
	}
	return nil
}

// removeDeadViews removes what servers have left on this host that were killed, and whose run was, or whose step of a job
// of Slurm has ended.
func removeDeadViews() {
	views, _ := filepath.Glob(owner.Directory("*") + "/view")
	for _, dir := range views {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) == unix.ENOTCONN {
			_ = errors.Join(fuseview.Detach(dir), os.Remove(dir)) // the next run tries again
		}
	}
}

// stop ends it, and waits until it has ended.
func (s *servant) stop() {
	s.lifeline.Close()
	_ = s.cmd.Process.Signal(syscall.SIGCONT) // perhaps somebody stopped it
	kill := time.AfterFunc(serveEnd, func() {
		fmt.Fprintf(s.stderr, "nvmecr: nvmecr serve did not end within %s and is killed\n", serveEnd)
		_ = s.cmd.Process.Kill()
	})
	defer kill.Stop()
	_ = s.cmd.Wait() // how it ends no longer matters to anyone
	s.removeView()
}

// removeView removes the directory of the view, and what is left of the view if its server was killed.
func (s *servant) removeView() {
	if s.view == "" {
		return
	}
	var st unix.Stat_t
	if unix.Lstat(s.view, &st) == unix.ENOTCONN {
		_ = fuseview.Detach(s.view)
	}
	if err := os.Remove(s.view); err != nil && !errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(s.stderr, "nvmecr: the directory of the FUSE view stays: %v\n", err)
	}
	s.view = ""
}
