package owner

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/shortdir"
)

// The test program is also the other process: with OWNER_TEST_ROLE set it does
// what that says instead of running tests.
func TestMain(m *testing.M) {
	if dir := os.Getenv("OWNER_TEST_BASE"); dir != "" {
		base = dir
	}
	switch os.Getenv("OWNER_TEST_ROLE") {
	case "":
		dir, err := os.MkdirTemp("/tmp", "owner") // a short name: it is for sockets
		if err != nil {
			panic(err)
		}
		base = dir
		os.Setenv("OWNER_TEST_BASE", dir)
		code := m.Run()
		os.RemoveAll(dir)
		os.Exit(code)
	case "busy":
		hold("", func() bool { return false })
	case "busy used":
		hold("used", func() bool { return false })
	case "yields":
		hold("", func() bool { return true })
	case "forks":
		forkedChild()
	case "races":
		race()
	case "attaches":
		attaches("group", time.Minute)
	case "attaches used":
		attaches("used", time.Minute)
	case "prepares":
		prepares()
	case "waits":
		attaches("group", time.Millisecond)
	}
}

// hold acquires the key "k" of a group, reports that, and keeps it until stdin ends.
func hold(group string, onYield func() bool) {
	if _, err := Acquire(context.Background(), group, "k", "", onYield); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// forkedChild acquires the key and then forks without exec: the child inherits
// every descriptor and only waits to be killed.
func forkedChild() {
	l, err := Acquire(context.Background(), "", "k", "", nil)
	if err != nil {
		panic(err)
	}
	// SAFETY: the child makes one raw system call over and over and never
	// returns to the Go runtime.
	pid, _, errno := syscall.RawSyscall(syscall.SYS_FORK, 0, 0, 0)
	if errno != 0 {
		panic(errno)
	}
	if pid == 0 {
		for {
			syscall.RawSyscall(syscall.SYS_PAUSE, 0, 0, 0)
		}
	}
	fmt.Println("child", pid)
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = l.Release()
	os.Exit(0)
}

// race acquires and releases the key many times. A file created with O_EXCL shows that it has no concurrent owner.
func race() {
	alone := filepath.Join(base, "alone")
	for i := 0; i < 50; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		mine := make(chan *Lock, 1)
		var l *Lock
		var err error
		for {
			l, err = Acquire(ctx, "", "k", "", func() bool {
				// The key can be released only between rounds.
				select {
				case <-mine:
					return true
				default:
					return false
				}
			})
			if !errors.Is(err, syscall.EBUSY) {
				break
			}
		}
		cancel()
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		f, err := os.OpenFile(alone, os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			fmt.Println("not alone:", err)
			os.Exit(1)
		}
		_ = f.Close()
		_ = os.Remove(alone)
		if i%2 == 0 {
			mine <- l // the first request gets it
		}
		if err := l.Release(); err != nil {
			fmt.Println("release:", err)
			os.Exit(1)
		}
	}
	fmt.Println("done")
}

// process is another process in one of the roles above.
type process struct {
	*exec.Cmd
	out   *bufio.Reader
	stdin io.Closer
}

func start(t *testing.T, role string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "OWNER_TEST_ROLE="+role)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{Cmd: cmd, out: bufio.NewReader(out), stdin: in}
	t.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	_ = p.Process.Kill()
	_, _ = p.Process.Wait()
}

// line returns the next line the process prints.
func (p *process) line(t *testing.T) string {
	t.Helper()
	s, err := p.out.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(s)
}

// hang is longer than anything takes on a busy machine.
const hang = 5 * time.Minute

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

func TestBusyNamesTheOwner(t *testing.T) {
	p := start(t, "busy")
	require.Equal(t, "held", p.line(t))
	_, err := Acquire(soon(t), "", "k", "", nil)
	var busy *BusyError
	require.ErrorAs(t, err, &busy)
	assert.ErrorIs(t, err, syscall.EBUSY)
	assert.Equal(t, p.Process.Pid, busy.PID)
	assert.False(t, busy.Silent)
	assert.Contains(t, err.Error(), strconv.Itoa(p.Process.Pid))
}

func TestOwnerYields(t *testing.T) {
	p := start(t, "yields")
	require.Equal(t, "held", p.line(t))
	l, err := Acquire(soon(t), "", "k", "", nil)
	require.NoError(t, err, "the owner lives on but has yielded")
	require.NoError(t, p.Process.Signal(syscall.Signal(0)))
	require.NoError(t, l.Release())
}

func TestOwnerEnds(t *testing.T) {
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		p := start(t, "busy")
		require.Equal(t, "held", p.line(t))
		require.NoError(t, p.Process.Signal(how))
		_, _ = p.Process.Wait()
		l, err := Acquire(soon(t), "", "k", "", nil)
		require.NoError(t, err, "the socket file of the dead owner is in the way: %s", how)
		require.NoError(t, l.Release())
	}
}

// TestNoSIGPIPE checks that a message to a process that has ended is an error, and no signal, which would kill an application.
func TestNoSIGPIPE(t *testing.T) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGPIPE, syscall.SIGWINCH)
	defer signal.Stop(signals)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(fds[1]))
	conn := os.NewFile(uintptr(fds[0]), "connection")
	assert.ErrorIs(t, send(conn, newMessage(verbYield, "")), syscall.EPIPE)
	require.NoError(t, conn.Close())
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGWINCH))
	assert.Equal(t, syscall.SIGWINCH, <-signals, "the first signal")
}

// TestForkedChildKeepsNothing checks that a forked child has the owner's descriptors, but not its lock.
func TestForkedChildKeepsNothing(t *testing.T) {
	p := start(t, "forks")
	child, err := strconv.Atoi(strings.TrimPrefix(p.line(t), "child "))
	require.NoError(t, err)
	defer func() { _ = syscall.Kill(child, syscall.SIGKILL) }()
	require.Equal(t, "held", p.line(t))
	p.kill()
	require.NoError(t, syscall.Kill(child, 0), "the child is still there")
	l, err := Acquire(soon(t), "", "k", "", nil)
	require.NoError(t, err)
	require.NoError(t, l.Release())
}

// TestSilentOwner checks that the wait for a stopped owner ends with ctx, or with the owner, even if a child of it
// keeps the socket open.
func TestSilentOwner(t *testing.T) {
	p := start(t, "forks")
	child, err := strconv.Atoi(strings.TrimPrefix(p.line(t), "child "))
	require.NoError(t, err)
	defer func() { _ = syscall.Kill(child, syscall.SIGKILL) }()
	require.Equal(t, "held", p.line(t))
	require.NoError(t, p.Process.Signal(syscall.SIGSTOP))
	_, err = unix.Wait4(p.Process.Pid, nil, unix.WUNTRACED, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err = Acquire(ctx, "", "k", "", nil)
	var busy *BusyError
	require.ErrorAs(t, err, &busy)
	assert.True(t, busy.Silent)
	assert.Equal(t, p.Process.Pid, busy.PID)

	asked := make(chan error, 1)
	begun := time.Now()
	go func() {
		l, err := Acquire(soon(t), "", "k", "", nil)
		if err == nil {
			err = l.Release()
		}
		asked <- err
	}()
	p.kill()
	require.NoError(t, <-asked)
	assert.Less(t, time.Since(begun), hang)
}

func TestOneOwnerAtATime(t *testing.T) {
	var all []*process
	for i := 0; i < 4; i++ {
		all = append(all, start(t, "races"))
	}
	for _, p := range all {
		assert.Equal(t, "done", p.line(t))
	}
}

func TestThisProcessHasItAlready(t *testing.T) {
	l, err := Acquire(soon(t), "", "k", "", nil)
	require.NoError(t, err)
	_, err = Acquire(soon(t), "", "k", "", nil)
	require.ErrorIs(t, err, syscall.EBUSY)
	// The refused attempt must not have dropped the lock.
	p := start(t, "busy")
	require.Contains(t, p.line(t), "error:")
	require.NoError(t, l.Release())
	require.NoError(t, l.Release(), "a second release is none")
	p = start(t, "busy")
	require.Equal(t, "held", p.line(t))
}

// TestYieldReleases checks that onYield may release the lock itself, and is not called after the release.
func TestYieldReleases(t *testing.T) {
	var l *Lock
	var calls atomic.Int32
	ready := make(chan struct{})
	l, err := Acquire(soon(t), "", "k", "", func() bool {
		<-ready
		calls.Add(1)
		return l.Release() == nil
	})
	require.NoError(t, err)
	close(ready)
	p := start(t, "busy")
	require.Equal(t, "held", p.line(t))
	assert.EqualValues(t, 1, calls.Load())
}

func TestStrangeMessages(t *testing.T) {
	l, err := Acquire(soon(t), "", "k", "", func() bool { panic("nobody asked to yield") })
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Release()) }()
	good := make([]byte, headerSize)
	for name, edit := range map[string]func([]byte){
		"another verb":    func(b []byte) { b[6] = 99 },
		"another version": func(b []byte) { b[4] = 2 },
		"not ours":        func(b []byte) { copy(b, "GET / HTTP/1.1\r\n") },
		"a long body":     func(b []byte) { b[11] = 1 },
	} {
		copy(good, newMessage(verbYield, ""))
		edit(good)
		conn, err := net.Dial("unix", l.path+".sock")
		require.NoError(t, err)
		_, err = conn.Write(good)
		require.NoError(t, err)
		var b [headerSize]byte
		_, err = io.ReadFull(conn, b[:])
		require.NoError(t, err, name)
		status, _, err := parse(b[:])
		require.NoError(t, err)
		assert.Equal(t, statusUnknown, status, name)
		_ = conn.Close()
	}
}

// TestDivideIsSetWhileAskedToYield checks that OnDivide can be called while onYield runs.
func TestDivideIsSetWhileAskedToYield(t *testing.T) {
	asked, ready := make(chan struct{}), make(chan struct{})
	l, err := Acquire(soon(t), "", "k", "", func() bool {
		close(asked)
		<-ready
		return false
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Release()) }()
	conn, err := net.Dial("unix", l.path+".sock")
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write(newMessage(verbYield, ""))
	require.NoError(t, err)
	<-asked
	set := make(chan struct{})
	go func() {
		l.OnDivide(func(uint32, string) error { return nil })
		close(set)
	}()
	select {
	case <-set:
	case <-time.After(hang):
		assert.Fail(t, "it waits for the answer")
	}
	close(ready)
}

func TestDivide(t *testing.T) {
	require.ErrorIs(t, Divide(soon(t), "", "k", 4, "0*2,1*2"), syscall.EBUSY, "nobody has it")
	l, err := Acquire(soon(t), "", "k", "", func() bool { panic("nobody asked to yield") })
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Release()) }()
	require.ErrorIs(t, Divide(soon(t), "", "k", 4, "0*2,1*2"), syscall.EBUSY, "it does not know yet how")
	var mu sync.Mutex // the race detector does not know that messages order what follows
	var got uint32
	var by string
	answer := error(nil)
	l.OnDivide(func(ranks uint32, mapping string) error {
		mu.Lock()
		defer mu.Unlock()
		got, by = ranks, mapping
		return answer
	})
	refuse := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		answer = err
	}
	require.NoError(t, Divide(soon(t), "", "k", 4, "0*2,1*2"))
	mu.Lock()
	require.EqualValues(t, 4, got)
	require.Equal(t, "0*2,1*2", by)
	mu.Unlock()
	refuse(fmt.Errorf("in a moment: %w", syscall.EBUSY))
	require.ErrorIs(t, Divide(soon(t), "", "k", 5, ""), syscall.EBUSY)
	refuse(errors.New(strings.Repeat("no", maxReason)))
	var refused *RefusedError
	require.ErrorAs(t, Divide(soon(t), "", "k", 5, ""), &refused)
	require.Equal(t, strings.Repeat("no", maxReason/2), refused.Reason)
}

func TestNote(t *testing.T) {
	for _, note := range []string{"", "first", strings.Repeat("n", MaxNote), "x"} {
		l := &Lock{path: filepath.Join(t.TempDir(), "k"), fd: -1, note: note}
		require.NoError(t, os.WriteFile(l.path+".lock", []byte("an owner that was killed had noted this"), 0o600))
		_, err := l.try()
		require.NoError(t, err)
		require.GreaterOrEqual(t, l.fd, 0)
		other, err := os.Open(l.path + ".lock")
		require.NoError(t, err)
		assert.Equal(t, note, readNote(int(other.Fd())))
		l.forget()
		require.NoError(t, other.Close())
	}
	_, err := Acquire(soon(t), "", "k", strings.Repeat("n", MaxNote+1), nil)
	assert.ErrorIs(t, err, syscall.EINVAL)
}

func TestForeignDirectory(t *testing.T) {
	saved := base
	defer func() { base = saved }()
	base = shortdir.New(t)
	dir, err := directory("")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o770))
	_, err = Acquire(soon(t), "", "k", "", nil)
	require.ErrorIs(t, err, syscall.EACCES)
	assert.Contains(t, err.Error(), dir)
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.Symlink(t.TempDir(), dir))
	_, err = Acquire(soon(t), "", "k", "", nil)
	require.ErrorIs(t, err, syscall.EACCES)
}

// TestHostNumber checks that processes have the same server if they have the same locks, and no other processes do.
func TestHostNumber(t *testing.T) {
	saved := base
	defer func() { base = saved }()
	numbers := make(map[uint64]bool)
	for range 2 { // hosts
		base = shortdir.New(t)
		for _, group := range []string{"one", "other"} {
			assert.Zero(t, HostNumber(group), "there is no directory")
			_, err := directory(group)
			require.NoError(t, err)
			n := HostNumber(group)
			assert.Equal(t, n, HostNumber(group))
			assert.False(t, numbers[n])
			numbers[n] = true
			assert.Positive(t, int64(n))
		}
	}
	assert.Len(t, numbers, 4)
	assert.Zero(t, HostNumber(""))
}

// TestGroups checks that keys of different groups are independent, and that an unused directory is removed.
func TestGroups(t *testing.T) {
	a, err := Acquire(soon(t), "a", "k", "", nil)
	require.NoError(t, err)
	b, err := Acquire(soon(t), "b", "k", "", nil)
	require.NoError(t, err)
	require.NoError(t, b.Release())
	assert.NoDirExists(t, prefix()+"-b", "the last one takes it away")
	require.NoError(t, Prepare("b"))
	RemoveGroup("a")
	RemoveGroup("b")
	assert.DirExists(t, prefix()+"-a", "in use")
	assert.NoDirExists(t, prefix()+"-b")
	require.NoError(t, a.Release())

	require.NoError(t, os.Symlink(t.TempDir(), prefix()+"-c"))
	assert.ErrorIs(t, Prepare("c"), syscall.EACCES)
	require.NoError(t, os.Mkdir(prefix()+"-d", 0o700))
	require.NoError(t, os.Chmod(prefix()+"-d", 0o770))
	assert.ErrorIs(t, Prepare("d"), syscall.EACCES, "others can write to it")
	if os.Geteuid() == 0 {
		require.NoError(t, os.Mkdir(prefix()+"-e", 0o700))
		require.NoError(t, os.Chown(prefix()+"-e", 4711, 4711))
		assert.ErrorIs(t, Prepare("e"), syscall.EACCES, "another user's")
	}
	for _, group := range []string{"..", "a/b", strings.Repeat("g", MaxGroup+1)} {
		assert.ErrorIs(t, Prepare(group), syscall.EINVAL, group)
	}
	require.NoError(t, Prepare(""))
}

func TestKeys(t *testing.T) {
	for _, key := range []string{"", ".", "../x", "a b", strings.Repeat("a", MaxKey+1)} {
		_, err := Acquire(soon(t), "", key, "", nil)
		assert.ErrorIs(t, err, syscall.EINVAL, key)
	}
	long := strings.Repeat("a", MaxKey)
	assert.LessOrEqual(t, len("/tmp/nvmecr-4294967295-"+strings.Repeat("g", MaxGroup)+"/"+long+".sock"), 107)
}

// TestLockFileHasStickyBit checks for the sticky bit, which keeps cleaners of /tmp away.
func TestLockFileHasStickyBit(t *testing.T) {
	l, err := Acquire(soon(t), "", "k", "", nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Release()) }()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(l.path+".lock", &st))
	assert.EqualValues(t, unix.S_ISVTX|0o600, st.Mode&0o7777)
}

// TestSweep checks that files of killed owners are removed after a day, and that locked files never are.
func TestSweep(t *testing.T) {
	p := start(t, "busy")
	require.Equal(t, "held", p.line(t))
	mine, err := Acquire(soon(t), "", "mine", "", nil)
	require.NoError(t, err)
	dir := filepath.Dir(mine.path)
	left := filepath.Join(dir, "left")
	for _, name := range []string{left + ".lock", left + ".sock"} {
		require.NoError(t, os.WriteFile(name, nil, 0o600))
	}
	sweep(dir, time.Now().Add(-time.Hour))
	require.FileExists(t, left+".lock", "too young")
	sweep(dir, time.Now().Add(time.Hour))
	assert.NoFileExists(t, left+".lock")
	assert.NoFileExists(t, left+".sock")
	assert.FileExists(t, mine.path+".lock")
	assert.FileExists(t, filepath.Join(dir, "k.lock"))
	_, err = Acquire(soon(t), "", "k", "", nil)
	require.ErrorIs(t, err, syscall.EBUSY)
	require.NoError(t, mine.Release())
}

// TestSweepGroups checks that the directory of a group is removed after all of its processes were killed, and not
// before.
func TestSweepGroups(t *testing.T) {
	future := time.Now().Add(time.Hour)
	for _, role := range []string{"prepares", "attaches used", "busy used"} {
		t.Run(role, func(t *testing.T) {
			dir := Directory("used")
			p := start(t, role)
			require.Contains(t, []string{"prepared", "serves", "held"}, p.line(t))
			require.NoError(t, os.MkdirAll(filepath.Join(dir, ViewName), 0o700))
			before, err := os.ReadDir(dir)
			require.NoError(t, err)
			sweepGroups(future)
			after, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Equal(t, before, after, "it is in use")
			p.kill()
			sweepGroups(time.Now().Add(-time.Hour))
			assert.DirExists(t, dir, "it is new")
			sweepGroups(future)
			assert.NoDirExists(t, dir)
		})
	}
	require.NoError(t, Prepare("used"))
	assert.True(t, InUse("used"))
	RemoveGroup("used")
}

// TestOtherUser checks that a process that has changed its user gets the owner of the run, on the first host, also
// when no process has a lock.
func TestOtherUser(t *testing.T) {
	const group = "0123456789abcdef"
	_, other := OtherUser(group)
	assert.False(t, other, "nobody's yet")
	require.NoError(t, Prepare(group))
	defer RemoveGroup(group)
	l, err := Acquire(context.Background(), group, "k", "", nil)
	require.NoError(t, err)
	require.NoError(t, l.Release())
	_, other = OtherUser(group)
	assert.False(t, other)
	if os.Geteuid() != 0 {
		t.Skip("only root can change its user")
	}
	dir := prefix() + "-" + group
	require.NoError(t, os.Chown(dir, 4711, 4711))
	uid, other := OtherUser(group)
	assert.True(t, other)
	assert.EqualValues(t, 4711, uid)
	for _, none := range []string{"", "*", "../x"} {
		_, other = OtherUser(none)
		assert.False(t, other, none)
	}
	require.NoError(t, os.Chown(dir, 0, 0))
}
