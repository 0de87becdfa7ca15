package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/panics"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/microfs"
	"nvmecr/tree"
	"nvmecr/tree/index"
	"nvmecr/tree/wire"
)

// treeIndex is the index of the job's tree (docs/dev/tree.md): in a run with one tree it is in the server of the host of `nvmecr run`. It
// has the singleton partition from the first connection to the end.
type treeIndex struct {
	listen  []net.Listener
	pending sync.WaitGroup
	others  atomic.Int32 // connections of other processes

	connecting sync.Mutex // guards what follows
	conns      map[net.Conn]struct{}
	ending     bool

	mu     sync.Mutex // held while the partition is opened, and by Close
	closed bool
	index  *index.Index // nil until the first connection
	part   *store.Partition
	views  *store.Views
}

// ServeTree begins to take connections to the index of the job's tree: of processes of this host, and at others, which may be nil, of
// those that know the secret of the run. It is called once, before Close, by the caller of TakeOver.
func (s *Server) ServeTree(others net.Listener) error {
	if err := shortenSlices(); err != nil {
		s.info("the job's files: the index may answer late where the processors are busy: %v", err)
	}
	here, err := owner.ListenForIndex(store.LockGroup(s.cfg.Run))
	if err != nil {
		return err
	}
	s.index.listen = append(s.index.listen, here)
	s.index.pending.Go(func() { s.acceptTree(here, s.serveHere) })
	if others != nil {
		s.index.listen = append(s.index.listen, others)
		s.index.pending.Go(func() { s.acceptTree(others, s.serveOther) })
	}
	return nil
}

func (s *Server) acceptTree(listen net.Listener, serve func(net.Conn)) {
	for {
		conn, err := listen.Accept()
		switch {
		case err == nil:
			s.index.pending.Go(func() {
				if s.index.enter(conn) {
					defer s.index.leave(conn)
					serve(conn)
				}
			})
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(acceptPause)
		}
	}
}

// enter takes note of a connection, or closes it where all end.
func (t *treeIndex) enter(conn net.Conn) bool {
	t.connecting.Lock()
	defer t.connecting.Unlock()
	if t.ending {
		_ = conn.Close()
		return false
	}
	if t.conns == nil {
		t.conns = map[net.Conn]struct{}{}
	}
	t.conns[conn] = struct{}{}
	return true
}

func (t *treeIndex) leave(conn net.Conn) {
	t.connecting.Lock()
	defer t.connecting.Unlock()
	delete(t.conns, conn)
}

// closeConns closes the connections that the index does not have: some may say nothing, and be waited for.
func (t *treeIndex) closeConns() {
	t.connecting.Lock()
	defer t.connecting.Unlock()
	t.ending = true
	for conn := range t.conns {
		_ = conn.Close()
	}
}

// serveHere serves one connection, if it is a process of this user.
func (s *Server) serveHere(conn net.Conn) {
	cred, err := peerOf(conn.(*net.UnixConn))
	if err != nil || int(cred.Uid) != os.Geteuid() {
		_ = conn.Close()
		return
	}
	if int(cred.Pid) != os.Getpid() {
		s.index.others.Add(1)
		defer s.index.others.Add(-1)
	}
	who := fmt.Sprintf("process %d", cred.Pid)
	window, err := owner.ShareWindow(conn.(*net.UnixConn), wire.MaxData)
	if err != nil { // it has gone
		_ = conn.Close()
		return
	}
	s.serveTree(ofProcess(conn, int(cred.Pid)), window, who)
	if err := owner.CloseWindow(window); err != nil {
		s.logf("index of the tree: memory to share with %s: %v", who, err)
	}
}

// introduction is how long a process of another host may take to prove that it is of the run.
var introduction = 10 * time.Second

// serveOther serves one connection of another host, if it is a process of the run.
func (s *Server) serveOther(conn net.Conn) {
	secret := wire.Secret(s.cfg.IndexSecret)
	_ = conn.SetDeadline(time.Now().Add(introduction))
	if secret.Challenge(conn) != nil { // any user can connect: no message
		_ = conn.Close()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	if err := hearOfLoss(conn.(*net.TCPConn), s.cfg.Timeout); err != nil {
		s.logf("the end of another host of the job may be noticed late: %v", err)
	}
	s.index.others.Add(1)
	defer s.index.others.Add(-1)
	s.serveTree(conn, nil, "a process of "+conn.RemoteAddr().String())
}

// hearOfLoss has a connection end some time after the other host has vanished, whether there is something to send or not.
func hearOfLoss(conn *net.TCPConn, patience time.Duration) error {
	const probes = 3
	every := max(patience/(1+probes), time.Second) // the kernel counts in seconds
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	err = conn.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: probes})
	return errors.Join(err, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(patience.Milliseconds()))
	}), err)
}

func (s *Server) serveTree(conn net.Conn, window []byte, who string) {
	x, err := s.awaitTree()
	if err == nil {
		err = x.Serve(conn, window)
	} else {
		refuse(conn, err)
	}
	if err != nil {
		s.logf("index of the tree: connection of %s: %v", who, err)
	}
}

func peerOf(conn *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	err = errors.Join(raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}), err)
	return cred, err
}

// refuse answers the first request of a connection with an error.
func refuse(conn net.Conn, err error) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(introduction))
	peer := wire.NewPeer(conn)
	if _, gone := peer.Next(); gone == nil {
		_ = peer.Answer(err, nil, nil) // the client may be gone
	}
}

// reopenPause is between two attempts to open the index.
const reopenPause = 100 * time.Millisecond

// awaitTree opens the index. A target that cannot be reached is waited for: it was there when nvmecr run looked.
func (s *Server) awaitTree() (*index.Index, error) {
	for begin := time.Now(); ; time.Sleep(reopenPause) {
		x, err := s.openTree()
		if !store.Unavailable(err) || time.Since(begin)+reopenPause > s.cfg.Timeout {
			return x, err
		}
	}
}

// openTree opens the index, once.
func (s *Server) openTree() (_ *index.Index, err error) {
	defer panics.Contain("the opening of the job's index", &err)
	t := &s.index
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("nvmecr serve is ending: %w", unix.ESHUTDOWN)
	}
	if t.index != nil {
		return t.index, nil
	}
	ctx := context.Background()
	unreleased, err := store.Unreleased(ctx, s.cfg)
	if err != nil {
		return nil, err
	}
	part, err := store.Open(ctx, s.cfg, store.Proc{Rank: 0, Size: 1}, store.Options{Logf: s.info})
	if err != nil {
		return nil, err
	}
	t.part, t.views = part, store.NewViews(s.cfg, s.logf)
	t.index = index.New(part.FS, index.Options{
		Format: tree.Format, Run: s.cfg.Run, Timeout: s.cfg.Timeout, Lease: tree.Lease, Logf: s.logf,
		Adopt: func(ctx context.Context, partition uint32) (*microfs.FS, func(), error) {
			fs, err := t.views.Rank(ctx, int(partition), time.Now())
			return fs, func() {}, err
		},
		Space: t.views.Space,
		Copy:  s.Copy,
		Grow: func(partitions uint32) (uint32, error) {
			ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
			defer cancel()
			n, err := part.Grow(ctx, s.cfg, int(partitions), s.info)
			t.views.Forget()
			return uint32(n), err
		},
	})
	part.Sweep = func(rank int, fs *microfs.FS) error { return t.index.Sweep(uint32(rank), fs) }
	for _, rank := range unreleased {
		if rank != parttable.Singleton {
			t.index.Adopt(uint32(rank))
		}
	}
	return t.index, nil
}

// info tells what is of interest where --log=info asks for it.
func (s *Server) info(format string, args ...any) {
	if s.cfg.Log == config.LogInfo {
		s.logf("%s", fmt.Sprintf(format, args...))
	}
}

// close ends all connections and closes the partition.
func (t *treeIndex) close() error {
	for _, l := range t.listen {
		_ = l.Close()
	}
	t.mu.Lock()
	t.closed = true
	x, part, views := t.index, t.part, t.views
	t.mu.Unlock()
	if x != nil {
		x.Close()
	}
	t.closeConns()
	t.pending.Wait()
	if part == nil {
		return nil
	}
	views.Close()
	return part.Close()
}
