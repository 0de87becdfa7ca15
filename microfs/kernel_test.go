package microfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// call is one system call: host makes it in a directory of this host, ours in a directory of microfs.
type call struct {
	name string
	host func(at int) error
	ours func(fs *FS, dir Ino) error
}

// difference is a deliberate deviation of microfs from the kernel.
type difference struct {
	kernel, ours error
	reason       string
}

var differences = map[string]difference{
	`open "dang/" O_CREAT`: {unix.EISDIR, unix.ENOENT,
		"the kernel looks at the slash before it follows the link; both refuse"},
	`rename "none" "."`: {unix.EBUSY, unix.ENOENT,
		"two errors at once: the kernel looks at the names first"},
	`stat ""`: {unix.ENOENT, nil,
		`the empty path is the directory itself: who calls passes "" for AT_EMPTY_PATH alone`},
}

// TestKernel makes the same calls on this host and on microfs, each on a fresh tree. It compares the
// errno of each call and the names in the tree after it.
func TestKernel(t *testing.T) {
	fs, _ := mountedAs(t, Cred{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())})
	calls, setup := kernelCalls(t), kernelTree()
	unseen := map[string]bool{}
	for name := range differences {
		unseen[name] = true
	}
	for i, c := range calls {
		host, ours := t.TempDir(), fmt.Sprint(i)
		require.NoError(t, fs.Mkdir(RootIno, ours, 0o700))
		a, err := fs.Stat(RootIno, ours, false)
		require.NoError(t, err)
		at, err := unix.Open(host, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		for _, s := range setup {
			require.NoError(t, s.host(at), s.name)
			require.NoError(t, s.ours(fs, a.Ino), s.name)
		}
		kernel, got := errnoOf(c.host(at)), errnoOf(c.ours(fs, a.Ino))
		require.NoError(t, unix.Close(at))
		if d, ok := differences[c.name]; ok {
			delete(unseen, c.name)
			if kernel != d.kernel || got != d.ours {
				t.Errorf("%-30.50s the kernel says %v, ours %v: not the difference that is listed", c.name, kernel, got)
			}
		} else if kernel != got {
			t.Errorf("%-30.50s the kernel says %v, ours %v", c.name, kernel, got)
		}
		if k, o := hostTree(t, host), ourTree(t, fs, ours); k != o {
			t.Errorf("%-30.50s the kernel leaves %s\nours leaves %s", c.name, k, o)
		}
	}
	require.Empty(t, unseen, "differences listed that no call shows")
	t.Logf("%d calls", len(calls))
}

// hostTree lists a tree of the host: types and names.
func hostTree(t *testing.T, dir string) string {
	var list []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if path != dir && err == nil {
			list = append(list, fmt.Sprintf("%.1s%s", d.Type(), strings.TrimPrefix(path, dir)))
		}
		return err
	}))
	return strings.Join(list, " ")
}

// ourTree lists a tree of microfs in the same way.
func ourTree(t *testing.T, fs *FS, dir string) string {
	var list []string
	var walk func(path string)
	walk = func(path string) {
		d, err := fs.Open(RootIno, dir+path, unix.O_DIRECTORY, 0)
		require.NoError(t, err)
		entries, err := d.ReadDir("", 0)
		require.NoError(t, err)
		require.NoError(t, d.Close())
		for _, e := range entries {
			kind := map[uint32]string{modeDir: "d", modeSymlink: "L", modeRegular: "-"}[e.Mode]
			list = append(list, kind+path+"/"+e.Name)
			if e.Mode == modeDir {
				walk(path + "/" + e.Name)
			}
		}
	}
	walk("")
	return strings.Join(list, " ")
}

// kernelTree returns the calls that make the tree from which every call starts.
func kernelTree() []call {
	return []call{
		openCall("f", unix.O_CREAT|unix.O_WRONLY), linkCall("f", "hard"), mkdirCall("d"), mkdirCall("d/sub"), mkdirCall("empty"),
		symlinkCall("f", "lf"), symlinkCall("d", "ld"), symlinkCall("empty", "lempty"), symlinkCall("nowhere", "dang"), symlinkCall("loop", "loop"),
	}
}

var longName = strings.Repeat("x", 256)

// kernelCalls lists the calls, without those that this kernel or the file system of the temporary
// directory does not support.
func kernelCalls(t *testing.T) []call {
	var calls []call
	for flags, paths := range map[int][]string{
		0:              {"f/", "dang", "dang/", "loop", "", longName, "f/..", "none/..", "lf", "ld/."},
		unix.O_CREAT:   {"d", "d/", "dang", "dang/", "loop", "", longName, "f/", "new/", "f/x", "none/x", ".", "lf", "ld"},
		unix.O_WRONLY:  {"d", ".", "ld"},
		unix.O_TRUNC:   {"d", "f", "lf"},
		unix.O_PATH:    {"f", "f/", "d", "lf", "dang", "none"},
		unix.O_ACCMODE: {"f", "d", "lf"},

		unix.O_DIRECTORY:                   {"d", "f", "lf", "ld", "none"},
		unix.O_NOFOLLOW:                    {"f", "lf", "ld", "ld/", "dang"},
		unix.O_CREAT | unix.O_EXCL:         {"f", "d", "lf", "dang", "loop", ".", "d/..", "new"},
		unix.O_CREAT | unix.O_NOFOLLOW:     {"dang", "lf", "new"},
		unix.O_DIRECTORY | unix.O_NOFOLLOW: {"ld", "ld/", "ld/.", "lf", "d"},
		unix.O_PATH | unix.O_NOFOLLOW:      {"f", "lf", "dang", "loop"},
		unix.O_PATH | unix.O_CREAT:         {"none", "f"},
	} {
		for _, path := range paths {
			calls = append(calls, openCall(path, flags))
		}
	}
	if kernelVersion(t) >= 6_003 { // an older kernel creates a regular file, and then returns ENOTDIR
		for _, path := range []string{"f", "none", "d", "dang"} {
			calls = append(calls, openCall(path, unix.O_CREAT|unix.O_DIRECTORY))
		}
	}
	for _, path := range []string{"d", "d/", "f", "f/", "f/x", "dang", "dang/", "ld", "ld/", ".", "..", "d/.", "", "none/x", "new/", "new/.", longName, "loop", "loop/", "loop/x"} {
		calls = append(calls, mkdirCall(path))
	}
	for _, path := range []string{"f", "d", "d/", "ld", "ld/", "f/", ".", "d/.", "d/..", "", "none", "none/", "f/x", "dang", "dang/", "loop", "loop/", longName} {
		calls = append(calls, unlinkCall(path, 0))
	}
	for _, path := range []string{"empty", "empty/", "f", "f/", "ld", "ld/", ".", "d/.", "d/..", "d", "", "none", "none/", "dang", "dang/", "loop/", "lempty/"} {
		calls = append(calls, unlinkCall(path, unix.AT_REMOVEDIR))
	}
	for _, path := range []string{"f", "d", "", "none", "lf", "lf/", "ld/", "dang", "dang/", "loop", "loop/"} {
		calls = append(calls, readlinkCall(path))
	}
	for _, path := range []string{"", "f/", "f/.", "lf/", "dang", "d//sub///", "./././f", longName, longName + "/x", "f/" + longName} {
		calls = append(calls, statCall(path, 0))
	}
	for _, path := range []string{"lf", "lf/", "ld/", "dang", "dang/", "loop", "loop/"} {
		calls = append(calls, statCall(path, unix.AT_SYMLINK_NOFOLLOW))
	}
	for _, path := range []string{"f", "d", "f/", "none", "lf", "dang", "loop"} {
		calls = append(calls, truncateCall(path))
	}
	for _, p := range [][2]string{
		{"f", "f"}, {"f", "d"}, {"d", "new"}, {"d", "f"}, {"none", "new"}, {"f", "new/"}, {"f/", "new"}, {"f", "none/x"}, {"f", ""}, {"", "new"},
		{"lf", "new"}, {"dang", "new"}, {"f", "dang"}, {"f", "."}, {"f", longName}, {"f", "f/x"}, {"f", "dang/"},
	} {
		calls = append(calls, linkCall(p[0], p[1]))
	}
	for _, p := range [][2]string{
		{"x", "f"}, {"x", "d"}, {"x", "new/"}, {"", "new"}, {"x", ""}, {"x", "none/x"}, {"x", "."}, {"x", "dang"}, {"x", "dang/"},
		{"x", longName}, {"x", "f/x"}, {"x", "ld/"},
	} {
		calls = append(calls, symlinkCall(p[0], p[1]))
	}
	return append(calls, renameCalls(t)...)
}

func renameCalls(t *testing.T) (calls []call) {
	exchange, noreplace := uint(unix.RENAME_EXCHANGE), uint(unix.RENAME_NOREPLACE)
	pairs := map[uint][][2]string{
		0: {
			{"f", "f"}, {"f", "hard"}, {"f", "d"}, {"d", "f"}, {"d", "d/x"}, {"d", "d/sub/x"}, {"d", "d"}, {"d/sub", "d"}, {"f", "d/sub/.."},
			{"f", "new/"}, {"f/", "new"}, {"empty", "new/"}, {"empty/", "new/"}, {"none/", "empty/"}, {"ld/", "new"}, {"f", "ld/"}, {"empty", "ld"},
			{"empty", "ld/"}, {"empty", "lempty/"}, {"empty", "d"}, {"d", "empty"}, {".", "new"}, {"d", "."}, {"d/.", "new"}, {"", "new"}, {"f", ""},
			{"none", "new"}, {"none", "none/x"}, {"f", "none/x"}, {"f", "f/x"}, {"f", longName}, {"none", "."}, {"loop", "new"}, {"loop/", "new"}, {"lf", "f"},
		},
		exchange: {
			{"f", "none"}, {"none", "f"}, {"d", "d/sub"}, {"d/sub", "d"}, {"f", "d"}, {"d", "f"}, {"f", "f"}, {"f", "hard"}, {"empty/", "f"},
			{"empty", "f/"}, {"f", "d/"}, {"f", "empty/"}, {"f/", "empty"}, {"empty", "f"}, {"lf", "d"}, {"d", "."},
		},
		noreplace: {
			{"f", "d"}, {"f", "f"}, {"f", "hard"}, {"d", "."}, {"f", "d/"}, {"none", "f"}, {"d", "d/x"}, {"f", "dang"}, {"f", "new"},
		},
		exchange | noreplace: {{"f", "hard"}},
		1 << 10:              {{"f", "hard"}},
	}
	if !renamesWithFlags(t) {
		t.Log("the file system of the temporary directory knows no flags of renameat2: those are left out")
		pairs = map[uint][][2]string{0: pairs[0]}
	}
	for flags, list := range pairs {
		for _, p := range list {
			calls = append(calls, renameCall(p[0], p[1], flags))
		}
	}
	return calls
}

func kernelVersion(t *testing.T) (version int) {
	var u unix.Utsname
	require.NoError(t, unix.Uname(&u))
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	require.NoError(t, err)
	return major*1000 + minor
}

func renamesWithFlags(t *testing.T) bool {
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	require.NoError(t, os.WriteFile(a, nil, 0o600))
	require.NoError(t, os.Mkdir(b, 0o700))
	c := filepath.Join(filepath.Dir(a), "c")
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) == nil &&
		unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, c, unix.RENAME_NOREPLACE) == nil
}

func openCall(path string, flags int) call {
	name := map[int]string{0: "", unix.O_CREAT: " O_CREAT"}[flags]
	if name == "" && flags != 0 {
		name = fmt.Sprintf(" %#o", flags)
	}
	return call{
		fmt.Sprintf("open %q%s", path, name),
		func(at int) error {
			fd, err := unix.Openat(at, path, flags|unix.O_CLOEXEC, 0o600)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		},
		func(fs *FS, dir Ino) error {
			f, err := fs.Open(dir, path, flags, 0o600)
			if err == nil {
				err = f.Close()
			}
			return err
		},
	}
}

func mkdirCall(path string) call {
	return call{
		fmt.Sprintf("mkdir %q", path),
		func(at int) error { return unix.Mkdirat(at, path, 0o700) },
		func(fs *FS, dir Ino) error { return fs.Mkdir(dir, path, 0o700) },
	}
}

func unlinkCall(path string, flags int) call {
	if flags == 0 {
		return call{
			fmt.Sprintf("unlink %q", path),
			func(at int) error { return unix.Unlinkat(at, path, 0) },
			func(fs *FS, dir Ino) error { return fs.Unlink(dir, path) },
		}
	}
	return call{
		fmt.Sprintf("rmdir %q", path),
		func(at int) error { return unix.Unlinkat(at, path, flags) },
		func(fs *FS, dir Ino) error { return fs.Rmdir(dir, path) },
	}
}

func renameCall(from, to string, flags uint) call {
	name := fmt.Sprintf("rename %q %q", from, to)
	if flags != 0 {
		name += fmt.Sprintf(" %#x", flags)
	}
	return call{
		name,
		func(at int) error { return unix.Renameat2(at, from, at, to, flags) },
		func(fs *FS, dir Ino) error { return fs.Rename(dir, from, dir, to, flags) },
	}
}

func linkCall(old, name string) call {
	return call{
		fmt.Sprintf("link %q %q", old, name),
		func(at int) error { return unix.Linkat(at, old, at, name, 0) },
		func(fs *FS, dir Ino) error { return fs.Link(dir, old, dir, name, false) },
	}
}

func symlinkCall(target, path string) call {
	return call{
		fmt.Sprintf("symlink %q %q", target, path),
		func(at int) error { return unix.Symlinkat(target, at, path) },
		func(fs *FS, dir Ino) error { return fs.Symlink(target, dir, path) },
	}
}

func readlinkCall(path string) call {
	return call{
		fmt.Sprintf("readlink %q", path),
		func(at int) error {
			if path == "" { // readlinkat would read the directory itself
				return syscall.ENOENT
			}
			_, err := unix.Readlinkat(at, path, make([]byte, 100))
			return err
		},
		func(fs *FS, dir Ino) error { _, err := fs.Readlink(dir, path); return err },
	}
}

func statCall(path string, flags int) call {
	name := "stat"
	if flags != 0 {
		name = "lstat"
	}
	return call{
		fmt.Sprintf("%s %q", name, path),
		func(at int) error { var st unix.Stat_t; return unix.Fstatat(at, path, &st, flags) },
		func(fs *FS, dir Ino) error { _, err := fs.Stat(dir, path, flags == 0); return err },
	}
}

func truncateCall(path string) call {
	return call{
		fmt.Sprintf("truncate %q", path),
		func(at int) error { return unix.Truncate(fmt.Sprintf("/proc/self/fd/%d/%s", at, path), 0) },
		func(fs *FS, dir Ino) error { return fs.Truncate(dir, path, 0) },
	}
}
