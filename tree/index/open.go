package index

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// maxFiles is the maximum number of open files of a client, since each takes memory of the index.
const maxFiles = 1 << 16

// A file is a file that clients have open, or that a call uses. The file system keeps it even without a name.
type file struct {
	x        *Index
	ino      microfs.Ino
	birth    uint64
	read     *microfs.File
	write    *microfs.File // open while clients have it open for writing
	opens    int           // number of opens of all clients
	writers  int           // number of opens for writing
	torn     bool          // a writer has died
	reopened bool          // a writer had it open at the previous index
	// reserved is the end of the space reserved for appends: the maximum of the sessions' ends.
	reserved int64
	sessions map[*session]struct{}
	shards   shardSet // shards that possibly no range refers to
	unmapped int64    // approximate bytes of these shards
	locked   int      // number of locked ranges of all sessions
}

// A session is the state of a file that one client has open.
type session struct {
	client   *client
	file     *file
	opens    int
	writers  int
	reserved int64         // end of its last unpublished reservation; 0: none
	next     int64         // offset of the next append in the reservation
	locks    [2]wire.Locks // by wire.LockKind
	lockWait *lockWait     // publications of other clients wait for the locks; nil: none does
	lockHeld bool          // publications have waited for the locks long enough
	copyOf   string        // path of the file, to find copies; "": not looked up yet
}

// hold returns a file, which is kept until release is called.
func (x *Index) hold(ino microfs.Ino) (*file, error) {
	f := x.files[ino]
	if f == nil {
		h, err := x.fs.OpenIno(ino, unix.O_RDONLY)
		if err != nil {
			return nil, err
		}
		a, err := h.Stat()
		if err != nil {
			return nil, errors.Join(err, h.Close())
		}
		f = &file{x: x, ino: ino, birth: a.Birth, read: h, sessions: map[*session]struct{}{}, shards: x.orphans[ino]}
		delete(x.orphans, ino)
		x.files[ino] = f
	}
	f.opens++
	return f, nil
}

// release undoes hold. The last release frees unused shards.
func (f *file) release() error {
	if f.opens--; f.opens > 0 {
		return nil
	}
	f.sweep()
	delete(f.x.files, f.ino)
	return f.read.Close()
}

// named reports whether the file has a name.
func (f *file) named() bool {
	a, err := f.read.Stat()
	return err == nil && a.Nlink > 0
}

// session returns the client's session of a file; EBADF if there is none.
func (c *client) session(ino microfs.Ino, write bool) (*session, error) {
	s := c.files[ino]
	if s == nil || write && s.writers == 0 {
		return nil, syscall.EBADF
	}
	return s, nil
}

// add records one more open of a file.
func (c *client) add(ino microfs.Ino, write bool) (*session, error) {
	s := c.files[ino]
	if s == nil && len(c.files) == maxFiles {
		return nil, syscall.EMFILE
	}
	f, err := c.x.hold(ino)
	if err != nil {
		return nil, err
	}
	if write && f.write == nil {
		if f.write, err = c.x.fs.OpenIno(ino, unix.O_RDWR); err != nil {
			return nil, errors.Join(err, f.release())
		}
	}
	if s == nil {
		s = &session{client: c, file: f}
		c.files[ino] = s
		f.sessions[s] = struct{}{}
	}
	s.opens++
	if write {
		s.writers++
		f.writers++
	}
	return s, nil
}

// drop ends a number of opens of a session. The last writer marks the file complete, unless a writer has died or
// could not publish all data.
func (x *Index) drop(s *session, opens, writers int, torn bool) (err error) {
	f := s.file
	s.opens -= opens
	s.writers -= writers
	f.writers -= writers
	f.torn = f.torn || torn && writers > 0
	if s.writers == 0 {
		s.reserved = 0
		f.updateReserved()
	}
	if s.opens == 0 {
		s.unlock()
		delete(s.client.files, f.ino)
		delete(f.sessions, s)
	}
	if f.writers == 0 && f.write != nil {
		err = f.endWriting()
	}
	for range opens {
		err = errors.Join(err, f.release())
	}
	return err
}

// endWriting closes the file for writing after the last writer.
func (f *file) endWriting() error {
	write, complete := f.write, !f.torn && !(f.reopened && f.x.hasUnfinished(f))
	f.write, f.torn, f.reopened = nil, false, false
	if !complete {
		return write.CloseIncomplete()
	}
	owing, err := write.CloseUnsynced()
	f.x.needsSync = f.x.needsSync || owing
	return err
}

// open makes an opened file of the file system, h, a file of the client. It closes h.
func (c *client) open(h *microfs.File, flags uint32) (wire.Body, error) {
	write := wire.Writing(flags) && !h.IsDir()
	s, err := c.add(h.Ino(), write)
	if cerr := h.Close(); err == nil && cerr != nil {
		err = errors.Join(cerr, c.x.drop(s, 1, b2i(write), false))
	}
	if err != nil {
		return nil, err
	}
	answer, err := c.mapOf(s.file, 0, -1, wire.FirstMap)
	if err != nil {
		return nil, errors.Join(err, c.x.drop(s, 1, b2i(write), false))
	}
	if write && c.partition != wire.NoPartition { // the client will create a shard
		s.file.shards.add(shardKey{c.partition, answer.Attr.Cut})
	}
	return answer, nil
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
