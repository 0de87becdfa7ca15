package filedev

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// attribute holds the UUID of a namespace file, 16 bytes.
const attribute = "user.nvmecr.uuid"

// space is the name space of derived UUIDs (version 5).
var space = uuid.MustParse("6f7a7d0c-0a5e-4f8e-9a39-5d0c5a1f2b61")

// Size returns the capacity of a regular file or block device in bytes.
func Size(f *os.File) (nvmf.Bytes, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	switch {
	case info.Mode().IsRegular():
		return nvmf.Bytes(info.Size()), nil
	case info.Mode()&os.ModeDevice != 0 && info.Mode()&os.ModeCharDevice == 0:
		end, err := f.Seek(0, 2)
		return nvmf.Bytes(end), err
	}
	return 0, fmt.Errorf("is neither a regular file nor a block device: %w", nvmf.ErrUnsupported)
}

// UUID returns the UUID of a file or block device; see the package comment. It stores
// a new UUID in a file without one, if possible.
func UUID(f *os.File) (uuid.UUID, error) { return identity(f, true) }

// identity implements UUID. It does not change the file if give is false.
func identity(f *os.File, give bool) (uuid.UUID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return uuid.Nil, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return blockUUID(st.Rdev), nil
	}
	id, err := storedUUID(int(f.Fd()), give)
	switch {
	case err == nil:
		return id, nil
	case !give && errors.Is(err, unix.ENODATA):
		return derivedUUID(&st), nil
	case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES),
		errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EROFS):
		return derivedUUID(&st), nil
	}
	return uuid.Nil, fmt.Errorf("attribute %s: %w", attribute, err)
}

func derivedUUID(st *unix.Stat_t) uuid.UUID {
	return uuid.NewSHA1(space, fmt.Appendf(nil, "file %d %d", st.Dev, st.Ino))
}

// storedUUID reads the attribute. If create is set, it creates a missing attribute,
// which another process may do at the same time.
func storedUUID(fd int, create bool) (uuid.UUID, error) {
	for {
		var id uuid.UUID
		n, err := unix.Fgetxattr(fd, attribute, id[:])
		if err == nil && n != len(id) {
			err = unix.ERANGE
		}
		if !create || !errors.Is(err, unix.ENODATA) {
			return id, err
		}
		id = uuid.New()
		err = unix.Fsetxattr(fd, attribute, id[:], unix.XATTR_CREATE)
		if !errors.Is(err, unix.EEXIST) {
			return id, err
		}
	}
}

func blockUUID(dev uint64) uuid.UUID {
	at := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(dev), unix.Minor(dev))
	for _, name := range []string{"wwid", "device/wwid"} {
		if b, err := os.ReadFile(at + name); err == nil && len(strings.TrimSpace(string(b))) > 0 {
			return uuid.NewSHA1(space, append([]byte("wwid "), strings.TrimSpace(string(b))...))
		}
	}
	return uuid.NewSHA1(space, fmt.Appendf(nil, "device %d", dev))
}

// CanDeallocate reports whether the file of size bytes supports punching holes.
func CanDeallocate(f *os.File, size nvmf.Bytes) bool {
	// The range is after the end of the file, so that no data is lost. A block device
	// answers EINVAL for that range, and EOPNOTSUPP only for a valid one.
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(size), 4096)
	return err == nil || errors.Is(err, unix.EINVAL)
}

// deallocate punches a hole. The command is only a hint, so it also succeeds on a file
// without support for holes.
func deallocate(fd uintptr, offset, length int64) error {
	err := unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}
