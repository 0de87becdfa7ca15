package tree

import (
	"bytes"
	"slices"
	"syscall"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// step makes one process do something.
func (j *job) step() {
	if len(j.processes) == 0 {
		j.begin()
	}
	p := j.processes[j.r.IntN(len(j.processes))]
	switch j.r.IntN(150) {
	case 0:
		j.die(p)
		return
	case 1:
		j.replaceIndex()
		return
	}
	if len(p.handles) == 0 || j.r.IntN(6) == 0 && len(p.handles) < 5 {
		j.open(p)
		return
	}
	h := p.handles[j.r.IntN(len(p.handles))]
	switch n := j.r.IntN(43); {
	case n < 14:
		j.write(p, h)
	case n < 23:
		j.read(p, h)
	case n < 27:
		j.close(p, h)
	case n < 30:
		j.sync(p, h)
	case n < 33:
		j.cut(p, h)
	case n < 34:
		j.punch(p, h)
	case n < 36:
		j.stat(p, h)
	case n < 37:
		j.seek(p, h)
	case n < 39:
		j.lock(p, h)
	case n < 40:
		j.link(p)
	default:
		j.rename(p)
	}
}

func (j *job) open(p *process) {
	name := j.name()
	flags := []int{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR, unix.O_RDWR}[j.r.IntN(4)] |
		[]int{0, unix.O_CREAT, unix.O_CREAT, unix.O_CREAT | unix.O_TRUNC, unix.O_CREAT | unix.O_EXCL}[j.r.IntN(5)]
	if flags&unix.O_ACCMODE == unix.O_RDONLY {
		flags &^= unix.O_TRUNC
	}
	f := j.names[name]
	file, err := p.Open(root, name, flags, 0o644)
	j.logf("%s opens %s %#x: %v", p.name, name, flags, err)
	switch {
	case f == nil && flags&unix.O_CREAT == 0:
		require.ErrorIs(j.t, err, syscall.ENOENT)
		return
	case f != nil && flags&unix.O_EXCL != 0:
		require.ErrorIs(j.t, err, syscall.EEXIST)
		return
	case f == nil:
		f = &modelFile{name: name, images: []*image{{}}, locks: map[*process]*modelLocks{}}
		j.names[name] = f
	case flags&unix.O_TRUNC != 0:
		p.publish(f)
		f.cut(0, maxSize, 0)
	}
	require.NoError(j.t, err)
	how := flags & unix.O_ACCMODE
	h := &handle{File: file, of: f, readable: how != unix.O_WRONLY, writable: how != unix.O_RDONLY, append: j.r.IntN(4) == 0}
	p.handles = append(p.handles, h)
	p.look(f)
}

func (j *job) close(p *process, h *handle) {
	err := h.Close()
	j.logf("%s closes %s: %v", p.name, h.of.name, err)
	require.NoError(j.t, err)
	if h.writable {
		p.publish(h.of)
	}
	p.handles = slices.DeleteFunc(p.handles, func(o *handle) bool { return o == h })
	if !slices.ContainsFunc(p.handles, func(o *handle) bool { return o.of == h.of }) {
		h.of.unlock(p)
	}
}

func (j *job) sync(p *process, h *handle) {
	err := h.Sync()
	j.logf("%s syncs %s: %v", p.name, h.of.name, err)
	require.NoError(j.t, err)
	p.publish(h.of)
	p.look(h.of)
}

func (j *job) write(p *process, h *handle) {
	if !h.writable {
		return
	}
	j.value = j.value%250 + 1
	n, off := length(j.r), offset(j.r)
	data := make([]byte, n)
	for i := range data {
		data[i] = j.value
	}
	if h.append {
		j.append(p, h, data)
		return
	}
	n = min(n, maxSize-off)
	cut := j.r.IntN(n + 1)
	got, err := h.WriteAt([][]byte{data[:cut], data[cut:n]}, int64(off))
	j.logf("%s writes %d at %d to %d of %s: %v", p.name, j.value, off, off+n, h.of.name, err)
	require.NoError(j.t, err)
	require.Equal(j.t, n, got)
	p.write(h.of, off, n, j.value)
}

// append appends behind all published data and all reservations of others, if there is space.
func (j *job) append(p *process, h *handle, data []byte) {
	if p.own != nil { // a process that has written behind the end of the file knows the end itself
		j.sync(p, h)
	}
	n, end, err := h.AppendBelow([][]byte{data}, maxSize)
	off := int(end) - n
	j.logf("%s appends %d at %d to %d of %s: %v", p.name, j.value, off, end, h.of.name, err)
	if err != nil {
		require.ErrorIs(j.t, err, microfs.ErrFileTooLarge)
		return
	}
	require.Equal(j.t, min(len(data), maxSize-off), n)
	require.GreaterOrEqual(j.t, off, h.of.now().size, "over what there is")
	p.write(h.of, off, n, j.value)
	for _, w := range h.of.pending {
		require.False(j.t, w.append && !(w.late && w.cut) && w.until < 0 && slices.Contains(j.processes, w.who) && w.off < int(end) && off < w.end, "over %d, which %s has appended", w.value, w.who.name)
	}
	if p.own != nil {
		h.of.pending[len(h.of.pending)-1].append = true
	}
}

func (j *job) read(p *process, h *handle) {
	if !h.readable {
		return
	}
	off, n := offset(j.r), length(j.r)
	buf := bytes.Repeat([]byte{255}, n)
	cut := j.r.IntN(n + 1)
	got, err := h.ReadAt([][]byte{buf[:cut], buf[cut:]}, int64(off))
	j.logf("%s reads %d to %d of %s: %d, %v", p.name, off, off+n, h.of.name, got, err)
	require.NoError(j.t, err)
	wrong := p.mayRead(h.of, off, n, buf[:got])
	require.Empty(j.t, wrong, "%s reads %s", p.name, h.of.name)
}

func (j *job) cut(p *process, h *handle) {
	f, size := h.of, offset(j.r)
	var err error
	switch name := j.nameOf(f); {
	case name != "" && j.r.IntN(3) == 0:
		err = p.Truncate(root, name, int64(size))
	case h.writable:
		err = h.Truncate(int64(size))
	default:
		return
	}
	j.logf("%s cuts %s to %d: %v", p.name, f.name, size, err)
	require.NoError(j.t, err)
	p.publish(f)
	f.cut(size, maxSize, size)
	p.reach[f] = 0
}

func (j *job) punch(p *process, h *handle) {
	if !h.writable {
		return
	}
	f, off, n := h.of, offset(j.r), length(j.r)
	end := min(off+n, maxSize)
	p.publish(f)
	var err error
	switch how := j.r.IntN(4); how {
	case 0:
		err = h.Punch(int64(off), int64(end-off))
		f.cut(off, end, f.now().size)
	case 1, 2:
		err = h.ZeroRange(int64(off), int64(end-off), how == 1)
		size := f.now().size
		if how == 2 {
			size = max(size, end)
		}
		f.cut(off, end, size)
	default:
		err = h.Allocate(int64(off), int64(end-off), false)
		f.cut(0, 0, max(f.now().size, end))
	}
	j.logf("%s punches %d to %d of %s: %v", p.name, off, end, f.name, err)
	require.NoError(j.t, err)
}

func (j *job) stat(p *process, h *handle) {
	a, err := h.Stat()
	if name := j.nameOf(h.of); name != "" && j.r.IntN(2) == 0 {
		a, err = p.Stat(root, name, true)
	}
	j.logf("%s stats %s: %d, %v", p.name, h.of.name, a.Size, err)
	require.NoError(j.t, err)
	size := h.of.now().size
	if d := p.drafts[h.of]; d != nil {
		size = max(size, d.end)
	}
	require.EqualValues(j.t, size, a.Size)
	links := 0
	for _, f := range j.names {
		if f == h.of {
			links++
		}
	}
	require.EqualValues(j.t, links, a.Nlink, "links")
}

// seek looks for a hole, and reads zeros there.
func (j *job) seek(p *process, h *handle) {
	hole, err := h.SeekHole(int64(offset(j.r)))
	if err != nil {
		require.ErrorIs(j.t, err, syscall.ENXIO)
		return
	}
	data, err := h.SeekData(hole)
	if err != nil {
		require.ErrorIs(j.t, err, syscall.ENXIO)
		data = maxSize
	}
	j.logf("%s finds %s with a hole from %d to %d", p.name, h.of.name, hole, data)
	for at := hole; at < data; at++ {
		d := p.drafts[h.of]
		require.True(j.t, d == nil || !d.written[at], "it has written byte %d", at)
		require.True(j.t, h.of.mayBe(p.seen[h.of], int(at), 0), "byte %d", at)
	}
}

// rename moves a name, over another one or not, or removes it.
func (j *job) rename(p *process) {
	from, to := j.name(), j.name()
	f := j.names[from]
	j.reconnectAll() // so that the index knows the open files after a kill
	var err error
	if j.r.IntN(2) == 0 {
		err = p.Unlink(root, from)
		to = ""
	} else {
		err = p.Rename(root, from, root, to, 0)
	}
	j.logf("%s moves %s to %q: %v", p.name, from, to, err)
	if f == nil {
		require.ErrorIs(j.t, err, syscall.ENOENT)
		return
	}
	require.NoError(j.t, err)
	if j.names[to] == f { // two names of one file: nothing changes
		return
	}
	delete(j.names, from)
	if to != "" {
		j.names[to], f.name = f, to
	}
}

// link gives a file another name.
func (j *job) link(p *process) {
	from, to := j.name(), j.name()
	f := j.names[from]
	j.reconnectAll()
	err := p.Link(root, from, root, to, false)
	j.logf("%s links %s to %s: %v", p.name, from, to, err)
	switch {
	case f == nil:
		require.ErrorIs(j.t, err, syscall.ENOENT)
	case j.names[to] != nil:
		require.ErrorIs(j.t, err, syscall.EEXIST)
	default:
		require.NoError(j.t, err)
		j.names[to] = f
	}
}

// lock locks or unlocks a part of a file, or asks who has it. What was written before is published; who gets a lock sees what others have
// published.
func (j *job) lock(p *process, h *handle) {
	j.reconnectAll()
	f, whole := h.of, j.r.IntN(2) == 0
	first := j.r.IntN(lockParts)
	last := first + 1 + j.r.IntN(lockParts-first)
	want := vfs.Held{Start: int64(first) << 20, End: int64(last) << 20, Write: j.r.IntN(2) == 0}
	taken := f.conflict(p, whole, first, last, want.Write)
	locker := h.File.(vfs.Locker)
	if j.r.IntN(4) == 0 {
		found, by, err := locker.Conflict(whole, want)
		j.logf("%s asks for locks of %s: %+v, %v", p.name, f.name, found, err)
		require.NoError(j.t, err)
		require.Equal(j.t, taken, by != 0, "%+v, whole %v: %+v", want, whole, found)
		return
	}
	kind := unix.F_RDLCK
	hold := []vfs.Held{want}
	if want.Write {
		kind = unix.F_WRLCK
	}
	if j.r.IntN(3) == 0 {
		kind, hold, taken = unix.F_UNLCK, nil, false
	}
	err := locker.Lock(whole, want.Start, want.End, hold)
	j.logf("%s locks %s, whole %v, %d to %d, type %d: %v", p.name, f.name, whole, first, last, kind, err)
	p.publish(f)
	if taken {
		require.ErrorIs(j.t, err, syscall.EAGAIN)
		return
	}
	require.NoError(j.t, err)
	f.lock(p, whole, first, last, kind)
	if hold != nil {
		p.look(f)
	}
}
