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

// takeovers are the processes that this one goes on for.
type takeovers struct {
	listen  *owner.HandoverListener
	pending sync.WaitGroup
	taking  atomic.Int32 // what is being handed over now
}

// TakeOver begins to take over what processes of the run have open that end, or execute a program, while others have
// files of them. It is called once, before Close.
func (s *Server) TakeOver() error {
	listen, err := owner.ListenForHandovers(store.LockGroup(s.cfg.Run))
	if err != nil {
		return fmt.Errorf("socket for what processes hand over: %w", err)
	}
	s.takeovers.listen = listen
	s.takeovers.pending.Go(func() { s.accept(listen) })
	return nil
}

// Idle says that no process has files or connections here, and that no handover is under way.
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

// close waits until what is being handed over has been.
func (h *takeovers) close() {
	if h.listen != nil {
		_ = h.listen.Close()
	}
	h.pending.Wait()
}

// acceptPause is how long a process that is out of descriptors waits.
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

// senderTime is how long the next packet may take: a process sends all of them at once.
const senderTime = time.Minute

// inherit takes over what one process hands over.
func (s *Server) receive(conn *net.UnixConn) {
	s.takeovers.taking.Add(1)
	defer s.takeovers.taking.Add(-1)
	file, err := conn.File()
	_ = conn.Close()
	if err != nil {
		return
	}
	defer file.Close()
	socket := int(file.Fd()) // which waits from now on
	cred, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || int(cred.Uid) != os.Geteuid() {
		return
	}
	wait := unix.NsecToTimeval(senderTime.Nanoseconds())
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return
	}
	in, err := posixshim.ReceiveHandover(socket)
	if err == nil {
		defer in.Close()
		err = s.takeOver(in)
		_ = in.Answer(socket, err) // one that was killed meanwhile needs none
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
