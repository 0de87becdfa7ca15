package tree

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// An identity distinguishes a file from all others, including removed ones with the same inode number.
type identity struct {
	ino   microfs.Ino
	birth uint64
}

// An inode is the state of a file that this process has open, by one or more descriptors.
type inode struct {
	fs *FS
	identity
	path  string // path at open, for messages
	files int    // guarded by FS.mu

	mu      sync.RWMutex
	attr    wire.Attr // last attributes from the index
	layout  layout    // published part of the layout
	asked   time.Time // when the layout was requested: mounts of other partitions must not be older
	sources map[origin]*source
	newest  *source       // the source used last
	writers int           // descriptors open for writing
	shard   *microfs.File // open for writing; nil before the first write
	cut     uint32        // cut number of shard

	// reserved is the end of the space that the index has reserved for appends that are not fully published.
	reserved int64

	// direct is a part of the file that is read without mu. It is stored under mu shared while the file has no writers. Every
	// exclusive lock of mu removes it, so it is gone before the layout changes.
	direct atomic.Pointer[direct]

	copied   atomic.Bool // reads use a copy, since a target was lost
	toldCopy atomic.Bool

	writtenMu sync.Mutex // taken after mu
	written   spans      // unpublished ranges of the shard
	touched   time.Time  // the time of modification that was set since the last write; zero if none was
}

// A direct part of a file is in one shard.
type direct struct {
	span
	shard *microfs.File
}

// lock locks mu exclusively, and removes direct.
func (in *inode) lock() {
	in.mu.Lock()
	in.direct.Store(nil)
}

func newInode(fs *FS, id identity, path string, answer *wire.File) *inode {
	in := &inode{fs: fs, identity: id, path: path}
	in.learn(answer, answer.Attr.Size)
	return in
}

// learn adds the index's answer about the layout up to end. The caller holds in.mu alone.
func (in *inode) learn(answer *wire.File, end int64) {
	in.attr = answer.Attr
	in.layout.extend(answer, end)
	in.asked = time.Now()
}

// refresh requests attributes and layout again. The caller holds in.mu alone.
func (in *inode) refresh() error {
	in.layout.forget()
	answer, err := in.ask(math.MaxInt64)
	if err == nil {
		in.learn(answer, answer.Attr.Size)
	}
	return err
}

// ask requests the unknown part of the layout before end.
func (in *inode) ask(end int64) (*wire.File, error) {
	answer := new(wire.File)
	return answer, in.fs.client.Call(wire.OpMap, &wire.Map{Ino: in.ino, Off: in.layout.end, Len: end - in.layout.end}, answer)
}

// note records that bytes have been written to the shard. The caller holds in.mu.
func (in *inode) note(off, end int64) {
	in.writtenMu.Lock()
	in.written.add(off, end)
	in.touched = time.Time{}
	in.writtenMu.Unlock()
}

// noted returns the end of the last unpublished byte, 0 if there is none, and the number of unpublished bytes.
func (in *inode) noted() (end, bytes int64) {
	in.writtenMu.Lock()
	defer in.writtenMu.Unlock()
	return in.written.end(), in.written.bytes()
}

// size returns the size of the file as this process sees it. The caller holds in.mu.
func (in *inode) size() int64 {
	in.writtenMu.Lock()
	defer in.writtenMu.Unlock()
	return max(in.attr.Size, in.written.end())
}

// shown returns attributes of the file as this process sees them, given the index's attributes a. The caller holds
// in.mu.
func (in *inode) shown(a *wire.Attr) microfs.Attr {
	shown := a.Attr
	end, bytes := in.noted()
	if end == 0 {
		return shown
	}
	shown.Size = max(shown.Size, end)
	shown.Blocks = max(shown.Blocks, (bytes+511)/512)
	shown.Closed = false
	if in.fs.cred.Load().UID != 0 { // as the index does on publication
		shown.Mode = unprivileged(shown.Mode)
	}
	if mtime, err := in.mtime(); err == nil {
		shown.Mtime = mtime
		if mtime.After(shown.Ctime) {
			shown.Ctime = mtime
		}
	}
	return shown
}

// unprivileged returns a file's mode without the set-user-ID and set-group-ID bits that a write removes.
func unprivileged(mode uint32) uint32 {
	if mode &^= unix.S_ISUID; mode&0o010 != 0 {
		mode &^= unix.S_ISGID
	}
	return mode
}

// mtime returns the time of modification of a file with unpublished data. The caller holds in.mu.
func (in *inode) mtime() (time.Time, error) {
	in.writtenMu.Lock()
	touched := in.touched
	in.writtenMu.Unlock()
	if !touched.IsZero() {
		return touched, nil
	}
	a, err := in.shard.Stat()
	return a.Mtime, err
}

// openShard opens the shard for writing, or creates it. The caller holds in.mu alone.
func (in *inode) openShard() error {
	if in.shard != nil {
		return nil
	}
	if err := in.begin(); err != nil {
		return err
	}
	s := wire.Shard{Ino: in.ino, Birth: in.birth, Cut: in.attr.Cut}
	f, err := in.fs.own.Open(microfs.RootIno, s.Name(), unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return err
	}
	in.fs.mu.Lock()
	in.fs.shards[s] = struct{}{}
	in.fs.mu.Unlock()
	in.shard, in.cut = f, s.Cut
	return nil
}

// closeShard closes the written shard, which makes it durable. The caller holds in.mu alone.
func (in *inode) closeShard() error {
	if in.shard == nil {
		return nil
	}
	err := in.shard.Close()
	in.fs.mu.Lock()
	delete(in.fs.shards, wire.Shard{Ino: in.ino, Birth: in.birth, Cut: in.cut})
	in.fs.mu.Unlock()
	in.shard = nil
	return err
}

// lockAndCloseShard is closeShard for a caller that does not hold in.mu.
func (in *inode) lockAndCloseShard() error {
	in.lock()
	defer in.mu.Unlock()
	return in.closeShard()
}

// closeOldShard closes a shard of an earlier cut if it is fully published, so that the next write uses a new shard. The
// caller holds in.mu alone.
func (in *inode) closeOldShard() error {
	if end, _ := in.noted(); end > 0 || in.cut == in.attr.Cut {
		return nil
	}
	return in.closeShard()
}
