package tree

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/google/uuid"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// WriteAt writes to the shard, or through the index if this process has no partition.
func (f *file) WriteAt(bufs [][]byte, off int64) (int, error) {
	switch {
	case !f.writable:
		return 0, syscall.EBADF
	case off < 0:
		return 0, syscall.EINVAL
	case total(bufs) == 0:
		return 0, nil
	case f.fs.own != nil && !f.sync:
		n, err := f.writeShard(bufs, off)
		if n == 0 && err == syscall.ENOSPC && f.fs.collect() {
			n, err = f.writeShard(bufs, off)
		}
		return n, f.fs.spaceError(err)
	}
	in, err := f.lock()
	if err != nil {
		return 0, err
	}
	defer in.mu.Unlock()
	n, err := f.put(bufs, off)
	return n, f.fs.spaceError(err)
}

func (f *file) writeShard(bufs [][]byte, off int64) (int, error) {
	in := f.in
	in.mu.RLock()
	for in.shard == nil && !f.closed.Load() {
		in.mu.RUnlock()
		if err := f.makeShard(); err != nil {
			return 0, err
		}
		in.mu.RLock()
	}
	defer in.mu.RUnlock()
	if err := f.use(); err != nil {
		return 0, err
	}
	n, err := in.shard.WriteAt(bufs, off)
	in.note(off, off+int64(n)) // after the write: readers look for noted ranges
	return n, err
}

// makeShard makes sure that there is a shard to write to.
func (f *file) makeShard() error {
	in, err := f.lock()
	if err != nil {
		return err
	}
	defer in.mu.Unlock()
	return in.openShard()
}

// AppendBelow writes at the end of the file, in space that the index reserves.
func (f *file) AppendBelow(bufs [][]byte, limit int64) (n int, end int64, err error) {
	if !f.writable {
		return 0, 0, syscall.EBADF
	}
	in, err := f.lock()
	if err != nil {
		return 0, 0, err
	}
	defer in.mu.Unlock()
	if size := in.size(); total(bufs) == 0 {
		return 0, size, nil
	} else if size > max(in.attr.Size, in.reserved) { // publish first, so that the index knows the end of the file
		if err := in.publish(); err != nil {
			return 0, 0, err
		}
	}
	if f.fs.own != nil {
		n, end, err = f.appendShard(bufs, limit)
	} else {
		n, end, err = f.appendIndex(bufs, limit)
	}
	return n, end, f.fs.spaceError(err)
}

// A reservation is space at the end of a file that the index has given to this process for an append.
type reservation struct {
	off   int64
	bufs  [][]byte // the part that fits
	by    uuid.UUID
	asked time.Time
}

// reserve requests a reservation from the index. After an error the reservation begins at the end of the file.
func (f *file) reserve(bufs [][]byte, limit int64) (r reservation, err error) {
	r.asked = time.Now()
	var space wire.Space
	if r.by, err = f.fs.client.callBy(wire.OpAppend, &wire.Append{Ino: f.ino, Len: total(bufs), Limit: limit}, &space); err != nil {
		r.off = f.in.size()
		return r, err
	}
	r.off = space.Off
	r.bufs, err = microfs.Below(bufs, space.Off, space.Off+space.Len)
	return r, err
}

// appendIndex appends through the index, which finds the end and writes there in one request. An append that takes
// several requests, or has a limit, reserves space first: its requests write there. The caller holds in.mu alone.
func (f *file) appendIndex(bufs [][]byte, limit int64) (n int, end int64, err error) {
	if total(bufs) > wire.MaxData || limit < vfs.NoLimit {
		r, err := f.reserve(bufs, limit)
		if err != nil {
			return 0, r.off, err
		}
		bufs = r.bufs
	}
	end = f.in.size()
	n, err = f.writeIndex(bufs, wire.AtEnd, &end)
	n, err = f.finishWrite(n, err)
	return n, end, err
}

// appendShard appends to the shard. An index may be killed before all of the data is in the partition. Its successor has not seen the data then, and
// may have given the space to another process: so this process reserves again. The caller holds in.mu alone.
func (f *file) appendShard(bufs [][]byte, limit int64) (n int, end int64, err error) {
	in := f.in
	if err := in.openShard(); err != nil {
		return 0, in.size(), err
	}
	for {
		r, err := f.reserve(bufs, limit)
		if err != nil {
			return 0, r.off, err
		}
		n, failed := in.shard.WriteAt(r.bufs, r.off)
		if _, err := in.shard.Stat(); err != nil { // Stat flushes data that is written behind
			return 0, r.off, err
		}
		end := r.off + int64(n)
		if n > 0 && !f.fs.client.soleAdopter(r.by, r.asked) {
			ours, err := in.adopted(r.off, end)
			if err != nil {
				return 0, r.off, err
			}
			if !ours {
				continue
			}
		}
		in.reserved = r.off + total(r.bufs)
		in.note(r.off, end)
		n, err = f.finishWrite(n, failed)
		return n, end, err
	}
}

// adopted reports whether the successor of an index has adopted data that was written to the shard and not noted. If
// it has not, it must not adopt that data later, since other data may be in its place. The caller holds in.mu alone.
func (in *inode) adopted(off, end int64) (bool, error) {
	if err := in.refresh(); err != nil {
		return false, err
	}
	if end <= in.attr.Size {
		if err := in.fetchLayout(end); err != nil {
			return false, err
		}
		// Zeros at the beginning of a shard are not adopted, its end is.
		if in.layout.at(end-1, end).from == (origin{wire.Mapped, in.fs.place, in.cut}) {
			return true, nil
		}
	}
	return false, in.shard.Punch(off, end-off)
}

// put writes data to the shard or through the index, and publishes it if each write has to be durable. The caller
// holds in.mu alone.
func (f *file) put(bufs [][]byte, off int64) (n int, err error) {
	in := f.in
	if f.fs.own == nil {
		n, err = f.writeIndex(bufs, off, new(int64))
	} else if err = in.openShard(); err == nil {
		n, err = in.shard.WriteAt(bufs, off)
		in.note(off, off+int64(n))
	}
	return f.finishWrite(n, err)
}

// finishWrite publishes written data if each write has to be durable.
func (f *file) finishWrite(n int, err error) (int, error) {
	if !f.sync || n == 0 {
		return n, err
	}
	durable := f.in.publish()
	if durable == nil && f.fs.own == nil {
		durable = f.fs.call(wire.OpSync, nil)
	}
	if durable != nil {
		return 0, durable // a count would hide the error
	}
	return n, err
}

// writeIndex writes to the index's partition, at off or wire.AtEnd, and sets end to the end of the written data. The
// data of a message is written as a whole or not at all if the process is killed. The caller holds in.mu alone.
func (f *file) writeIndex(bufs [][]byte, off int64, end *int64) (done int, err error) {
	f.in.layout.forget()
	if n := total(bufs); len(bufs) > 1 && n <= wire.MaxData {
		bufs = [][]byte{slices.Concat(bufs...)}
	}
	for _, b := range bufs {
		for len(b) > 0 {
			var answer wire.Written
			request := wire.Write{Ino: f.ino, Off: off, Limit: vfs.NoLimit, Data: b[:min(len(b), wire.MaxData)]}
			if err := f.fs.client.Call(wire.OpWrite, &request, &answer); err != nil {
				return done, err
			}
			f.in.attr = answer.Attr
			n := min(int(answer.N), len(request.Data))
			if n == 0 {
				return done, fmt.Errorf("writing by way of the index: nothing of %d bytes was written, without an error: %w", len(request.Data), syscall.EIO)
			}
			*end = answer.Off + int64(n)
			if off != wire.AtEnd {
				off = *end
			}
			done, b = done+n, b[n:]
		}
	}
	return done, nil
}

func total(bufs [][]byte) (n int64) {
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}
