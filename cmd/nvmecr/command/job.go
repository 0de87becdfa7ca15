package command

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/internal/proc"
)

// A job is the process that `nvmecr run` starts: mostly a launcher, with the ranks as descendants.
type job struct {
	cmd *exec.Cmd
	// shared: the job is in the process group of this process, which is the foreground group of a terminal. The
	// terminal sends its signals to both. Otherwise the job has a process group of its own, to which signals are
	// forwarded.
	shared bool
}

// forwarded are the signals that are passed on to the job.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2,
}

// runJob starts argv with env in the given surroundings and waits for its end. It returns the exit status: the job's,
// or 128 plus the number of the signal that ended it. Signals are passed on; a second interrupt kills the job and all
// its descendants.
func runJob(argv, env []string, at surroundings) (int, error) {
	path, err := findProgram(argv[0], at.dir != "")
	if err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)

	j := &job{cmd: &exec.Cmd{Path: path, Args: argv, Env: env}, shared: foreground()}
	j.cmd.Stdin, j.cmd.Stdout, j.cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !j.shared}
	if err := at.start(j.cmd); err != nil {
		return 0, fmt.Errorf("cannot start %s: %w", argv[0], err)
	}
	done := make(chan error, 1)
	go func() { done <- j.cmd.Wait() }()
	for interrupts := 0; ; {
		select {
		case s := <-signals:
			if s == syscall.SIGINT {
				interrupts++
			}
			j.pass(s.(syscall.Signal), interrupts)
		case err := <-done:
			return exitStatus(j.cmd.ProcessState, err)
		}
	}
}

func (j *job) pass(s syscall.Signal, interrupts int) {
	pid := j.cmd.Process.Pid
	switch {
	case interrupts >= 2:
		proc.KillTree(pid)
	case !j.shared:
		// ESRCH: the job has just ended.
		_ = syscall.Kill(-pid, s)
	case s != syscall.SIGINT && s != syscall.SIGQUIT:
		_ = syscall.Kill(pid, s)
	}
}

func exitStatus(state *os.ProcessState, err error) (int, error) {
	if state == nil {
		return 0, err
	}
	if ws := state.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return state.ExitCode(), nil
}

// foreground reports whether this process is in the foreground process group of its terminal.
func foreground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// findProgram searches PATH as a shell does, and refuses programs that no library can be preloaded into. viewed: the
// kernel has the files at the mount point, where a statically linked program finds them.
func findProgram(name string, viewed bool) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return "", fmt.Errorf("%s: no such program in PATH", name)
		}
		return "", fmt.Errorf("cannot run %s: %w", name, errors.Unwrap(err))
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 && os.Getuid() != 0 {
		return "", fmt.Errorf("%s is setuid or setgid: the system does not preload libraries into it; run a copy without these bits", path)
	}
	return path, checkDynamic(path, viewed)
}

// checkDynamic refuses ELF programs without an interpreter (the dynamic linker), unless viewed is set, and those of
// another architecture. A file that is not ELF is a script; what matters is its interpreter.
func checkDynamic(path string, viewed bool) error {
	f, err := elf.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if self, err := elf.Open("/proc/self/exe"); err == nil {
		defer self.Close()
		if f.Machine != self.Machine {
			return fmt.Errorf("%s is a program for %s: nvmecr cannot be preloaded into it; build it for this machine", path, f.Machine)
		}
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil
		}
	}
	if viewed {
		return nil
	}
	return fmt.Errorf("%s is statically linked: nothing can be preloaded into it; link it dynamically (without -static), or give it the files by FUSE (docs/programs.md)", path)
}
