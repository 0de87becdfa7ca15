package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"nvmecr/internal/config"
)

// A supervisor runs `nvmecr serve`, and starts it again if it is killed. In a job with one tree that process has the
// index of the tree, without which no process can open a file.
type supervisor struct {
	cfg            config.Config // the settings after the first start
	linger, joined bool
	index          *os.File // socket at which other hosts reach each of these processes; nil if there is none
	stderr         io.Writer

	mu      sync.Mutex // held while a process is started; guards the fields below
	current *serveProcess
	stopped bool
}

// startSupervisor starts nvmecr serve. If that has the index of the tree, it is started again whenever it is killed.
func (o *runOptions) startSupervisor() (*supervisor, error) {
	first, err := startServeProcess(o.cfg, o.external, o.joined, o.index, o.stderr)
	if err != nil {
		return nil, err
	}
	s := &supervisor{cfg: *o.cfg, linger: o.external, joined: o.joined, index: o.index, stderr: o.stderr, current: first}
	s.cfg.FUSE = s.cfg.Export != "" // processes of the job keep the view of the first start
	if s.cfg.View == config.ViewJob && !s.joined {
		go s.restartLoop()
	}
	return s, nil
}

// restartLoop starts another process whenever one was killed. A process that ends by itself reports why, and is not
// started again, since the cause would remain.
func (s *supervisor) restartLoop() {
	for last := s.current; last != nil; {
		<-last.ended
		last = s.restart(last)
	}
}

// maxStarts is the number of attempts to start a process.
const maxStarts = 5

// restart starts a process in place of the last one, if that was killed. Otherwise it returns nil.
func (s *supervisor) restart(last *serveProcess) *serveProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	status, ok := last.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if s.stopped || !ok || !status.Signaled() {
		return nil
	}
	last.disconnect()
	var next *serveProcess
	err := errors.New("not tried")
	begin := time.Now()
	for try := 0; err != nil && try < maxStarts && time.Since(begin) < serveStart; try++ { // the new process may be killed, too
		next, err = startServeProcess(&s.cfg, s.linger, s.joined, s.index, s.stderr)
	}
	if err != nil {
		fmt.Fprintf(s.stderr, "nvmecr: nvmecr serve was killed (%v), and could not be started again: %v\n", status.Signal(), err)
		return nil
	}
	fmt.Fprintf(s.stderr, "nvmecr: nvmecr serve was killed (%v), and is started again\n", status.Signal())
	s.current = next
	return next
}

// stop ends the current process. lingers reports whether the process continues because processes use its files.
func (s *supervisor) stop() (last *serveProcess, lingers bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.index != nil {
		s.index.Close()
	}
	return s.current, s.current.stop()
}
