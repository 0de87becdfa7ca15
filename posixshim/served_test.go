//go:build !race

package posixshim_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestServed runs the parts of served.c, which has failures between a process and the process that serves its files.
func TestServed(t *testing.T) {
	program := compile(t, "gcc", "served.c")
	const told = `^nvmecr: process \d+ cannot reach the process that has its open files under /nvmecr any more \(.*\): they fail\n$`
	for _, c := range []struct {
		name, want, stderr string
		killed             bool // a signal kills the program
	}{
		{"memory", `pwrite(fd, m + (1 << 20), 20, 0) = -1 EFAULT
writev(fd, iov, 3) = -1 EFAULT
lseek(fd, 0, SEEK_END) = 0
pwrite(fd, m, 1 << 20, 0) = 1048576
pread(fd, m + (1 << 20), 20, 0) = -1 EFAULT
preadv(fd, iov, 3, 0) = -1 EFAULT
pread(fd, m, 1 << 20, 0) = 1048576
readv(fd, NULL, 0) = 0
writev(fd, NULL, 0) = 0
fcntl(fd, F_GETFL) & O_ACCMODE = 2
exit 0 signal 0
lseek(fd, 0, SEEK_END) = 1048576
`, "", false},
		{"child", `write(fd, "child", 5) = -1 EMFILE
open(in("other"), O_RDWR | O_CREAT, 0600) = -1 EMFILE
write(fd, "child", 5) = 5
open(in("other"), O_RDWR | O_CREAT, 0600) = -1 EMFILE
open(in("other"), O_RDWR | O_CREAT, 0600) = -1 EMFILE
open(in("other"), O_RDWR | O_CREAT, 0600) >= 0 = 1
exit 0 signal 0
write(fd, "parent", 6) = 6
`, "", false},
		{"parent", `write(fd, "child", 5) = -1 EMFILE
write(fd, large, sizeof large) = -1 EMFILE
refusals(fd) = 50
access(dir, F_OK) = -1 EMFILE
exit 0 signal 0
write(fd, "child", 5) = 5
exit 0 signal 0
`, "", false},
		{"large", `pwrite(fd, m, size, 1) = 20971520
pread(fd, back, size, 1) = 20971520
memcmp(m, back, size) = 0
preadv(fd, iov, 3, 1) = 20971520
memcmp(m, back, size) = 0
write(fd, "0", 1) = 1
writev(fd, (struct iovec[]){{m, 8 << 20}, {m + (8 << 20), 4 << 20}}, 2) = 12582912
pread(fd, back, size, 12 << 20) = 8388609
lseek(fd, 0, SEEK_CUR) = 12582913
exit 0 signal 0
lseek(fd, 0, SEEK_CUR) = 12582913
pread(fd, back, size, 1) = 20971520
memcmp(m, back, size) = 0
`, "", false},
		{"mapping", `content 0
Content
msync(first, 7, MS_SYNC) = 0
Content Content
munmap(first, 7) = 0
mprotect(second, 7, PROT_READ | PROT_WRITE) = 0
COntent COntent
exit 0 signal 0
CONTent CONTent
CONTEnt 
exit 0 signal 0
CONTENt 
`, "", false},
		{"unseen", `write(fd, "parent ", 7) = 7
inherited: 1
write(own, "child ", 6) = 6
close(own) = 0
exit 0 signal 0
write(fd, "parent ", 7) = 7
parent child parent 
`, "^nvmecr: process \\d+ has a file of /nvmecr from its parent that could not be shared with it\n$", false},
		{"killed", `failed: 0
lock(fd, F_SETLKW, F_WRLCK) = 0
flock(fd, LOCK_EX) = 0
close(fd) = 0
`, "", false},
		{"outlives", `write(fd, "child ", 6) = 6
write(fd, "lost", 4) = -1 EIO
fsync(fd) = -1 EIO
close(fd) = -1 EIO
write(fd, "again", 5) = 5
child again
`, told, true},
		{"lingers", `parent ends
child, once it has
`, "", false},
		{"threads", "parent ends\n", "", false},
		{"quits", `parent ends
child, once it has
`, "", false},
		{"executes", `child, once it has executed
`, "", false},
		{"alone", `the same process
`, "", false},
		{"refused", `execv("/", argv) = -1 EACCES
execv("/", argv) = -1 EACCES
execv("/", argv) = -1 EACCES
exit 0 signal 0
first later
`, "", false},
		{"flags", "lost = 0\n", "", false},
		{"copies", "few\n", "", false},
		{"fails", `execv("/missing", argv) = -1 ENOENT
write(fd, "parent", 6) = 6
exit 0 signal 0
child: 11
`, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			older := filepath.Join(t.TempDir(), "older")
			cmd := newStore(t).command(program, mount, c.name)
			cmd.Env = append(cmd.Env, "OLDER="+older)
			stdout, stderr, err := finish(t, cmd)
			assert.Equal(t, c.killed, err != nil, "%v", err)
			assert.Equal(t, c.want, stdout)
			if c.stderr == "" {
				assert.Empty(t, stderr)
			} else {
				assert.Regexp(t, c.stderr, stderr)
			}
			if c.name == "lingers" {
				content, err := os.ReadFile(older)
				require.NoError(t, err)
				assert.Equal(t, "x", string(content), "a stream that is older than the runtime")
			}
		})
	}
}

// TestStrangers checks programs without the library that have inherited a file of the mount. They can write to the
// file. They can read it where the kernel has a view of the mount; otherwise reading fails. No data may be lost without an
// error, or written to another file.
func TestStrangers(t *testing.T) {
	const want = `both: 1
writes: 0
reads: 1
text
neither: 0
writes nothing: 0
kept
text
in
out
`
	const viewed = `both: 0
kept
writes: 0
kept
reads: 0
text
neither: 0
writes nothing: 0
kept
text
in
out
`
	for _, c := range []struct {
		name string
		argv func(t *testing.T) []string
	}{
		{"without the environment", func(t *testing.T) []string {
			return []string{"env", "-i", compile(t, "gcc", "copies.c")}
		}},
		{"static", func(t *testing.T) []string { return []string{compile(t, "gcc", "copies.c", "-static")} }},
		{"of musl", func(t *testing.T) []string { return []string{compile(t, "musl-gcc", "copies.c")} }},
		{"set-user-ID", func(t *testing.T) []string {
			if os.Getuid() != 0 {
				t.Skip("only root can make one that is another user's")
			}
			program := filepath.Join(scratch, "set-user-ID")
			require.NoError(t, os.Rename(compile(t, "gcc", "copies.c"), program))
			require.NoError(t, os.Chown(program, 65534, 65534))
			require.NoError(t, os.Chmod(program, 0o755|os.ModeSetuid))
			return []string{program}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := newStore(t).command("sh", append([]string{"testdata/strangers.sh", mount}, c.argv(t)...)...)
			stdout, stderr, err := finish(t, cmd)
			require.NoError(t, err)
			assert.Equal(t, want, stdout)
			assert.Regexp(t, "^read: Invalid argument\nread: Invalid argument\n$", stderr)

			cmd = newStore(t).view().command("sh", append([]string{"testdata/strangers.sh", mount}, c.argv(t)...)...)
			assert.Equal(t, viewed, output(t, cmd))
		})
	}
	assert.NoFileExists(t, mount)
}

// TestStrangersRead checks which files a program without the library can read that has inherited them: those that are open for
// reading only and have the name by which they were opened. It never reads another file.
func TestStrangersRead(t *testing.T) {
	program := compile(t, "gcc", "copies.c", "-static")
	stdout, stderr, err := finish(t, newStore(t).view().command("sh", "testdata/reads.sh", mount, program))
	require.NoError(t, err)
	assert.Equal(t, `56785678 from an offset, which stays: 0
12345678 found in PATH: 0
#!`+program+`
executed by the process that has it open: 0
entry
open for writing too: 1
renamed: 1
without a name: 1
`, stdout)
	assert.Equal(t, "read: Resource temporarily unavailable\nread: Invalid argument\nread: Invalid argument\n", stderr)
}

// TestRing checks a program that uses io_uring by system calls. With the library its requests on files of the mount fail, one line
// says so, and its other calls work. Without the library the kernel's view has the files.
func TestRing(t *testing.T) {
	program, local := compile(t, "gcc", "ring.c"), t.TempDir()
	want, _, err := finish(t, exec.Command(program, local))
	if err != nil {
		t.Skipf("there is no io_uring here: %s", want)
	}
	s := newStore(t).view()
	stdout, stderr, err := finish(t, s.command(program, mount))
	require.NoError(t, err)
	const fails = "write: Bad file descriptor\nfsync: Bad file descriptor\nread: Bad file descriptor\nsame: 0\npwrite: 10\nfstat: 0, size 10\n"
	assert.Equal(t, "opened after:\n"+fails+"opened before:\n"+fails, stdout)
	assert.Regexp(t, `^nvmecr: process \d+ uses io_uring, whose requests on files under /nvmecr fail: .*\n$`, stderr)
	assert.Equal(t, want, output(t, s.command("env", "-u", "LD_PRELOAD", program, s.viewDir()+"/self")))
	assert.Equal(t, "100010\n100010\n", output(t, s.command("stat", "--format=%s", mount+"/before", mount+"/after")))
}

// TestBuildInTheMount runs make in the mount. The output must be the same as in a local directory.
func TestBuildInTheMount(t *testing.T) {
	tool(t, "make")
	want := output(t, exec.Command("sh", "testdata/build.sh", t.TempDir(), t.TempDir()))
	got := output(t, newStore(t).command("sh", "testdata/build.sh", mount, t.TempDir()))
	assert.Equal(t, want, got)
	assert.Contains(t, got, "nothing left to do\n")
}

// TestBesideAWriter starts a process while another one has the partition open for writing. The process sends its
// calls to the other one, also those relative to directories that it opened for reading itself.
func TestBesideAWriter(t *testing.T) {
	tool(t, "python3")
	const script = `import os, shutil, sys
m = sys.argv[1]
own = os.open(m + "/tree/sub/deep/file", os.O_RDONLY)
d = os.open(m + "/tree", os.O_RDONLY | os.O_DIRECTORY)
e = os.open("sub", os.O_RDONLY | os.O_DIRECTORY, dir_fd=d)
os.chdir(m + "/tree")
print(os.listdir(d), os.listdir("."))
f = os.open("new", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=e)
r = os.open("sub/new", os.O_RDONLY, dir_fd=d)
print(os.write(f, b"text"), os.fstat(r).st_size, os.read(r, 10))
os.close(f)
os.rename("new", "moved", src_dir_fd=e, dst_dir_fd=d)
os.rename("moved", "again")
os.link("again", "../linked", src_dir_fd=d, dst_dir_fd=e)
w = os.open("sub/deep/file", os.O_RDWR)
print(os.pwrite(w, b"changed", 0), os.fstat(own).st_size, os.read(own, 10))
print(sorted(os.listdir(d)), os.stat("again").st_nlink, os.getcwd() == m + "/tree")
os.chdir("..")
shutil.rmtree("tree")
print(sorted(os.listdir(m)))
`
	run := func(dir string, command func(string, ...string) *exec.Cmd) string {
		output(t, command("sh", "-c", "mkdir -p $0/tree/sub/deep; echo x >$0/tree/sub/deep/file", dir))
		writer := command("sh", "-c", "exec 3>$0/held; echo ready; read x; echo end >&3", dir)
		in, err := writer.StdinPipe()
		require.NoError(t, err)
		out, err := writer.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, writer.Start())
		_, err = out.Read(make([]byte, 6))
		require.NoError(t, err)
		got := output(t, command("python3", "-c", script, dir))
		require.NoError(t, in.Close())
		require.NoError(t, writer.Wait())
		return got + output(t, command("cat", dir+"/held"))
	}
	assert.Equal(t, run(t.TempDir(), exec.Command), run(mount, newStore(t).command))
}

// TestLastClose checks that a process which closes the last file of a server that is about to end gets the result,
// also if this late call is its first one.
func TestLastClose(t *testing.T) {
	program := compile(t, "gcc", "lastclose.c")
	slow := compile(t, "gcc", "slowclose.c", "-shared", "-fPIC")
	s := newStore(t)
	s.preload += ":" + slow
	assert.Equal(t, "Success\nSuccess\n", output(t, s.command(program, mount)))
}
