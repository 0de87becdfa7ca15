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

// serveStart is how long `nvmecr serve` may take to start, serveEnd how long to end. The end of the process is
// noticed at once. These limits are for one that hangs, and longer than a busy host needs.
const (
	serveStart = 2 * time.Minute
	serveEnd   = time.Minute
)

// A serveProcess is a child process `nvmecr serve`. Unless it lingers, it ends when the lifeline closes, which
// happens at the latest when this process ends.
type serveProcess struct {
	cmd      *exec.Cmd
	ended    chan struct{} // closed when the process has ended
	lifeline *os.File      // closing it ends the child, also if this process dies
	stdout   *os.File
	output   *bufio.Reader // reads stdout
	stderr   io.Writer
	view     string // directory of the exported view; "" without a view
}

// startServeProcess starts `nvmecr serve` with the settings of the run, and sets cfg.Export to the directory of the
// view that it exports. index is the socket at which other hosts reach the index of the tree, or nil.
func startServeProcess(cfg *config.Config, linger, joined bool, index *os.File, stderr io.Writer) (*serveProcess, error) {
	cmd, err := serveCommand(cfg, linger, joined, index)
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
	var complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, ready, io.MultiWriter(stderr, &complaint)
	err = cmd.Start()
	ready.Close()
	if err != nil {
		lifeline.Close()
		stdout.Close()
		return nil, fmt.Errorf("cannot start nvmecr serve: %w", err)
	}
	s := &serveProcess{
		cmd: cmd, ended: make(chan struct{}), lifeline: lifeline,
		stdout: stdout, output: bufio.NewReader(stdout), stderr: stderr, view: cfg.Export,
	}
	go func() {
		_ = cmd.Wait() // the status is in cmd.ProcessState
		close(s.ended)
	}()
	if err := s.await(cfg); err != nil {
		s.stop()
		return nil, fmt.Errorf("nvmecr serve did not start: %s", strings.TrimSpace(complaint.String()))
	}
	return s, nil
}

// serveCommand returns the command of `nvmecr serve`. With linger it outlives the run while processes of the job have
// files open in it. With joined another host serves the index of the tree.
func serveCommand(cfg *config.Config, linger, joined bool, index *os.File) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cfg.Command, cfg.Export = self, viewOf(cfg)
	cmd := exec.Command(self, "serve")
	if linger {
		cmd.Args = append(cmd.Args, "--linger")
	}
	if joined {
		cmd.Args = append(cmd.Args, "--joined")
	}
	if index != nil {
		cmd.Args, cmd.ExtraFiles = append(cmd.Args, "--index-socket"), []*os.File{index}
	}
	cmd.Env = cfg.Environ(os.Environ())
	cmd.Dir = "/" // must not be in the exported view
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, nil
}

// await reads the first line of the process, which says whether it exports the view. If it does not, cfg.Export
// becomes "".
func (s *serveProcess) await(cfg *config.Config) error {
	_ = s.stdout.SetReadDeadline(time.Now().Add(serveStart))
	said, err := s.output.ReadString('\n')
	if err != nil {
		return err
	}
	if said = strings.TrimSpace(said); said != exported {
		s.removeView()
		cfg.Export = ""
		if said != served && cfg.Log != config.LogError {
			fmt.Fprintf(s.stderr, "nvmecr: files are not exported to the kernel: %s\n", said)
		}
	}
	return nil
}

// joinServeProcess sets cfg for a run on a host where another run of the job has a serve process.
func joinServeProcess(cfg *config.Config) (err error) {
	cfg.Command, err = os.Executable()
	cfg.Export = viewOf(cfg)
	switch statView(filepath.Join(cfg.Export, "self")) {
	case nil, os.ErrDeadlineExceeded: // the server has a view and is busy
	default:
		cfg.Export = "" // there is no view
	}
	return err
}

// viewOf returns the directory of the view, which has the same path on each host; "" if the run has no view. Memory
// of each process and drives that one process can use at a time have no view.
func viewOf(cfg *config.Config) string {
	if !cfg.FUSE || slices.ContainsFunc(cfg.Targets, func(t nvmf.TransportID) bool {
		return t.Transport == nvmf.Mem || t.Transport == nvmf.PCIe
	}) {
		return ""
	}
	return filepath.Join(owner.Directory(store.LockGroup(cfg.Run)), owner.ViewName)
}

// makeViewDirectory creates the directory of the view. It replaces a view whose server was killed.
func makeViewDirectory(dir string) error {
	removeDeadViews(dir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("directory of the FUSE view: %w", err)
	}
	return nil
}

// removeDeadViews removes views on this host whose server was killed: the one at own, and those of runs that have
// ended. Views of other runs in progress are left alone.
func removeDeadViews(own string) {
	groups, _ := filepath.Glob(owner.Directory("*"))
	for _, group := range groups {
		dir := filepath.Join(group, owner.ViewName)
		if dir != own && owner.InUse(strings.TrimPrefix(group, owner.Directory(""))) {
			continue
		}
		if statView(dir) == unix.ENOTCONN {
			_ = errors.Join(fuseview.Detach(dir), os.Remove(dir)) // the next run tries again
		}
	}
}

// viewTimeout is how long a FUSE server may take to answer for its view. A stopped server, or one that hangs in the
// kernel after it was killed, never answers.
const viewTimeout = time.Second

// statView returns nil if dir exists, os.ErrDeadlineExceeded if its FUSE server does not answer, or the error of
// lstat. After a time-out the waiting thread ends with this process.
func statView(dir string) error {
	answer := make(chan error, 1)
	go func() {
		var st unix.Stat_t
		answer <- unix.Lstat(dir, &st)
	}()
	select {
	case err := <-answer:
		return err
	case <-time.After(viewTimeout):
		return os.ErrDeadlineExceeded
	}
}

// stop ends the process. It waits until it has ended, or until it says that it lingers for processes that use its
// files.
func (s *serveProcess) stop() (lingers bool) {
	_, _ = s.lifeline.WriteString("ended\n") // fails if it was killed
	s.lifeline.Close()
	defer s.stdout.Close()
	_ = s.cmd.Process.Signal(syscall.SIGCONT) // a stopped process (SIGSTOP) would not notice the end of input
	kill := time.AfterFunc(serveEnd, func() {
		fmt.Fprintf(s.stderr, "nvmecr: nvmecr serve did not end within %s and is killed\n", serveEnd)
		_ = s.cmd.Process.Kill()
	})
	defer kill.Stop()
	_ = s.stdout.SetReadDeadline(time.Time{})
	if said, _ := io.ReadAll(s.output); string(said) == lingering+"\n" {
		return true
	}
	<-s.ended
	s.removeView()
	return false
}

// disconnect closes the pipes of a process that has ended. Its successor keeps the view.
func (s *serveProcess) disconnect() {
	s.lifeline.Close()
	s.stdout.Close()
}

// removeView removes the directory of the view, and the mount that a killed server has left.
func (s *serveProcess) removeView() {
	if s.view == "" {
		return
	}
	if err := statView(s.view); err != unix.ENOENT { // a mount is left: the server was killed, or another process has mounted a view since
		_ = fuseview.Detach(s.view)
	}
	if err := os.Remove(s.view); err != nil && !errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(s.stderr, "nvmecr: the directory of the FUSE view stays: %v\n", err)
	}
	s.view = ""
}
