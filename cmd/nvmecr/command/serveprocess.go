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

// serveStart is the time that `nvmecr serve` has to begin, serveEnd the time that it has to end. A process that ends is noticed at
// once. These limits are for one that hangs, and are longer than anything takes on a busy host.
const (
	serveStart = 2 * time.Minute
	serveEnd   = time.Minute
)

// A serveProcess is `nvmecr serve` as a process of its own. It ends with the lifeline, so at the latest with this process, unless it lingers.
type serveProcess struct {
	cmd      *exec.Cmd
	ended    chan struct{} // closed when the process has ended
	lifeline *os.File      // the process ends when this closes, also if this process dies
	stdout   *os.File
	says     *bufio.Reader // of stdout
	stderr   io.Writer
	view     string // directory of the exported view; "" if there is none
}

// startServeProcess starts `nvmecr serve` with the settings of the run. The view that it exports becomes one of the settings. index is
// the socket at which other hosts reach the index of the tree, or nil.
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
		stdout: stdout, says: bufio.NewReader(stdout), stderr: stderr, view: cfg.Export,
	}
	go func() {
		_ = cmd.Wait() // how it has ended is in cmd.ProcessState
		close(s.ended)
	}()
	if err := s.await(cfg); err != nil {
		s.stop()
		return nil, fmt.Errorf("nvmecr serve did not start: %s", strings.TrimSpace(complaint.String()))
	}
	return s, nil
}

// serveCommand returns the command of `nvmecr serve`. One that lingers outlives the run while processes of the job have files
// open in it. One that has joined has no tree.
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
	cmd.Dir = "/" // not in what it exports
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, nil
}

// await reads the first line of the process, which says whether it exports the view. If it does not, cfg.Export becomes "".
func (s *serveProcess) await(cfg *config.Config) error {
	_ = s.stdout.SetReadDeadline(time.Now().Add(serveStart))
	said, err := s.says.ReadString('\n')
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

// joinServeProcess makes the settings those of a run on whose host another run of the job has a serve process.
func joinServeProcess(cfg *config.Config) (err error) {
	cfg.Command, err = os.Executable()
	cfg.Export = viewOf(cfg)
	switch lookAt(filepath.Join(cfg.Export, "self")) {
	case nil, os.ErrDeadlineExceeded: // the server has a view and is busy
	default:
		cfg.Export = "" // it exports nothing
	}
	return err
}

// viewOf returns the directory of the view, in that of the run, the same on each host; "" where there is to be none. Of
// memory of each process, and of a drive that one process can use at a time, there is none.
func viewOf(cfg *config.Config) string {
	if !cfg.FUSE || slices.ContainsFunc(cfg.Targets, func(t nvmf.TransportID) bool {
		return t.Transport == nvmf.Mem || t.Transport == nvmf.PCIe
	}) {
		return ""
	}
	return filepath.Join(owner.Directory(store.LockGroup(cfg.Run)), owner.ViewName)
}

// makeViewDirectory makes it, in place of one whose server was killed.
func makeViewDirectory(dir string) error {
	removeDeadViews(dir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("directory of the FUSE view: %w", err)
	}
	return nil
}

// removeDeadViews removes what servers have left on this host that were killed: at own, and where the run was killed, too, or
// the step of a job of Slurm has ended. Those of other runs in progress are not looked at.
func removeDeadViews(own string) {
	groups, _ := filepath.Glob(owner.Directory("*"))
	for _, group := range groups {
		dir := filepath.Join(group, owner.ViewName)
		if dir != own && owner.InUse(strings.TrimPrefix(group, owner.Directory(""))) {
			continue
		}
		if lookAt(dir) == unix.ENOTCONN {
			_ = errors.Join(fuseview.Detach(dir), os.Remove(dir)) // the next run tries again
		}
	}
}

// viewPatience is how long a server may take to answer for its view. One that was stopped, or hangs in the kernel after it was killed, never does.
const viewPatience = time.Second

// lookAt returns why there is no view at dir, or os.ErrDeadlineExceeded if its server does not answer. The thread that waits then ends with this process.
func lookAt(dir string) error {
	answer := make(chan error, 1)
	go func() {
		var st unix.Stat_t
		answer <- unix.Lstat(dir, &st)
	}()
	select {
	case err := <-answer:
		return err
	case <-time.After(viewPatience):
		return os.ErrDeadlineExceeded
	}
}

// stop ends it, and waits until it has ended, or says that it goes on while processes need it.
func (s *serveProcess) stop() (lingers bool) {
	_, _ = s.lifeline.WriteString("ended\n") // it may have been killed
	s.lifeline.Close()
	defer s.stdout.Close()
	_ = s.cmd.Process.Signal(syscall.SIGCONT) // it may be stopped
	kill := time.AfterFunc(serveEnd, func() {
		fmt.Fprintf(s.stderr, "nvmecr: nvmecr serve did not end within %s and is killed\n", serveEnd)
		_ = s.cmd.Process.Kill()
	})
	defer kill.Stop()
	_ = s.stdout.SetReadDeadline(time.Time{})
	if said, _ := io.ReadAll(s.says); string(said) == lingering+"\n" {
		return true
	}
	<-s.ended
	s.removeView()
	return false
}

// forget closes the connections to a process that has ended. Its view is that of the successor.
func (s *serveProcess) forget() {
	s.lifeline.Close()
	s.stdout.Close()
}

// removeView removes the directory of the view, and the mount that is left if the server was killed.
func (s *serveProcess) removeView() {
	if s.view == "" {
		return
	}
	if err := lookAt(s.view); err != unix.ENOENT { // the server was killed, and another process may have mounted a view since
		_ = fuseview.Detach(s.view)
	}
	if err := os.Remove(s.view); err != nil && !errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(s.stderr, "nvmecr: the directory of the FUSE view stays: %v\n", err)
	}
	s.view = ""
}
