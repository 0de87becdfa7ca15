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

// supervisor are `nvmecr serve`, and those that take its place where it is killed: in a job with one tree it has the tree's
// index, without which no process can open a file.
type supervisor struct {
	cfg            config.Config // as the first one has left it
	linger, joined bool
	index          *os.File // the socket that other hosts reach whichever it is at; nil if there is none
	stderr         io.Writer

	mu      sync.Mutex // held while one is started; guards what follows
	now     *serveProcess
	stopped bool
}

// startSupervisor starts the first one, and has it succeeded where it has the tree of the job.
func (o *runOptions) startSupervisor() (*supervisor, error) {
	first, err := startServeProcess(o.cfg, o.external, o.joined, o.index, o.stderr)
	if err != nil {
		return nil, err
	}
	s := &supervisor{cfg: *o.cfg, linger: o.external, joined: o.joined, index: o.index, stderr: o.stderr, now: first}
	s.cfg.FUSE = s.cfg.Export != "" // the processes of the job know of no other view
	if s.cfg.View == config.ViewJob && !s.joined {
		go s.succeed()
	}
	return s, nil
}

// succeed starts another one whenever one was killed. One that has ended by itself says why, and would again.
func (s *supervisor) succeed() {
	for last := s.now; last != nil; {
		<-last.ended
		last = s.next(last)
	}
}

// startTries is how often one is started that does not come to serve.
const startTries = 5

// next starts another one in the place of the last, if that was killed.
func (s *supervisor) next(last *serveProcess) *serveProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	status, ok := last.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if s.stopped || !ok || !status.Signaled() {
		return nil
	}
	last.forget()
	var next *serveProcess
	err := errors.New("not tried")
	begin := time.Now()
	for try := 0; err != nil && try < startTries && time.Since(begin) < serveStart; try++ { // it may be killed before it serves
		next, err = startServeProcess(&s.cfg, s.linger, s.joined, s.index, s.stderr)
	}
	if err != nil {
		fmt.Fprintf(s.stderr, "nvmecr: nvmecr serve was killed (%v), and could not be started again: %v\n", status.Signal(), err)
		return nil
	}
	fmt.Fprintf(s.stderr, "nvmecr: nvmecr serve was killed (%v), and is started again\n", status.Signal())
	s.now = next
	return next
}

// stop ends the last one, and says whether it goes on while processes need it.
func (s *supervisor) stop() (last *serveProcess, lingers bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.index != nil {
		s.index.Close()
	}
	return s.now, s.now.stop()
}
