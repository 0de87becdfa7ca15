package posixshim

import (
	"errors"
	"math"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A process that ends, or executes a program, hands over to its successor what other processes have open: the socket on which it
// listens, the open files, the owner's ends of their sharing sockets, the connections, the locks, and the memory of mappings. For
// the other processes nothing changes: the names of their descriptors and their connections stay the same. Their next call waits
// until the successor has taken over.

// A Successor is a connection to the process that takes over, nvmecr serve.
type Successor struct {
	Socket     int // the caller closes it
	Rank, Size int // of this process
}

// answerTime is how long a process waits for its successor's answer. It is longer than the successor waits for a target.
const answerTime = 2 * time.Minute

// handoverSender collects what is handed over, and sends it.
type handoverSender struct {
	p       *Process
	peers   []*connection
	files   map[Handle]*openFile
	watches map[Handle][]*watch
	packets []*packet
}

// HandOver gives the open files and mappings that other processes have to the successor, and closes all other files and the
// mounts. It returns the number by which the successor is now addressed for the files, also by this process, which has no file
// open any more. It returns 0 if there is nothing to hand over. executes says that the process executes a program, which keeps
// the record locks of the process.
//
// Errors are printed. If HandOver returns an error, the other processes cannot use the files any more.
func (p *Process) HandOver(executes int) (int, error) {
	self := p.server.self.Load()
	if self == nil || self.listen.Load() == nil {
		return 0, nil
	}
	if p.sharedFiles() == 0 { // they have been closed since Alone
		p.server.answerAll()
		return 0, nil
	}
	listen := self.listen.Load()
	_ = listen.SetReadDeadline(past)
	<-self.accepted // accept has closed its spare descriptor, which the connection may need
	to, err := p.connectToSuccessor()
	if err != nil {
		p.logf("process %d ends and cannot hand the open files that it shares over to nvmecr serve: calls of other processes on them fail: %v",
			os.Getpid(), err)
		_ = listen.SetReadDeadline(time.Time{})
		self.accepted = make(chan struct{})
		go p.accept(listen, nil, self.accepted)
		return 0, syscall.EIO
	}
	defer ownfd.Close(to.Socket)
	e := &handoverSender{p: p, peers: p.server.haltAll(haltTime), files: make(map[Handle]*openFile), watches: make(map[Handle][]*watch)}
	err = e.collect(executes != 0)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err = errors.Join(err, p.closeRest(e)); err != nil {
		p.logf("process %d: what it wrote may not be complete: %v", os.Getpid(), err)
	}
	err = e.send(to, self)
	e.close()
	p.server.self.Store(nil) // if this process serves again, it has another number
	if err != nil {
		p.logf("process %d ends and could not hand over the open files that it shares: calls of other processes on them fail: %v", os.Getpid(), err)
		return 0, syscall.EIO
	}
	return int(self.number), nil
}

func (p *Process) connectToSuccessor() (Successor, error) {
	if p.Successor == nil {
		return Successor{}, syscall.ENOTCONN
	}
	return p.Successor()
}

// collect collects what is handed over. The caller does not hold p.mu, which sharings that end meanwhile need.
func (e *handoverSender) collect(executes bool) error {
	p := e.p
	p.files.each(func(f *openFile) {
		for w := f.watch.Load(); w != nil; w = w.older {
			// The successor finds out which sharings have ended, and relays the data that is left in their sockets.
			if w.halt(); !w.finished.Load() {
				e.files[f.handle] = f
				e.watches[f.handle] = append(e.watches[f.handle], w)
			}
		}
	})
	err := p.SyncMappings()
	mappedByPeers := make(map[microfs.Ino]bool)
	for _, c := range e.peers {
		for h := range c.m.maps {
			if f, err := p.files.get(h); err == nil {
				e.files[h] = f
				mappedByPeers[f.current().Ino()] = true
			}
		}
	}
	err = errors.Join(err, e.collectMemory(mappedByPeers))
	for _, f := range e.files {
		e.add(f.packet())
	}
	for h, watches := range e.watches {
		for _, w := range watches {
			relays := uint32(0)
			if w.relay != nil {
				relays = 1
			}
			e.addFile(w.File, newPacket(kindWatch, -1).put64(8, int64(h)).put32(16, relays))
		}
	}
	for _, c := range e.peers {
		e.addFile(c.conn, c.packet())
	}
	e.collectLocks(executes)
	return err
}

func (e *handoverSender) add(p *packet) { e.packets = append(e.packets, p) }

// addFile adds a packet with the descriptor of f, unless f has been closed.
func (e *handoverSender) addFile(f *os.File, p *packet) {
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { p.fd = int(fd) })
	}
	if err == nil {
		e.add(p)
	}
}

// packet describes an open file. Errors of writing to it are in the packet: the successor returns them to the next process that
// asks.
func (f *openFile) packet() *packet {
	err := f.takeRelayErr()
	if f.flags.Load()&syscall.O_ACCMODE != syscall.O_RDONLY {
		err = errors.Join(err, f.current().Sync())
	}
	what, errno := uint32(0), uint32(0)
	if f.isDir {
		what = fileIsDir
	}
	if a, e := f.current().Stat(); e == nil && a.Nlink == 0 && !f.isDir {
		kept, e := keep(f.current())
		if err = errors.Join(err, e); !kept {
			what |= fileNameless
		}
	}
	if err != nil {
		errno = uint32(Errno(err))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := newPacket(kindFile, -1).put64(8, int64(f.handle)).put64(16, int64(f.current().Ino())).put64(24, int64(f.dir)).
		put64(32, f.offset).put32(40, uint32(f.flags.Load())).put32(44, errno).put32(48, what).put32(52, uint32(len(f.path)))
	p.b = append(p.b, f.path...)
	return p
}

// A keeper is a file that can be kept until the successor has opened it, though it has no name and this process ends.
type keeper interface{ Keep() error }

// keep keeps a file without a name, if the file system supports that (keeper). A file of microfs is kept otherwise: the successor
// opens the mount for writing, with the list of Kept.
func keep(f vfs.File) (kept bool, err error) {
	if n, ok := f.(interface{ inner() vfs.File }); ok {
		f = n.inner()
	}
	k, ok := f.(keeper)
	if !ok {
		return false, nil
	}
	return true, k.Keep()
}

// packet describes a connection.
func (c *connection) packet() *packet {
	p := newPacket(kindCaller, -1).put32(8, uint32(c.m.process)).put32(12, uint32(len(c.m.maps)))
	for h, times := range c.m.maps {
		at := len(p.b)
		p.b = append(p.b, make([]byte, 16)...)
		p.put64(at, int64(h)).put64(at+8, int64(times))
	}
	return p
}

// collectMemory adds the memory of files that other processes have mapped. It first loads all of it from the files.
func (e *handoverSender) collectMemory(mappedByPeers map[microfs.Ino]bool) error {
	t := &e.p.maps
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for ino, m := range t.files {
		if !mappedByPeers[ino] || m.fd < 0 { // a mapping from the view has no memory
			continue
		}
		p := newPacket(kindMemory, m.fd).put64(8, int64(ino))
		for _, f := range e.files {
			if f.current().Ino() == ino && f.flags.Load()&syscall.O_ACCMODE != syscall.O_WRONLY {
				errs = append(errs, m.load(e.p, f, 0, math.MaxInt64-mapChunk))
				break
			}
		}
		if w := m.writer; w != nil {
			e.files[w.handle] = w
			p.put64(24, int64(w.handle))
		}
		m.mu.Lock()
		e.add(p.put64(16, m.size))
		if m.clean.fd >= 0 {
			e.add(newPacket(kindClean, m.clean.fd).put64(8, int64(ino)))
		}
		m.mu.Unlock()
	}
	return errors.Join(errs...)
}

// collectLocks adds the locks on files that are handed over. Record locks of this process end with it, unless it executes a
// program.
func (e *handoverSender) collectLocks(executes bool) {
	l := &e.p.locks
	l.mu.Lock()
	defer l.mu.Unlock()
	add := func(ino microfs.Ino, held []lock, whole uint32) {
		for _, k := range held {
			if e.files[k.by.handle] == nil || k.owner == ofProcess(syscall.Getpid()) && !executes {
				continue
			}
			what := whole
			if k.write {
				what |= 1
			}
			e.add(newPacket(kindLock, -1).put64(8, int64(ino)).put64(16, int64(k.owner)).put64(24, int64(k.by.handle)).
				put64(32, k.start).put64(40, k.end).put32(48, what))
		}
	}
	for ino, held := range l.ranges {
		add(ino, held, 0)
	}
	for ino, held := range l.flocks {
		add(ino, held, 2)
	}
}

// closeRest closes the files that are not handed over, and the mounts. The caller holds p.mu.
func (p *Process) closeRest(e *handoverSender) error {
	var errs []error
	p.files.each(func(f *openFile) {
		if e.files[f.handle] == nil && f.mountPoint.mounted() {
			errs = append(errs, f.current().Close())
		}
		p.files.remove(f)
	})
	errs = append(errs, p.unmount())
	p.locks.clear()
	return errors.Join(errs...)
}

// send sends all packets, and waits for the successor's answer.
func (e *handoverSender) send(to Successor, self *identity) error {
	begin := newPacket(kindBegin, -1).put32(8, uint32(int32(to.Rank))).put32(12, uint32(to.Size)).
		put64(16, int64(self.number)).put32(24, uint32(os.Getpid()))
	rest := e.packets
	e.packets = nil
	e.addFile(self.listen.Load(), begin)
	e.packets = append(e.packets, rest...)
	e.add(newPacket(kindEnd, -1).put32(8, uint32(len(e.packets))))
	for _, p := range e.packets {
		if err := sendPacket(to.Socket, p); err != nil {
			return err
		}
	}
	wait := unix.NsecToTimeval(answerTime.Nanoseconds())
	if err := unix.SetsockoptTimeval(to.Socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return err
	}
	answer, err := receivePacket(to.Socket, make([]byte, handOverMax))
	switch {
	case err != nil:
		return err
	case answer.kind != kindAnswer:
		return errHandOver
	case answer.get32(8) != 0:
		return syscall.Errno(answer.get32(8))
	}
	return nil
}

// close closes the descriptors that the successor has.
func (e *handoverSender) close() {
	s := &e.p.server
	if listen := s.identity().listen.Load(); listen != nil {
		_ = ownfd.CloseFile(listen)
	}
	s.peersMu.Lock()
	for _, c := range e.peers {
		delete(s.peers, c)
		_ = ownfd.CloseFile(c.conn)
	}
	s.peersMu.Unlock()
	for _, watches := range e.watches {
		for _, w := range watches {
			e.p.removeRelay(w)
			_ = ownfd.CloseFile(w.File)
		}
	}
	t := &e.p.maps
	t.mu.Lock()
	for ino, m := range t.files {
		delete(t.files, ino)
		m.free()
	}
	t.count.Store(0)
	t.mu.Unlock()
	s.peerMappings.Store(0)
}
