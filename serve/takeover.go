package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/owner"
	"nvmecr/internal/panics"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// takeovers are the open files that ended processes have handed over.
type takeovers struct {
	listen  *owner.HandoverListener
	pending sync.WaitGroup
	taking  atomic.Int32 // number of handovers in progress
}

// TakeOver begins to accept handovers: a process that ends or calls exec hands over the open files that it shares
// with other processes. It is called once, before Close.
func (s *Server) TakeOver() error {
	listen, err := owner.ListenForHandovers(store.LockGroup(s.cfg.Run))
	if err != nil {
		return fmt.Errorf("socket for handovers of open files: %w", err)
	}
	s.takeovers.listen = listen
	s.takeovers.pending.Go(func() { s.accept(listen) })
	return nil
}

// Idle reports whether no process has files or connections in this server, and no handover is in progress.
func (s *Server) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		if p.Serves() {
			return false
		}
	}
	return s.takeovers.taking.Load() == 0 && s.index.others.Load() == 0
}

// close waits until the handovers in progress have ended.
func (h *takeovers) close() {
	if h.listen != nil {
		_ = h.listen.Close()
	}
	h.pending.Wait()
}

// acceptPause is the pause after accept has failed for want of descriptors.
const acceptPause = 20 * time.Millisecond

func (s *Server) accept(listen *owner.HandoverListener) {
	for {
		conn, err := listen.AcceptUnix()
		switch {
		case err == nil:
			s.takeovers.pending.Go(func() { s.receive(conn) })
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(acceptPause)
		}
	}
}

// packetTimeout is how long the next packet may take. A process sends all its packets at once.
const packetTimeout = time.Minute

// receive executes one handover.
func (s *Server) receive(conn *net.UnixConn) {
	s.takeovers.taking.Add(1)
	defer s.takeovers.taking.Add(-1)
	file, err := conn.File()
	_ = conn.Close()
	if err != nil {
		return
	}
	defer file.Close()
	socket := int(file.Fd()) // in blocking mode from now on
	cred, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || int(cred.Uid) != os.Geteuid() {
		return
	}
	wait := unix.NsecToTimeval(packetTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return
	}
	in, err := posixshim.ReceiveHandover(socket)
	if err == nil {
		defer in.Close()
		err = s.takeOver(in)
		_ = in.Answer(socket, err) // fails if the process was killed meanwhile
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.logf("the open files that process %d shared cannot be taken over, and calls on them fail: %v", cred.Pid, err)
	}
}

func (s *Server) takeOver(in *posixshim.Handover) (err error) {
	defer panics.Contain("a handover", &err)
	proc := store.Proc{Rank: in.Rank, Size: in.Size}
	if proc.Rank < 0 && proc.Rank != parttable.Singleton || proc.Size < 1 || proc.Rank >= proc.Size {
		return fmt.Errorf("rank %d of %d: %w", in.Rank, in.Size, unix.EINVAL)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	defer cancel()
	return s.Process(proc).TakeOver(ctx, in)
}
