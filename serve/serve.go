// Package serve is what `nvmecr serve` does: for the processes of a run on one host it does what none of them can
// do for the others, because each of them may end at any time. There is one such process for a run and host. `nvmecr run` starts
// one, which ends with the run; on another host the first process that uses the mount does, and it ends after the last one.
//
// It exports the files of the run to the kernel (view.go), and goes on with what processes that end have open and others
// need (takeover.go). In a run with one tree that of the first host has the tree's index (index.go). What later belongs to a whole host stands here, too.
//
// It never asks a process of the job for data: what that has written it reads from the store, as
// readers from outside do. It opens no path under the mount, nor of its own view, so that it never waits for itself.
//
// All methods are safe for concurrent use.
package serve

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"nvmecr/fuseview"
	"nvmecr/internal/config"
	"nvmecr/internal/processfs"
	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// A Server serves the processes of a run on this host.
type Server struct {
	cfg  *config.Config
	logf func(format string, args ...any)

	mu        sync.Mutex
	processes map[store.Place]*posixshim.Process
	views     []*fuseview.View

	takeovers takeovers
	index     treeIndex
}

// New returns a server for the run that cfg is of. Nothing is opened yet. logf tells the user something, on one line.
func New(cfg *config.Config, logf func(format string, args ...any)) *Server {
	return &Server{cfg: cfg, logf: logf, processes: make(map[store.Place]*posixshim.Process)}
}

// Process returns the process that makes calls for those at a place: what they find under the mount it finds. It is opened
// by the first call, and yields what it has open to those who have the place.
func (s *Server) Process(place store.Place) *posixshim.Process {
	place.From = ""
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.processes[place]
	if !ok {
		o := &processfs.Opener{
			Config: s.cfg,
			Place:  func() (store.Place, error) { return place, nil },
			Logf: func(format string, args ...any) {
				s.logf("nvmecr serve, process %d: %s", os.Getpid(), fmt.Sprintf(format, args...))
			},
		}
		p = posixshim.NewForTakeover(o.Open, o.Logf)
		p.Identify, p.Revalidate = store.Cred, true
		processfs.AwaitRelays(p, s.cfg)
		o.Process = p
		if err := o.Mount(); err != nil {
			o.Logf("%v", err)
		}
		s.processes[place] = p
	}
	return p
}

// Close ends all use of the store. Who still has files of a view open finds it gone.
func (s *Server) Close() error {
	s.takeovers.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, v := range s.views {
		// nvmecr run removes the directory, unless it was killed.
		errs = append(errs, v.Detach(), os.Remove(v.Dir()))
	}
	for _, p := range s.processes {
		errs = append(errs, p.Finish())
	}
	return errors.Join(append(errs, s.index.close())...)
}
