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

// treeIndex serves the index of the job's tree (docs/dev/tree.md). In a run with one tree, the server on the host of
// `nvmecr run` has it. From the first connection until Close it holds the singleton partition.
type treeIndex struct {
	listen  []net.Listener
	pending sync.WaitGroup
	others  atomic.Int32 // number of connections

	connecting sync.Mutex // guards the fields below
	conns      map[net.Conn]struct{}
	ending     bool

	mu     sync.Mutex // also held while the partition is opened or closed
	closed bool
	index  *index.Index // nil until the first connection
	part   *store.Partition
	views  *store.Views
}

// ServeTree begins to accept connections to the index of the job's tree: of processes of this host, and at others,
// which may be nil, of processes that know the secret of the run. It is called once, after TakeOver and before Close.
func (s *Server) ServeTree(others net.Listener) error {
	if err := shortenSlices(); err != nil {
		s.info("the job's files: the index may answer late where the processors are busy: %v", err)
	}
	here, err := owner.ListenForIndex(store.LockGroup(s.cfg.Run))
	if err != nil {
		return err
	}
	s.index.listen = append(s.index.listen, here)
	s.index.pending.Go(func() { s.acceptTree(here, s.serveLocal) })
	if others != nil {
		s.index.listen = append(s.index.listen, others)
		s.index.pending.Go(func() { s.acceptTree(others, s.serveRemote) })
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

// enter registers a connection, or closes it if the server is closing.
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

// closeConns closes the connections that are not yet passed to the index: Close must not wait for a client that sends
// nothing.
func (t *treeIndex) closeConns() {
	t.connecting.Lock()
	defer t.connecting.Unlock()
	t.ending = true
	for conn := range t.conns {
		_ = conn.Close()
	}
}

// serveLocal serves one connection of this host, if the peer is a process of this user.
func (s *Server) serveLocal(conn net.Conn) {
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
	if err != nil { // the peer has ended
		_ = conn.Close()
		return
	}
	s.serveTree(bindToProcess(conn, int(cred.Pid)), window, who)
	if err := owner.CloseWindow(window); err != nil {
		s.logf("index of the tree: memory to share with %s: %v", who, err)
	}
}

// authTimeout is how long a process of another host may take to prove that it belongs to the run.
var authTimeout = 10 * time.Second

// serveRemote serves one connection of another host, if the peer proves that it belongs to the run.
func (s *Server) serveRemote(conn net.Conn) {
	secret := wire.Secret(s.cfg.IndexSecret)
	_ = conn.SetDeadline(time.Now().Add(authTimeout))
	if secret.Challenge(conn) != nil { // no message: any user of the network can connect
		_ = conn.Close()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	if err := enableKeepalive(conn.(*net.TCPConn), s.cfg.Timeout); err != nil {
		s.logf("the end of another host of the job may be noticed late: %v", err)
	}
	s.index.others.Add(1)
	defer s.index.others.Add(-1)
	s.serveTree(conn, nil, "a process of "+conn.RemoteAddr().String())
}

// enableKeepalive makes a connection fail after a time-out when the other host has vanished, whether or not data is
// in flight.
func enableKeepalive(conn *net.TCPConn, patience time.Duration) error {
	const probes = 3
	every := max(patience/(1+probes), time.Second) // in whole seconds
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
	_ = conn.SetDeadline(time.Now().Add(authTimeout))
	peer := wire.NewPeer(conn)
	if _, gone := peer.Next(); gone == nil {
		_ = peer.Answer(err, nil, nil) // the client may be gone
	}
}

// reopenPause is the pause between two attempts to open the index.
const reopenPause = 100 * time.Millisecond

// awaitTree opens the index. While a target cannot be reached it tries again: nvmecr run has reached all targets
// before the job.
func (s *Server) awaitTree() (*index.Index, error) {
	for begin := time.Now(); ; time.Sleep(reopenPause) {
		x, err := s.openTree()
		if !store.Unavailable(err) || time.Since(begin)+reopenPause > s.cfg.Timeout {
			return x, err
		}
	}
}

// openTree makes one attempt to open the index.
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

// info logs a message at the level --log=info.
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
