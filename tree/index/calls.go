package index

import (
	"fmt"
	"math"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// A call is a request that can be executed. run is called with the lock of the index. If it returns an *adoption it
// is called again later, and must not have changed anything.
type call interface {
	run(c *client) (wire.Body, error)
}

// One type for each operation.
type (
	hello struct {
		wire.Hello
		welcome wire.Welcome
	}
	goodbye     struct{ hasty bool }
	openCall    struct{ wire.Open }
	openInoCall struct{ wire.OpenIno }
	keepCall    struct{ wire.Keep }
	closeCall   struct {
		wire.Close
		hasty bool
	}
	publishCall  struct{ wire.Publication }
	mapCall      struct{ wire.Map }
	appendCall   struct{ wire.Append }
	writeCall    struct{ wire.Write }
	readCall     struct{ wire.Read }
	statCall     struct{ wire.Stat }
	setAttrCall  struct{ wire.SetAttr }
	truncCall    struct{ wire.Truncate }
	allocCall    struct{ wire.Allocate }
	readDirCall  struct{ wire.ReadDir }
	accessCall   struct{ wire.Access }
	mkdirCall    struct{ wire.Mkdir }
	unlinkCall   struct{ wire.Unlink }
	renameCall   struct{ wire.Rename }
	linkCall     struct{ wire.Link }
	symlinkCall  struct{ wire.Symlink }
	readlinkCall struct{ wire.Readlink }
	pathCall     struct{ wire.Path }
	syncCall     struct{}
	lockCall     struct{ wire.Lock }
	shardsCall   struct{ wire.Shards }
	growCall     struct{ wire.Grow }
	setCredCall  struct{ wire.Cred }
	reopenCall   struct{ wire.Reopen }
	leaveCall    struct{ wire.Leave }
)

// newCall returns the call of an operation, nil if there is none.
func newCall(op wire.Op) call {
	if int(op) < len(calls) && calls[op] != nil {
		return calls[op]()
	}
	return nil
}

var calls = [...]func() call{
	wire.OpHello:    func() call { return new(hello) },
	wire.OpGoodbye:  func() call { return new(goodbye) },
	wire.OpOpen:     func() call { return new(openCall) },
	wire.OpOpenIno:  func() call { return new(openInoCall) },
	wire.OpClose:    func() call { return new(closeCall) },
	wire.OpPublish:  func() call { return new(publishCall) },
	wire.OpMap:      func() call { return new(mapCall) },
	wire.OpAppend:   func() call { return new(appendCall) },
	wire.OpWrite:    func() call { return new(writeCall) },
	wire.OpRead:     func() call { return new(readCall) },
	wire.OpStat:     func() call { return new(statCall) },
	wire.OpSetAttr:  func() call { return new(setAttrCall) },
	wire.OpTruncate: func() call { return new(truncCall) },
	wire.OpAllocate: func() call { return new(allocCall) },
	wire.OpReadDir:  func() call { return new(readDirCall) },
	wire.OpAccess:   func() call { return new(accessCall) },
	wire.OpMkdir:    func() call { return new(mkdirCall) },
	wire.OpUnlink:   func() call { return new(unlinkCall) },
	wire.OpRename:   func() call { return new(renameCall) },
	wire.OpLink:     func() call { return new(linkCall) },
	wire.OpSymlink:  func() call { return new(symlinkCall) },
	wire.OpReadlink: func() call { return new(readlinkCall) },
	wire.OpPath:     func() call { return new(pathCall) },
	wire.OpStatFS:   func() call { return new(statFSCall) },
	wire.OpSync:     func() call { return syncCall{} },
	wire.OpLock:     func() call { return new(lockCall) },
	wire.OpShards:   func() call { return new(shardsCall) },
	wire.OpGrow:     func() call { return new(growCall) },
	wire.OpSetCred:  func() call { return new(setCredCall) },
	wire.OpReopen:   func() call { return new(reopenCall) },
	wire.OpReadCopy: func() call { return new(readCopyCall) },
	wire.OpKeep:     func() call { return new(keepCall) },
	wire.OpLeave:    func() call { return new(leaveCall) },
}

func (r *hello) before(c *client) error {
	if err := c.check(&r.Hello); err != nil {
		return err
	}
	n, err := c.x.grow(0)
	if err == nil && n > 0 && r.Partition != wire.NoPartition && r.Partition >= n { // ranges would refer to it forever
		return fmt.Errorf("process %d is to write partition %d, and the store has %d; it has to ask for more first: %w", r.PID, r.Partition, n, syscall.EINVAL)
	}
	r.welcome = wire.Welcome{Timeout: c.x.opts.Timeout, Partitions: n, Index: c.x.id, DataCRC: c.x.fs.DataCRC()}
	return err
}

func (r *hello) run(c *client) (wire.Body, error) {
	return &r.welcome, c.register(&r.Hello)
}

func (r *goodbye) run(c *client) (wire.Body, error) {
	for _, s := range c.files {
		if err := s.awaited(s.writers); err != nil && !r.hasty {
			return nil, err
		}
	}
	c.goodbye()
	return nil, nil
}

func (r *goodbye) hurry() { r.hasty = true }

func (r *openCall) run(c *client) (wire.Body, error) {
	x, flags := c.x, int(r.Flags)
	a, err := x.fs.Stat(r.Dir, r.Path, flags&unix.O_NOFOLLOW == 0)
	if err == nil && flags&unix.O_PATH == 0 {
		if err := c.pendingAdoption(&a); err != nil {
			return nil, err
		}
	}
	var held *file
	if err == nil && flags&unix.O_TRUNC != 0 && a.Mode&unix.S_IFMT == unix.S_IFREG {
		if held, err = x.hold(a.Ino); err != nil {
			return nil, err
		}
		defer held.release()
		if err := held.noteUnmapped(0, math.MaxInt64); err != nil {
			return nil, err
		}
	}
	h, err := x.fs.Open(r.Dir, r.Path, flags, r.Mode)
	if err != nil {
		return nil, err
	}
	return c.open(h, r.Flags)
}

func (r *openInoCall) run(c *client) (wire.Body, error) {
	a, err := c.x.inode(r.Ino)
	if err == nil {
		err = c.pendingAdoption(&a)
	}
	if err != nil {
		return nil, err
	}
	h, err := c.x.fs.OpenIno(r.Ino, int(r.Flags))
	if err != nil {
		return nil, err
	}
	answer, err := c.open(h, r.Flags)
	if err == nil {
		err = c.x.unkeep(r.Ino)
	}
	return answer, err
}

func (r *keepCall) run(c *client) (wire.Body, error) {
	if _, err := c.session(r.Ino, false); err != nil || c.x.kept[r.Ino] != nil {
		return nil, err
	}
	f, err := c.x.hold(r.Ino)
	if err == nil {
		c.x.kept[r.Ino] = f
	}
	return nil, err
}

// unkeep undoes keepCall.
func (x *Index) unkeep(ino microfs.Ino) error {
	f := x.kept[ino]
	if f == nil {
		return nil
	}
	delete(x.kept, ino)
	return f.release()
}

func (r *closeCall) run(c *client) (wire.Body, error) {
	s, err := c.session(r.Ino, r.Writer)
	if err != nil || !r.Writer && s.opens == s.writers {
		return nil, syscall.EBADF
	}
	if err := s.awaited(b2i(r.Writer)); err != nil && !r.hasty {
		return nil, err
	}
	if len(r.Ranges) > 0 {
		if !r.Writer {
			return nil, syscall.EBADF
		}
		if err := s.lockedByOther(&r.Publication); err != nil && !r.hasty {
			return nil, err
		}
		err = c.publish(s, &r.Publication)
	}
	if cerr := c.x.drop(s, 1, b2i(r.Writer), r.Failed || err != nil); err == nil {
		err = cerr
	}
	return nil, err
}

func (r *leaveCall) run(c *client) (wire.Body, error) {
	s, err := c.session(r.Ino, false)
	if err != nil || s.opens == s.writers {
		return nil, syscall.EBADF
	}
	return nil, c.x.drop(s, 1, 0, false)
}

func (r *closeCall) hurry() { r.hasty = true }

// awaited returns, as an error, the adoption to wait for before so many writers close the file: it decides whether
// the last close makes the file complete.
func (s *session) awaited(writers int) error {
	if f := s.file; writers > 0 && f.reopened && f.writers == writers {
		return f.x.pendingSearch()
	}
	return nil
}

func (r *publishCall) run(c *client) (wire.Body, error) {
	s, err := c.session(r.Ino, true)
	if err != nil {
		return nil, err
	}
	if err := s.lockedByOther(&r.Publication); err != nil {
		return nil, err
	}
	return s.file.attrAnswer(c.publish(s, &r.Publication))
}

func (r *mapCall) run(c *client) (wire.Body, error) {
	s, err := c.session(r.Ino, false)
	if err != nil {
		return nil, err
	}
	a, err := s.file.read.Stat()
	if err == nil {
		err = c.pendingAdoption(&a)
	}
	if err != nil {
		return nil, err
	}
	if r.Off < 0 || r.Len < 0 {
		return nil, syscall.EINVAL
	}
	answer, err := c.mapOf(s.file, r.Off, r.Len, wire.MaxSegments)
	return answer, err
}

func (r *appendCall) run(c *client) (wire.Body, error) {
	s, err := c.session(r.Ino, true)
	if err != nil {
		return nil, err
	}
	if err := s.file.pendingAdoption(); err != nil {
		return nil, err
	}
	answer, err := s.reserve(r.Len, r.Limit)
	return answer, err
}

func (r *writeCall) run(c *client) (wire.Body, error) {
	s, err := c.session(r.Ino, true)
	if err != nil {
		return nil, err
	}
	if r.Off == wire.AtEnd {
		if err := s.file.pendingAdoption(); err != nil {
			return nil, err
		}
	}
	return c.writeOwn(s, &r.Write)
}

func (r *readCall) run(c *client) (wire.Body, error) {
	s, err := c.session(r.Ino, false)
	if err != nil {
		return nil, err
	}
	return c.readOwn(s.file, r.Off, r.Len)
}

// stat returns the attributes of a name.
func (x *Index) stat(n wire.Name, follow bool) (microfs.Attr, error) {
	if n.Path == "" {
		return x.inode(n.Dir)
	}
	return x.fs.Stat(n.Dir, n.Path, follow)
}

func (r *statCall) run(c *client) (wire.Body, error) {
	a, err := c.x.stat(r.Name, r.Follow)
	if err == nil {
		err = c.pendingAdoption(&a)
	}
	return &wire.AttrAnswer{Attr: wire.Attr{Attr: a}}, err
}

func (r *setAttrCall) run(c *client) (wire.Body, error) {
	a, err := c.x.stat(r.Name, r.Follow)
	if err != nil {
		return nil, err
	}
	f, err := c.x.hold(a.Ino)
	if err != nil {
		return nil, err
	}
	defer f.release()
	return f.attrAnswer(f.read.SetAttr(r.What))
}

func (r *truncCall) run(c *client) (wire.Body, error) {
	x := c.x
	if r.Path == "" {
		s, err := c.session(r.Dir, true)
		if err != nil {
			return nil, syscall.EINVAL // as ftruncate(2) does
		}
		return c.truncate(s.file, r.Size, func() error { return s.file.write.Truncate(r.Size) })
	}
	a, err := x.fs.Stat(r.Dir, r.Path, true)
	if err == nil {
		err = c.pendingAdoption(&a)
	}
	if err != nil {
		return nil, err
	}
	f, err := x.hold(a.Ino)
	if err != nil {
		return nil, err
	}
	defer f.release()
	if f.read.IsDir() {
		return nil, syscall.EISDIR
	}
	return c.truncate(f, r.Size, func() error { return x.fs.Truncate(r.Dir, r.Path, r.Size) })
}

func (r *allocCall) run(c *client) (wire.Body, error) {
	s, err := c.session(r.Ino, true)
	if err != nil {
		return nil, err
	}
	return s.file.attrAnswer(s.file.allocate(&r.Allocate))
}

func (r *readDirCall) run(c *client) (wire.Body, error) {
	s, err := c.session(r.Ino, false)
	if err != nil {
		return nil, err
	}
	n := int(min(r.N, wire.MaxEntries))
	if n == 0 {
		n = wire.MaxEntries
	}
	list, err := s.file.read.ReadDir(r.After, n)
	return &wire.Entries{List: list}, err
}

func (r *accessCall) run(c *client) (wire.Body, error) {
	return nil, c.x.fs.AccessAs(r.Who, r.Dir, r.Path, r.Mode, r.Follow)
}

func (r *mkdirCall) run(c *client) (wire.Body, error) {
	return nil, c.x.fs.Mkdir(r.Dir, r.Path, r.Mode)
}

// removing runs a call that may remove the last name of a file, whose shards are then released.
func (x *Index) removing(n wire.Name, remove func() error) (wire.Body, error) {
	if a, err := x.fs.Stat(n.Dir, n.Path, false); err == nil && a.Mode&unix.S_IFMT == unix.S_IFREG {
		f, err := x.hold(a.Ino)
		if err != nil {
			return nil, err
		}
		defer f.release()
	}
	return nil, remove()
}

func (r *unlinkCall) run(c *client) (wire.Body, error) {
	if r.Directory {
		return nil, c.x.fs.Rmdir(r.Dir, r.Path)
	}
	return c.x.removing(r.Name, func() error { return c.x.fs.Unlink(r.Dir, r.Path) })
}

func (r *renameCall) run(c *client) (wire.Body, error) {
	return c.x.removing(r.To, func() error {
		return c.x.fs.Rename(r.From.Dir, r.From.Path, r.To.Dir, r.To.Path, uint(r.Flags))
	})
}

func (r *linkCall) run(c *client) (wire.Body, error) {
	return nil, c.x.fs.Link(r.From.Dir, r.From.Path, r.To.Dir, r.To.Path, r.Follow)
}

func (r *symlinkCall) run(c *client) (wire.Body, error) {
	return nil, c.x.fs.Symlink(r.Target, r.Dir, r.Path)
}

func (r *readlinkCall) run(c *client) (wire.Body, error) {
	target, err := c.x.fs.Readlink(r.Dir, r.Path)
	return &wire.Text{Text: target}, err
}

func (r *pathCall) run(c *client) (wire.Body, error) {
	var path string
	var err error
	if r.Name.Path == "" {
		path, err = c.x.fs.PathOf(r.Dir)
	} else {
		path, err = c.x.fs.RealPath(r.Dir, r.Name.Path)
	}
	return &wire.Text{Text: path}, err
}

func (syncCall) run(c *client) (wire.Body, error) {
	err := c.x.fs.Sync()
	if err == nil {
		c.x.synced()
	}
	return nil, err
}

func (r *lockCall) run(c *client) (wire.Body, error) {
	s, err := c.session(r.Ino, false)
	if err != nil {
		return nil, err
	}
	return s.lock(&r.Lock)
}

// before inspects one shard after the other, and releases the lock in between: there may be many shards, of files
// with many ranges.
func (r *shardsCall) before(c *client) error {
	if c.partition == wire.NoPartition {
		return syscall.EINVAL
	}
	for _, s := range r.List {
		if err := c.inspect(s); err != nil {
			return err
		}
	}
	return nil
}

func (r *shardsCall) run(*client) (wire.Body, error) { return nil, nil }

func (r *growCall) before(c *client) (err error) {
	if r.Partitions == 0 {
		return syscall.EINVAL
	}
	r.Partitions, err = c.x.grow(r.Partitions)
	return err
}

func (r *growCall) run(*client) (wire.Body, error) { return &r.Grow, nil }

func (r *setCredCall) run(c *client) (wire.Body, error) {
	c.cred, c.x.cred = r.Cred.Cred, nil
	return nil, nil
}
