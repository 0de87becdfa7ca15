package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/shortdir"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/provision/provisiontest"
	"nvmecr/nvmf/target"
)

// fixtures counts the fixtures. Each fixture has its own address, so that no other test
// takes its port while its target restarts.
var fixtures atomic.Int32

// fixture is a target with an admin socket, and hosts over NVMe/TCP.
type fixture struct {
	t       *testing.T
	pool    string
	dir     string
	address string
	port    string
	step    func() error
	target  *target.Target
	admin   *Target
	stop    func()
}

func newFixture(t *testing.T, pool string) *fixture {
	f := &fixture{t: t, pool: pool, dir: shortdir.New(t), port: "0"}
	f.address = fmt.Sprintf("127.0.5.%d", 1+fixtures.Add(1)%250)
	f.start(t)
	t.Cleanup(func() { f.stop() })
	return f
}

// poolDir returns a directory that does not exist yet, so that the pool creates it
// with the right permissions whatever the umask is.
func poolDir(t *testing.T) string { return filepath.Join(t.TempDir(), "pool") }

func (f *fixture) socket() string { return filepath.Join(f.dir, "admin.sock") }

func (f *fixture) start(t *testing.T) {
	tgt, err := target.New(target.Config{})
	require.NoError(t, err)
	pool, err := OpenPool(f.pool)
	require.NoError(t, err)
	if p, ok := pool.(*filePool); ok {
		p.step = func() error {
			if f.step != nil {
				return f.step()
			}
			return nil
		}
	}
	f.target = tgt
	f.admin, err = New(tgt, pool, provision.Base)
	require.NoError(t, err)
	addr, err := tgt.Listen(f.address + ":" + f.port)
	require.NoError(t, err)
	f.port = strconv.Itoa(addr.(*net.TCPAddr).Port)
	f.admin.SetAddresses([]nvmf.TransportID{{Transport: nvmf.TCP, Family: "IPv4", Address: f.address, Service: f.port}})
	l, err := Listen(f.socket())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, f.admin) }()
	f.stop = func() {
		cancel()
		assert.NoError(t, <-ended)
		grace, end := context.WithTimeout(context.Background(), time.Minute)
		defer end()
		assert.NoError(t, tgt.Close(grace))
		assert.NoError(t, f.admin.Close())
	}
}

func (f *fixture) Open(*testing.T) provision.Provisioner { return NewClient(f.socket()) }

func (f *fixture) Connect(id nvmf.TransportID, host string, keys dhchap.Keys) (provisiontest.Volume, error) {
	return provisiontest.Dial(id, host, keys)
}

var errDied = errors.New("died")

func (f *fixture) Interrupt(n int, executed bool) func() bool {
	if executed {
		n++ // a step fails before it is executed, so a failure after step n is one before step n+1
	}
	f.step = func() error {
		if n--; n <= 0 {
			return errDied
		}
		return nil
	}
	return func() bool { return n <= 0 }
}

func (f *fixture) Recover(t *testing.T) {
	f.step = nil
	if f.pool[:4] == "file" {
		f.Restart(t)
	}
}

func (f *fixture) Restart(t *testing.T) {
	f.stop()
	f.start(t)
}

func (f *fixture) Leftovers(t *testing.T) []string {
	var names []string
	if p, ok := f.admin.pool.(*filePool); ok {
		entries, err := os.ReadDir(p.path)
		require.NoError(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return names
}

func (f *fixture) Traits() provisiontest.Traits {
	return provisiontest.Traits{Unit: 4096, Limits: true, Paced: true, Volatile: f.pool[:3] == "mem", Limited: f.pool[:3] == "mem"}
}

func TestConformance(t *testing.T) {
	t.Parallel() // it mostly waits, since targets delay their answer to hosts with wrong keys
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		provisiontest.Run(t, func(t *testing.T) provisiontest.Fixture { return newFixture(t, "file:"+poolDir(t)) })
	})
	t.Run("mem", func(t *testing.T) {
		t.Parallel()
		provisiontest.Run(t, func(t *testing.T) provisiontest.Fixture { return newFixture(t, "mem:64M") })
	})
}

// TestIsolation checks that the host of one job cannot affect another job.
func TestIsolation(t *testing.T) {
	t.Parallel()
	for _, pool := range []string{"mem:64M", "file:" + poolDir(t)} {
		t.Run(pool[:4], func(t *testing.T) {
			t.Parallel()
			p := newFixture(t, pool).Open(t)
			t.Cleanup(func() { assert.NoError(t, p.Close()) })
			provisiontest.Isolation(t, p, nil)
		})
	}
}

// TestAdminSocket checks that only this user and root can use the admin socket, and
// that two targets cannot share one.
func TestAdminSocket(t *testing.T) {
	path := filepath.Join(shortdir.New(t), "s")
	l, err := Listen(path)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	_, err = Listen(path)
	require.ErrorContains(t, err, "another target listens there")
	assert.True(t, trusted(0))
	assert.True(t, trusted(uint32(os.Geteuid())))
	assert.False(t, trusted(uint32(os.Geteuid())+1))

	l.(*listener).Listener.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	require.FileExists(t, path)
	l, err = Listen(path)
	require.NoError(t, err, "the socket of a killed target")
	require.NoError(t, l.Close())
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = Listen(path)
	require.ErrorContains(t, err, "no socket")

	c := NewClient(path + "x")
	_, err = c.List(context.Background())
	require.ErrorContains(t, err, "nvmecr target --admin")
}

// TestDeadSocket checks that exactly one of several targets takes over the socket that
// a killed target has left.
func TestDeadSocket(t *testing.T) {
	for range 20 {
		path := filepath.Join(shortdir.New(t), "s")
		dead, err := net.Listen("unix", path)
		require.NoError(t, err)
		dead.(*net.UnixListener).SetUnlinkOnClose(false)
		require.NoError(t, dead.Close())
		const targets = 4
		won := make(chan net.Listener, targets)
		var group sync.WaitGroup
		for range targets {
			group.Go(func() {
				l, err := Listen(path)
				if err == nil {
					won <- l
				} else {
					assert.ErrorContains(t, err, "another target listens there")
				}
			})
		}
		group.Wait()
		close(won)
		require.Len(t, won, 1)
		l := <-won
		conn, err := net.Dial("unix", path)
		require.NoError(t, err, "clients reach the new listener")
		require.NoError(t, errors.Join(conn.Close(), l.Close()))
	}
}

// TestForeignTarget checks that a client sends nothing to a target of another user.
func TestForeignTarget(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to change to another user")
	}
	l, err := net.Listen("unix", filepath.Join(shortdir.New(t), "s"))
	require.NoError(t, err)
	defer l.Close()
	listened := make(chan error, 1)
	go func() {
		// The goroutine keeps the thread locked, so that the thread ends with it.
		runtime.LockOSThread()
		err := rawSetuid(65534)
		if err == nil {
			var raw syscall.RawConn
			if raw, err = l.(*net.UnixListener).SyscallConn(); err == nil {
				// SO_PEERCRED returns the credentials of the last thread that called listen.
				err = errors.Join(raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 8) }), err)
			}
		}
		listened <- err
	}()
	require.NoError(t, <-listened)
	got := make(chan []byte, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		b, _ := io.ReadAll(conn)
		got <- b
	}()
	c := NewClient(l.Addr().String())
	_, err = c.List(context.Background())
	require.ErrorContains(t, err, "user 65534")
	require.NoError(t, c.Close())
	assert.Empty(t, <-got, "nothing was sent")
}

// TestStrangers checks that the target refuses another user even if the permissions of
// the socket file allow the connection.
func TestStrangers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to change to another user")
	}
	f := newFixture(t, "mem:8M")
	path := f.socket()
	require.NoError(t, os.Chmod(f.dir, 0o711))
	call := func() (err error) {
		done := make(chan struct{})
		go func() {
			// The goroutine keeps the thread locked, so that the thread ends with it.
			runtime.LockOSThread()
			defer close(done)
			if err = rawSetuid(65534); err != nil {
				return
			}
			var conn net.Conn
			if conn, err = dialHere(path); err != nil {
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			_, _ = conn.Write([]byte(`{"jsonrpc":"2.0","id":1,"method":"list"}`))
			_, err = conn.Read(make([]byte, 100))
		}()
		<-done
		return err
	}
	require.ErrorIs(t, call(), unix.EACCES)
	require.NoError(t, os.Chmod(path, 0o666))
	err := call()
	if errors.Is(err, unix.EACCES) {
		t.Skip("other users may not enter the directory of temporary files")
	}
	require.Error(t, err)
	assert.True(t, errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE), "%v", err)
}

// rawSetuid changes the user of the calling thread only.
func rawSetuid(uid int) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return errno
	}
	return nil
}

// dialHere connects on the calling thread, so with that thread's user.
func dialHere(path string) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "client")
	defer file.Close()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, err
	}
	return net.FileConn(file)
}

// TestFilePool checks that a pool removes jobs whose creation or deletion was
// interrupted, and that it reports damaged jobs.
func TestFilePool(t *testing.T) {
	dir := poolDir(t)
	f := newFixture(t, "file:"+dir)
	_, err := OpenPool("file:" + dir)
	require.ErrorContains(t, err, "another target serves it")
	c := f.Open(t)
	_, err = c.Create(context.Background(), "melt", nvmf.MiB)
	require.NoError(t, err)
	f.stop()
	require.NoError(t, os.Mkdir(filepath.Join(dir, freedPrefix+"old"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(dir, newPrefix+"young"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "lost+found;"), 0o700))
	f.start(t)
	list, err := f.Open(t).List(context.Background())
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.NoDirExists(t, filepath.Join(dir, freedPrefix+"old"))
	assert.NoDirExists(t, filepath.Join(dir, newPrefix+"young"))
	f.stop()
	f.stop = func() {}

	file := filepath.Join(dir, "melt", recordName)
	good, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, bad := range []string{"", "{", `{"job":"other"}`, `{"job":"melt","size":4096}`} {
		require.NoError(t, os.WriteFile(file, []byte(bad), 0o600))
		pool, err := OpenPool("file:" + dir)
		require.NoError(t, err)
		tgt, err := target.New(target.Config{})
		require.NoError(t, err)
		x, err := New(tgt, pool, provision.Base)
		require.NoError(t, err)
		list, err := x.List(context.Background())
		require.NoError(t, err)
		require.Len(t, list, 1)
		assert.Equal(t, provision.Damaged, list[0].State)
		assert.Contains(t, list[0].Problem, file[:len(file)-len("/"+recordName)])
		require.NoError(t, tgt.Close(context.Background()))
		require.NoError(t, x.Close())
	}
	require.NoError(t, os.WriteFile(file, good, 0o600))

	image := filepath.Join(dir, "melt", imageName)
	elsewhere := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.Rename(image, elsewhere))
	require.NoError(t, os.Symlink(elsewhere, image))
	pool, err := OpenPool("file:" + dir)
	require.NoError(t, err)
	_, err = pool.open(record{Job: "melt", Size: nvmf.MiB})
	require.ErrorContains(t, err, "not a regular file")
	require.NoError(t, pool.Close())
	require.NoError(t, os.Rename(elsewhere, image))
	require.NoError(t, os.Chmod(dir, 0o770))
	_, err = OpenPool("file:" + dir)
	require.ErrorContains(t, err, "chmod go-w "+dir)
	require.NoError(t, os.Chmod(dir, 0o700))

	victim := filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, []byte("mine"), 0o600))
	require.NoError(t, os.Symlink(victim, file+".new"))
	f.start(t)
	require.NoError(t, c.Expose(context.Background(), "melt", nil, nil))
	kept, err := os.ReadFile(victim)
	require.NoError(t, err)
	assert.Equal(t, "mine", string(kept))
	require.NoError(t, c.Delete(context.Background(), "melt"), "a client works after a restart of the target")

	for _, name := range []string{"", "file:", "mem:", "mem:x", "disk:/x"} {
		_, err := OpenPool(name)
		require.ErrorIs(t, err, provision.ErrInvalid, name)
	}
}

// TestDamaged checks that a damaged record, and a directory that belongs to no job, do
// not affect other jobs.
func TestDamaged(t *testing.T) {
	ctx := context.Background()
	dir := poolDir(t)
	f := newFixture(t, "file:"+dir)
	c := f.Open(t)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	for _, job := range []string{"bad", "good"} {
		_, err := c.Create(ctx, job, nvmf.MiB)
		require.NoError(t, err)
	}
	file := filepath.Join(dir, "bad", recordName)
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, whole[:len(whole)/2], 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "stray"), 0o700))
	unfinished := filepath.Join(dir, "good", recordName+newSuffix)
	require.NoError(t, os.WriteFile(unfinished, whole, 0o600))
	f.Restart(t)
	assert.NoFileExists(t, unfinished, "an unfinished record, which may contain keys, is removed")

	states := func() map[string]provision.State {
		list, err := c.List(ctx)
		require.NoError(t, err)
		states := map[string]provision.State{}
		for _, n := range list {
			states[n.Job] = n.State
			if n.State == provision.Damaged {
				assert.Contains(t, n.Problem, n.Job)
			}
		}
		return states
	}
	assert.Equal(t, map[string]provision.State{"bad": provision.Damaged, "good": provision.Ready, "stray": provision.Damaged}, states())
	for _, job := range []string{"bad", "stray"} {
		_, err := c.Create(ctx, job, nvmf.MiB)
		require.ErrorContains(t, err, recordName, "neither served nor written over")
		require.ErrorContains(t, c.Expose(ctx, job, nil, nil), recordName)
	}
	require.NoError(t, c.Expose(ctx, "good", []string{provisiontest.HostA}, nil))
	require.NoError(t, c.Delete(ctx, "stray"))
	require.NoError(t, os.WriteFile(file, whole, 0o600))
	_, err = c.Create(ctx, "bad", nvmf.MiB)
	require.NoError(t, err, "after the repair")
	assert.Equal(t, map[string]provision.State{"bad": provision.Ready, "good": provision.Ready}, states())
	require.NoError(t, c.Delete(ctx, "bad"))
}

// scarce is a pool whose methods open and free fail with the errors in its fields.
type scarce struct {
	Pool
	lack error // error of open
	hold error // error of free
}

func (s *scarce) open(r record) (target.Backing, error) {
	if s.lack != nil {
		return nil, s.lack
	}
	return s.Pool.open(r)
}

func (s *scarce) free(job string) (bool, error) {
	if s.hold != nil {
		return false, s.hold
	}
	return s.Pool.free(job)
}

// TestNotServed checks that a failed Create leaves no namespace that uses space.
func TestNotServed(t *testing.T) {
	for _, name := range []string{"mem:1M", "file:" + poolDir(t)} {
		t.Run(name[:3], func(t *testing.T) {
			ctx := context.Background()
			tgt, err := target.New(target.Config{})
			require.NoError(t, err)
			pool, err := OpenPool(name)
			require.NoError(t, err)
			p := &scarce{Pool: pool}
			x, err := New(tgt, p, provision.Base)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, tgt.Close(ctx)); assert.NoError(t, x.Close()) })

			p.lack = unix.EMFILE
			_, err = x.Create(ctx, "melt", nvmf.MiB)
			require.ErrorIs(t, err, unix.EMFILE)
			list, err := x.List(ctx)
			require.NoError(t, err)
			assert.Empty(t, list, "the failed Create is undone")

			p.hold = unix.EIO
			_, err = x.Create(ctx, "melt", nvmf.MiB)
			require.ErrorIs(t, err, unix.EMFILE)
			require.ErrorIs(t, err, unix.EIO, "undoing Create also fails")
			_, err = x.Create(ctx, "melt", 2*nvmf.MiB)
			require.ErrorAs(t, err, new(*provision.SizeError), "the error is that of this Create, not of the first one")
			p.hold = nil
			require.NoError(t, x.Delete(ctx, "melt"))
			list, err = x.List(ctx)
			require.NoError(t, err)
			assert.Empty(t, list)
			p.lack = nil
			n, err := x.Create(ctx, "melt", nvmf.MiB)
			require.NoError(t, err)
			assert.Equal(t, provision.Ready, n.State)
		})
	}
}

// TestFailures fails each step of each call while the target keeps running. The target
// must serve the state on the disk, and the repeated call must succeed.
func TestFailures(t *testing.T) {
	ctx := context.Background()
	dir := poolDir(t)
	f := newFixture(t, "file:"+dir)
	p := f.admin
	// failOnce repeats a call, and fails step n of repetition n, until the call has
	// fewer than n steps. It calls between after each failure.
	failOnce := func(name string, call func() error, between func()) {
		for n := 1; ; n++ {
			at := 0
			f.step = func() error {
				if at++; at == n {
					return unix.EIO
				}
				return nil
			}
			err := call()
			f.step = nil
			if at < n {
				require.NoError(t, err, name)
				require.Greater(t, n, 2, name)
				return
			}
			require.ErrorIs(t, err, unix.EIO, "%s, step %d", name, n)
			between()
		}
	}
	state := func() (provision.Namespace, bool) {
		list, err := p.List(ctx)
		require.NoError(t, err)
		if len(list) == 0 {
			return provision.Namespace{}, false
		}
		return list[0], true
	}
	create := func() error { _, err := p.Create(ctx, "melt", nvmf.MiB); return err }

	failOnce("create", create, func() {
		_, there := state()
		assert.False(t, there, "the failed Create is undone")
	})
	hosts := []string{"nqn.2014-08.org.example:a"}
	failOnce("expose", func() error { return p.Expose(ctx, "melt", hosts, nil) }, func() {
		r, err := p.pool.load("melt")
		require.NoError(t, err)
		n, _ := state()
		assert.Equal(t, r.Hosts, n.Hosts, "same hosts as after a restart of the target")
	})
	failOnce("delete", func() error { return p.Delete(ctx, "melt") }, func() {
		n, there := state()
		require.True(t, there)
		if n.State == provision.Freed {
			require.ErrorIs(t, p.Expose(ctx, "melt", nil, nil), provision.ErrNoNamespace)
			require.NoError(t, p.Delete(ctx, "melt"), "Delete can be repeated")
			require.NoError(t, create())
		}
	})
	_, there := state()
	assert.False(t, there)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, entries)
}
