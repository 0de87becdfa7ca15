package posixshim

import (
	"encoding/binary"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// Attributes that all files of mounts have in common.
const (
	// blockSize is st_blksize: large enough to keep several commands in flight, small enough for programs
	// that allocate a buffer of it for each file.
	blockSize = 256 << 10
	// fileSystem is the type that statfs returns ("nvcr"). No program is known to treat this type specially, as ROMIO treats some.
	fileSystem = 0x6e766372
	nameLength = 255
)

// device is st_dev of the mount that an inode belongs to. No driver has this major number.
func device(ino microfs.Ino) uint64 { return unix.Mkdev(0x6e76, 0x6372+uint32(mountNumber(ino))) }

// emptyPath says whether a call with these AT_ flags is about the open file of place itself.
func emptyPath(place PathAt, flags int) bool {
	return flags&unix.AT_EMPTY_PATH != 0 && place.Path == ""
}

func follows(flags int) bool { return flags&unix.AT_SYMLINK_NOFOLLOW == 0 }

// Attr returns the attributes of a path. flags are of the AT_ family.
func (p *Process) Attr(place PathAt, flags int) (microfs.Attr, error) {
	if emptyPath(place, flags) {
		return p.FileAttr(place.Dir)
	}
	m, dir, path, err := p.resolve(place)
	if err != nil {
		return microfs.Attr{}, err
	}
	m.await()
	fs, err := m.acquire(false)
	if err != nil {
		return microfs.Attr{}, err
	}
	defer p.mu.RUnlock()
	return fs.Stat(dir, path, follows(flags))
}

// FileAttr returns the attributes of an open file.
func (p *Process) FileAttr(h Handle) (microfs.Attr, error) {
	f, err := p.files.get(h)
	if err != nil {
		return microfs.Attr{}, err
	}
	f.mountPoint.revalidateAttributes()
	return f.current().Stat()
}

// SetAttr changes attributes of a path.
func (p *Process) SetAttr(place PathAt, flags int, in microfs.SetAttr) error {
	if emptyPath(place, flags) {
		return p.SetFileAttr(place.Dir, in)
	}
	fs, dir, path, err := p.locate(place, true)
	if err != nil {
		return err
	}
	defer p.mu.RUnlock()
	return fs.SetAttr(dir, path, follows(flags), in)
}

// SetFileAttr changes attributes of an open file.
func (p *Process) SetFileAttr(h Handle, in microfs.SetAttr) error {
	f, err := p.getForIO(h)
	if err != nil {
		return err
	}
	if _, err := f.mountPoint.acquire(true); err != nil {
		return err
	}
	defer p.mu.RUnlock()
	return f.current().SetAttr(in)
}

// put copies v to out, a structure of the application.
func put[T any](out []byte, v *T) error {
	if uintptr(len(out)) != unsafe.Sizeof(*v) {
		return syscall.EINVAL
	}
	if !canWrite(out) {
		return syscall.EFAULT
	}
	copy(out, unsafe.Slice((*byte)(unsafe.Pointer(v)), len(out)))
	return nil
}

// assign sets a field whose type depends on the architecture.
func assign[T int32 | int64 | uint32 | uint64](to *T, v uint64) { *to = T(v) }

func timespec(t time.Time) syscall.Timespec {
	return syscall.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}

// Stat is fstatat(2); out is a struct stat.
func (p *Process) Stat(place PathAt, flags int, out []byte) error {
	if flags&^(unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) != 0 {
		return syscall.EINVAL
	}
	a, err := p.Attr(place, flags)
	if err != nil {
		return err
	}
	return putStat(out, &a)
}

// Fstat is fstat(2); out is a struct stat.
func (p *Process) Fstat(h Handle, out []byte) error {
	a, err := p.FileAttr(h)
	if err != nil {
		return err
	}
	return putStat(out, &a)
}

func putStat(out []byte, a *microfs.Attr) error {
	st := syscall.Stat_t{
		Dev: device(a.Ino), Ino: uint64(a.Ino), Mode: a.Mode, Uid: a.UID, Gid: a.GID, Size: a.Size, Blocks: a.Blocks,
		Atim: timespec(a.Atime), Mtim: timespec(a.Mtime), Ctim: timespec(a.Ctime),
	}
	assign(&st.Nlink, uint64(a.Nlink))
	assign(&st.Blksize, blockSize)
	return put(out, &st)
}

// Statx is statx(2); out is a struct statx.
func (p *Process) Statx(place PathAt, flags int, mask uint32, out []byte) error {
	const sync = unix.AT_STATX_FORCE_SYNC | unix.AT_STATX_DONT_SYNC
	const known = unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | sync
	if flags&^known != 0 || flags&sync == sync || mask&unix.STATX__RESERVED != 0 {
		return syscall.EINVAL
	}
	a, err := p.Attr(place, flags)
	if err != nil {
		return err
	}
	stamp := func(t time.Time) unix.StatxTimestamp {
		ts := timespec(t)
		return unix.StatxTimestamp{Sec: ts.Sec, Nsec: uint32(ts.Nsec)}
	}
	return put(out, &unix.Statx_t{
		Mask: unix.STATX_BASIC_STATS | unix.STATX_BTIME, Blksize: blockSize,
		Nlink: a.Nlink, Uid: a.UID, Gid: a.GID, Mode: uint16(a.Mode),
		Ino: uint64(a.Ino), Size: uint64(a.Size), Blocks: uint64(a.Blocks),
		Atime: stamp(a.Atime), Btime: stamp(a.Btime), Ctime: stamp(a.Ctime), Mtime: stamp(a.Mtime),
		Dev_major: unix.Major(device(a.Ino)), Dev_minor: unix.Minor(device(a.Ino)),
	})
}

// Access is faccessat(2). If a mount for reading refuses W_OK with EROFS, the mount is opened for writing and asked again.
func (p *Process) Access(place PathAt, mode, flags int) error {
	if mode&^7 != 0 {
		return syscall.EINVAL
	}
	if emptyPath(place, flags) {
		_, err := p.FileAttr(place.Dir)
		return err
	}
	m, dir, path, err := p.resolve(place)
	if err != nil {
		return err
	}
	fs, err := m.acquire(false)
	if err != nil {
		return err
	}
	err = p.access(fs, dir, path, mode, flags)
	writable := m.writable()
	p.mu.RUnlock()
	if Errno(err) != syscall.EROFS || writable {
		return err
	}
	fs, err = m.acquire(true)
	if err != nil {
		return err
	}
	defer p.mu.RUnlock()
	return p.access(fs, dir, path, mode, flags)
}

func (p *Process) access(fs vfs.FS, dir microfs.Ino, path string, mode, flags int) error {
	if real := p.real.Load(); real != nil && flags&unix.AT_EACCESS == 0 {
		return fs.AccessAs(*real, dir, path, uint32(mode), follows(flags))
	}
	return fs.Access(dir, path, uint32(mode), follows(flags))
}

func modeChange(mode uint32) microfs.SetAttr {
	mode &= 0o7777
	return microfs.SetAttr{Mode: &mode}
}

// Chmod is fchmodat(2). As on Linux, a symbolic link has no mode of its own to change.
func (p *Process) Chmod(place PathAt, mode uint32, flags int) error {
	if flags&^unix.AT_SYMLINK_NOFOLLOW != 0 {
		return syscall.EINVAL
	}
	if !follows(flags) {
		a, err := p.Attr(place, flags)
		if err != nil {
			return err
		}
		if a.Mode&syscall.S_IFMT == syscall.S_IFLNK {
			return syscall.EOPNOTSUPP
		}
	}
	return p.SetAttr(place, flags, modeChange(mode))
}

// Fchmod is fchmod(2).
func (p *Process) Fchmod(h Handle, mode uint32) error { return p.SetFileAttr(h, modeChange(mode)) }

func ownerChange(uid, gid uint32) (in microfs.SetAttr) {
	const same = 1<<32 - 1
	if uid != same {
		in.UID = &uid
	}
	if gid != same {
		in.GID = &gid
	}
	return in
}

// Chown is fchownat(2).
func (p *Process) Chown(place PathAt, uid, gid uint32, flags int) error {
	if flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) != 0 {
		return syscall.EINVAL
	}
	return p.SetAttr(place, flags, ownerChange(uid, gid))
}

// Fchown is fchown(2).
func (p *Process) Fchown(h Handle, uid, gid uint32) error {
	return p.SetFileAttr(h, ownerChange(uid, gid))
}

// Utimes is utimensat(2), and utimes and utime. times has two numbers of seconds, each followed by a number of units of unit
// nanoseconds if unit is not 0. Empty times are the current time.
func (p *Process) Utimes(place PathAt, times []byte, unit, flags int) error {
	if flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) != 0 {
		return syscall.EINVAL
	}
	in, err := timesChange(times, int64(unit))
	if in == nil || err != nil {
		return err
	}
	return p.SetAttr(place, flags, *in)
}

// Futimes is Utimes for an open file.
func (p *Process) Futimes(h Handle, times []byte, unit int) error {
	in, err := timesChange(times, int64(unit))
	if in == nil || err != nil {
		return err
	}
	return p.SetFileAttr(h, *in)
}

// timesChange returns nil if both times are UTIME_OMIT. Linux does not look at the file then.
func timesChange(times []byte, unit int64) (*microfs.SetAttr, error) {
	now := time.Now()
	if len(times) == 0 {
		return &microfs.SetAttr{Atime: &now, Mtime: &now, TimesNow: true}, nil
	}
	if touchPages(times, load) != len(times) {
		return nil, syscall.EFAULT
	}
	step := 16
	if unit == 0 {
		step = 8
	}
	if len(times) != 2*step {
		return nil, syscall.EINVAL
	}
	atime, err := timeChange(times[:step], unit, &now)
	if err != nil {
		return nil, err
	}
	mtime, err := timeChange(times[step:], unit, &now)
	if err != nil || atime == nil && mtime == nil {
		return nil, err
	}
	return &microfs.SetAttr{Atime: atime, Mtime: mtime, TimesNow: atime == &now && mtime == &now}, nil
}

// timeChange returns one time; nil if it is UTIME_OMIT.
func timeChange(raw []byte, unit int64, now *time.Time) (*time.Time, error) {
	seconds, rest := int64(binary.NativeEndian.Uint64(raw)), int64(0)
	if unit != 0 {
		rest = int64(binary.NativeEndian.Uint64(raw[8:]))
	}
	switch {
	case unit == 1 && rest == unix.UTIME_NOW:
		return now, nil
	case unit == 1 && rest == unix.UTIME_OMIT:
		return nil, nil
	case rest < 0 || rest*unit >= 1e9 || rest >= 1e9:
		return nil, syscall.EINVAL
	}
	t := time.Unix(seconds, rest*unit)
	return &t, nil
}

// Space returns the size and the free space of the first mount's file system.
func (p *Process) Space() (microfs.StatFS, error) { return p.mounts[0].space() }

func (m *mountPoint) space() (microfs.StatFS, error) {
	fs, err := m.acquire(false)
	if err != nil {
		return microfs.StatFS{}, err
	}
	defer m.p.mu.RUnlock()
	return fs.StatFS(), nil
}

// Statfs is statfs(2); out is a struct statfs.
func (p *Process) Statfs(place PathAt, out []byte) error {
	if _, err := p.Attr(place, 0); err != nil {
		return err
	}
	return p.Fstatfs(place.Dir, out)
}

// Fstatfs is fstatfs(2); out is a struct statfs.
func (p *Process) Fstatfs(h Handle, out []byte) error {
	m, err := p.mountOf(h)
	if err != nil {
		return err
	}
	s, err := m.space()
	if err != nil {
		return err
	}
	return put(out, &syscall.Statfs_t{
		Type: fileSystem, Bsize: int64(s.Hugeblock), Frsize: int64(s.Hugeblock), Namelen: nameLength, Fsid: syscall.Fsid{X__val: [2]int32{int32(m.id())}},
		Blocks: uint64(s.Blocks), Bfree: uint64(s.Free), Bavail: uint64(s.Avail), Files: s.Files + s.FilesFree, Ffree: s.FilesFree,
	})
}

// id is f_fsid of statfs and statvfs.
func (m *mountPoint) id() uint64 { return fileSystem + uint64(m.number) }

// statvfs is struct statvfs of the C library on 64-bit Linux.
type statvfs struct {
	Bsize, Frsize, Blocks, Bfree, Bavail, Files, Ffree, Favail, Fsid, Flag, Namemax uint64
	_                                                                               [6]int32
}

// Statvfs is statvfs(3); out is a struct statvfs.
func (p *Process) Statvfs(place PathAt, out []byte) error {
	if _, err := p.Attr(place, 0); err != nil {
		return err
	}
	return p.Fstatvfs(place.Dir, out)
}

// Fstatvfs is fstatvfs(3); out is a struct statvfs.
func (p *Process) Fstatvfs(h Handle, out []byte) error {
	m, err := p.mountOf(h)
	if err != nil {
		return err
	}
	s, err := m.space()
	if err != nil {
		return err
	}
	return put(out, &statvfs{
		Bsize: uint64(s.Hugeblock), Frsize: uint64(s.Hugeblock), Namemax: nameLength, Fsid: m.id(),
		Flag:   unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC,
		Blocks: uint64(s.Blocks), Bfree: uint64(s.Free), Bavail: uint64(s.Avail), Files: s.Files + s.FilesFree, Ffree: s.FilesFree, Favail: s.FilesFree,
	})
}
