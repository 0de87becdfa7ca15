package posixshim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// maxPackets is the most packets of a handover.
const maxPackets = 1 << 20

// A Handover has the packets that a process has handed over.
type Handover struct {
	Rank, Size int
	PID        int

	packets [kindEnd][]*packet // by kind, each in order
}

// ReceiveHandover receives a handover on a SOCK_SEQPACKET socket. io.EOF says that the other process has closed the socket
// without sending anything. Other errors say that the packets are no handover, or not all of it. If there is an error, no
// descriptor is left open.
func ReceiveHandover(socket int) (*Handover, error) {
	in := &Handover{}
	buf := make([]byte, handOverMax)
	for n := 0; ; n++ {
		p, err := receivePacket(socket, buf)
		switch {
		case err != nil:
		case p.kind == kindEnd && int(p.get32(8)) == n && len(in.packets[kindBegin]) == 1:
			begin := in.packets[kindBegin][0]
			in.Rank, in.Size, in.PID = int(int32(begin.get32(8))), int(begin.get32(12)), int(begin.get32(24))
			return in, nil
		case p.kind >= kindEnd || n == maxPackets:
			err = errHandOver
		default:
			in.packets[p.kind] = append(in.packets[p.kind], p)
		}
		if err != nil {
			in.Close()
			if n > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

// Close closes the descriptors that were not taken over. To the processes that have the files, the server has then ended.
func (in *Handover) Close() {
	for _, packets := range in.packets {
		for _, p := range packets {
			if p.fd >= 0 {
				_ = ownfd.Close(p.fd)
				p.fd = -1
			}
		}
	}
}

// Answer sends the result to the process that hands over; nil: it may end.
func (in *Handover) Answer(socket int, err error) error {
	errno := uint32(0)
	if err != nil {
		errno = uint32(Errno(err))
	}
	return sendPacket(socket, newPacket(kindAnswer, -1).put32(8, errno))
}

// file makes an os.File of the descriptor of a packet.
func (p *packet) file(name string) (*os.File, error) {
	if err := unix.SetNonblock(p.fd, true); err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(p.fd), name)
	p.fd = -1
	return f, nil
}

// takePause is the time between two attempts to open a partition that another process has.
const takePause = 20 * time.Millisecond

// TakeOver takes over the open files of another process of this rank. If another process has the partition, it waits until ctx
// ends. If TakeOver fails, descriptors that it has not taken over still belong to in. NewForTakeover has made p.
func (p *Process) TakeOver(ctx context.Context, in *Handover) error {
	p.takeoverMu.Lock() // one takeover at a time uses p.kept
	defer p.takeoverMu.Unlock()
	begin := in.packets[kindBegin][0]
	h := &predecessor{number: uint64(begin.get64(16)), handles: make(map[Handle]Handle)}
	if err := unix.Listen(begin.fd, unix.SOMAXCONN); err != nil { // makes this process the peer (SO_PEERCRED) of new connections
		return fmt.Errorf("the socket of process %d: %w", in.PID, err)
	}
	t := &takeover{p: p, in: in, predecessor: h, files: make(map[Handle]*openFile)}
	if err := t.check(); err != nil {
		return err
	}
	if err := t.mount(ctx); err != nil {
		return err
	}
	t.open()
	t.takeMemory()
	p.mu.RUnlock()
	t.takeLocks()
	h.acquire() // keeps h until the takeover is complete
	defer p.releasePredecessor(h)
	for _, w := range in.packets[kindWatch] {
		if err := t.takeWatch(w); err != nil {
			return err
		}
	}
	var err error
	if h.listen, err = begin.file(serverName(h.number)); err != nil {
		return err
	}
	for _, c := range in.packets[kindCaller] {
		if err := t.takeCaller(c); err != nil {
			return err
		}
	}
	go p.accept(h.listen, h, make(chan struct{}))
	return nil
}

// takeover is a handover that p is taking over.
type takeover struct {
	p           *Process
	in          *Handover
	predecessor *predecessor
	files       map[Handle]*openFile // by the handles of the other process
}

// check checks that the packets are consistent. It makes the open files and counts their references.
func (t *takeover) check() error {
	if int(t.p.files.count.Load())+len(t.in.packets[kindFile]) > chunks*chunkFiles/2 {
		return syscall.ENFILE
	}
	for _, k := range t.in.packets[kindFile] {
		h := k.handle(8)
		at := mountNumber(k.ino(16))
		if h <= 0 || h&Itself != 0 || h>>32 > takeoverGeneration || t.files[h] != nil || at >= microfs.Ino(len(t.p.mounts)) {
			return errHandOver
		}
		f := &openFile{mountPoint: t.p.mounts[at], isDir: k.get32(48)&fileIsDir != 0, dir: k.ino(24), path: string(k.b[56:]), predecessor: t.predecessor, offset: max(k.get64(32), 0)}
		f.flags.Store(int32(k.get32(40)))
		if errno := k.get32(44); errno != 0 && errno < maxErrno {
			err := error(syscall.Errno(errno))
			f.relayErr.Store(&err)
		}
		t.files[h] = f
	}
	refer := func(h Handle, n int64) bool {
		f := t.files[h]
		if f != nil {
			f.refs.Add(int32(n))
		}
		return f != nil && n > 0 && n < 1<<20
	}
	for _, k := range t.in.packets[kindWatch] {
		if !refer(k.handle(8), 1) {
			return errHandOver
		}
	}
	for _, k := range t.in.packets[kindCaller] {
		for at := handOverSizes[kindCaller]; at < len(k.b); at += 16 {
			if !refer(k.handle(at), k.get64(at+8)) {
				return errHandOver
			}
		}
	}
	for _, k := range t.in.packets[kindMemory] {
		if h := k.handle(24); h != 0 && !refer(h, 1) || k.get64(16) < 0 {
			return errHandOver
		}
	}
	return nil
}

// mount opens the mounts of the files, for writing if a file needs it, and in any case the first mount. The caller calls
// p.mu.RUnlock.
func (t *takeover) mount(ctx context.Context) error {
	writes := make(map[*mountPoint]bool)
	var kept []microfs.Ino
	for _, k := range t.in.packets[kindFile] {
		m := t.files[k.handle(8)].mountPoint
		writes[m] = writes[m] || k.get32(40)&syscall.O_ACCMODE != syscall.O_RDONLY && k.get32(40)&unix.O_PATH == 0 || k.get32(48)&fileNameless != 0
		kept = append(kept, k.ino(16))
	}
	t.p.kept.Store(&kept)
	defer t.p.kept.Store(nil)
	first := t.p.mounts[0]
	for m, write := range writes {
		if m == first {
			continue
		}
		if err := m.wait(ctx, write); err != nil {
			return err
		}
		t.p.mu.RUnlock()
	}
	return first.wait(ctx, writes[first])
}

// wait is acquire, but repeats it while another process has the partition.
func (m *mountPoint) wait(ctx context.Context, write bool) error {
	for {
		_, err := m.acquire(write)
		if err == nil || !errors.Is(err, syscall.EBUSY) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(takePause):
		}
	}
}

// open opens the files in their mounts. Calls on a file that cannot be opened fail with ESTALE.
func (t *takeover) open() {
	for _, k := range t.in.packets[kindFile] {
		f := t.files[k.handle(8)]
		refs := f.refs.Load()
		if refs == 0 { // no watch, connection or memory refers to it
			continue
		}
		file, err := f.reopen(k.ino(16))
		if err != nil {
			t.p.logf("%s, which process %d had open, cannot be used any more: %v", f.path, t.in.PID, err)
			file = staleFile{staleIdentity{ino: k.ino(16), dir: f.isDir}}
		}
		f.first = file
		f.file.Store(&f.first)
		h, _ := t.p.files.add(f) // there is space: see check
		f.refs.Store(refs)
		t.predecessor.acquire()
		t.predecessor.handles[k.handle(8)] = h
	}
}

// reopen opens a file by its inode or, if the file system cannot do that, by its path.
func (f *openFile) reopen(ino microfs.Ino) (vfs.File, error) {
	if !f.mountPoint.mounted() { // Finish has closed the mount
		return nil, errFinished
	}
	fs := f.mountPoint.mount.FS
	flags := int(f.flags.Load()) & (syscall.O_ACCMODE | syscall.O_APPEND | syscall.O_DSYNC | unix.O_PATH)
	if f.isDir {
		return fs.Open(ino, ".", flags, 0)
	}
	file, err := fs.OpenIno(ino, flags)
	if !errors.Is(err, syscall.ESTALE) {
		return file, err
	}
	if file, err = fs.Open(f.dir, f.path, flags, 0); err == nil && file.Ino() != ino {
		err = errors.Join(syscall.ESTALE, file.Close())
	}
	return file, err
}

// staleIdentity is the file of a staleFile that this process could not open.
type staleIdentity struct {
	vfs.File
	ino microfs.Ino
	dir bool
}

func (g staleIdentity) Ino() microfs.Ino { return g.ino }
func (g staleIdentity) IsDir() bool      { return g.dir }

// takeMemory takes over the memory of mapped files.
func (t *takeover) takeMemory() {
	maps := &t.p.maps
	maps.mu.Lock()
	defer maps.mu.Unlock()
	refs := make(map[microfs.Ino]int)
	for _, k := range t.in.packets[kindCaller] {
		for at := handOverSizes[kindCaller]; at < len(k.b); at += 16 {
			refs[t.files[k.handle(at)].current().Ino()] += int(k.get64(at + 8))
			t.p.server.peerMappings.Add(int32(k.get64(at + 8)))
		}
	}
	clean := make(map[microfs.Ino]*packet)
	for _, k := range t.in.packets[kindClean] {
		clean[k.ino(8)] = k
	}
	for _, k := range t.in.packets[kindMemory] {
		ino := k.ino(8)
		m := newMapping()
		m.fd, m.refs, m.writer = k.fd, refs[ino], t.files[k.handle(24)]
		c := clean[ino]
		if c != nil {
			m.clean.fd = c.fd
		}
		err := error(syscall.EBUSY)
		if maps.files[ino] == nil && refs[ino] != 0 {
			err = m.takeOver(k.get64(16))
		}
		if err != nil {
			t.p.logf("memory of a file that process %d had mapped for others: what they write to it is lost: %v", t.in.PID, err)
			continue
		}
		k.fd = -1
		if c != nil {
			c.fd = -1
		}
		if maps.files == nil {
			maps.files = make(map[microfs.Ino]*mapping)
		}
		maps.files[ino] = m
	}
	maps.count.Store(int32(len(maps.files)))
}

// takeOver takes over memory of a size. If the memory has a writer it needs the copy too, by which changes are found.
func (m *mapping) takeOver(size int64) error {
	for _, fd := range []int{m.fd, m.clean.fd} {
		if fd < 0 && m.writer == nil {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Size != size {
			return syscall.EBUSY
		}
	}
	return m.resize(size, true)
}

// takeLocks takes over locks.
func (t *takeover) takeLocks() {
	l := &t.p.locks
	defer l.reacquire(t.p.logf)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range t.in.packets[kindLock] {
		by, owner := t.files[k.handle(24)], k.handle(16)
		if owner > 0 {
			owner = t.predecessor.handles[owner]
		}
		what := k.get32(48)
		if by == nil || owner == 0 || k.get64(32) < 0 || k.get64(40) <= k.get64(32) {
			continue
		}
		table := &l.ranges
		if what&2 != 0 {
			table = &l.flocks
		}
		ino := k.ino(8)
		l.store(table, ino, append((*table)[ino], lock{owner: owner, by: by, start: k.get64(32), end: k.get64(40), write: what&1 != 0}))
	}
}

// takeWatch takes over a sharing.
func (t *takeover) takeWatch(k *packet) error {
	f := t.files[k.handle(8)]
	end, err := k.file("a sharing of " + f.path)
	if err != nil {
		return err
	}
	w := &watch{File: end, stopped: make(chan struct{})}
	w.detached.Store(true)
	if k.get32(16)&1 != 0 {
		h := f.handle
		w.relay = &relay{file: f, write: func(b []byte) (int, error) { return t.p.Write(h, b, NoLimit) }}
	}
	f.share(w)
	if w.relay != nil {
		t.p.addRelay(w)
	}
	t.p.watchFor(f, w)
	return nil
}

// takeCaller takes over a connection.
func (t *takeover) takeCaller(k *packet) error {
	conn, err := k.file("a connection")
	if err != nil {
		return err
	}
	t.p.server.connections.Add(1)
	c := t.p.server.addConnection(conn, t.predecessor)
	c.m.process = int(min(k.get32(8), math.MaxInt32))
	for at := handOverSizes[kindCaller]; at < len(k.b); at += 16 {
		if c.m.maps == nil {
			c.m.maps = make(map[Handle]int)
		}
		c.m.maps[t.predecessor.handles[k.handle(at)]] += int(k.get64(at + 8))
	}
	t.p.serveConnection(c)
	return nil
}
