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

// A process that ends, or executes a program, hands over what others have of it to its successor: where it
// listens, the open files, the ends of their sharing sockets, the connections of those it serves, their locks,
// and the memory of their mappings. To them nothing changes: the names of their descriptors and their
// connections stay what they are. Their next call waits until the successor goes on.

// A Successor goes on with what a process has open.
type Successor struct {
	Socket     int // connected to it, for the caller to close
	Rank, Size int // of this process
}

// answerTime is how long a process waits for its successor's answer: longer than that waits for a target.
const answerTime = 2 * time.Minute

// handingOver is what is handed over, while that is found out.
type handingOver struct {
	p       *Process
	callers []*connection
	files   map[Handle]*openFile
	watches map[Handle][]*watch
	packets []*packet
}

// HandOver gives what other processes have open of this one, mappings among it, to its successor, and closes the rest and
// the partition. It returns the number by which the files are known, and are to be asked for from now on, also by this
// process, which then has nothing open. If nothing is to be handed over that is 0. executes says that the process
// executes a program, which keeps its record locks.
//
// What goes wrong the user is told. An error says that others cannot use the files any more.
func (p *Process) HandOver(executes int) (int, error) {
	self := p.server.self.Load()
	if self == nil || self.listen.Load() == nil {
		return 0, nil
	}
	if p.sharedFiles() == 0 { // by now
		p.server.answerAll()
		return 0, nil
	}
	listen := self.listen.Load()
	_ = listen.SetReadDeadline(past)
	<-self.accepted // it has given a descriptor back that the connection may need
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
	e := &handingOver{p: p, callers: p.server.haltAll(), files: make(map[Handle]*openFile), watches: make(map[Handle][]*watch)}
	err = e.find(executes != 0)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err = errors.Join(err, p.abandon(e)); err != nil {
		p.logf("process %d: what it wrote may not be complete: %v", os.Getpid(), err)
	}
	err = e.send(to, self)
	e.close()
	p.server.self.Store(nil) // if others come again it is by another number
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

// find fills in what is handed over. The caller does not hold p.mu: sharings that end meanwhile need it.
func (e *handingOver) find(executes bool) error {
	p := e.p
	p.files.each(func(f *openFile) {
		for w := f.watch.Load(); w != nil; w = w.older {
			// The successor finds out which of them have ended, and takes what is left in them.
			if w.halt(); !w.over.Load() {
				e.files[f.handle] = f
				e.watches[f.handle] = append(e.watches[f.handle], w)
			}
		}
	})
	err := p.SyncMappings()
	mappedByPeers := make(map[microfs.Ino]bool)
	for _, c := range e.callers {
		for h := range c.m.maps {
			if f, err := p.files.get(h); err == nil {
				e.files[h] = f
				mappedByPeers[f.current().Ino()] = true
			}
		}
	}
	err = errors.Join(err, e.findMemory(mappedByPeers))
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
	for _, c := range e.callers {
		e.addFile(c.conn, c.packet())
	}
	e.findLocks(executes)
	return err
}

func (e *handingOver) add(p *packet) { e.packets = append(e.packets, p) }

// addFile adds a packet with a descriptor, unless that has been closed meanwhile.
func (e *handingOver) addFile(f *os.File, p *packet) {
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { p.fd = int(fd) })
	}
	if err == nil {
		e.add(p)
	}
}

// packet describes an open file. What could not be written the successor tells who next asks.
func (f *openFile) packet() *packet {
	err := f.unwritten()
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

// A keeper is a file that stays until the successor has opened it, whatever becomes of its names and of this process.
type keeper interface{ Keep() error }

// keep keeps a file without a name, if somebody else than the process has its names. One of a microfs stays where the successor mounts that for
// writing (Kept).
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

// findMemory adds the memory of files that others have mapped, with all that is in it.
func (e *handingOver) findMemory(mappedByPeers map[microfs.Ino]bool) error {
	t := &e.p.maps
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for ino, m := range t.files {
		if !mappedByPeers[ino] || m.fd < 0 { // a mapping of the view needs no memory of ours
			continue
		}
		p := newPacket(kindMemory, m.fd).put64(8, int64(ino))
		for _, f := range e.files {
			if f.current().Ino() == ino && f.flags.Load()&syscall.O_ACCMODE != syscall.O_WRONLY {
				errs = append(errs, m.fill(e.p, f, 0, math.MaxInt64-mapChunk))
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

// findLocks adds the locks on files that are handed over. Record locks of this process end with it, unless it
// executes a program.
func (e *handingOver) findLocks(executes bool) {
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
	for ino, held := range l.whole {
		add(ino, held, 2)
	}
}

// abandon ends the use of the partition, without an end of the files that are handed over. The caller holds p.mu.
func (p *Process) abandon(e *handingOver) error {
	var errs []error
	p.files.each(func(f *openFile) {
		if e.files[f.handle] == nil && f.at.mounted() {
			errs = append(errs, f.current().Close())
		}
		p.files.remove(f)
	})
	errs = append(errs, p.unmount())
	p.locks.forgetAll()
	return errors.Join(errs...)
}

// send sends it all, and waits until the successor has it.
func (e *handingOver) send(to Successor, self *identity) error {
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

// close closes what the successor has by now.
func (e *handingOver) close() {
	s := &e.p.server
	if listen := s.identity().listen.Load(); listen != nil {
		_ = ownfd.CloseFile(listen)
	}
	s.callersMu.Lock()
	for _, c := range e.callers {
		delete(s.callers, c)
		_ = ownfd.CloseFile(c.conn)
	}
	s.callersMu.Unlock()
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
