package tree

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/posixshim"
	"nvmecr/tree/wire"
)

// process returns the POSIX calls of a process.
func (p *rank) process() *posixshim.Process {
	return posixshim.New(func(bool) (*vfs.Mount, error) {
		return &vfs.Mount{FS: p.FS, Writable: true, Close: func() error { return nil }}, nil
	}, p.logf)
}

func openIn(t testing.TB, p *posixshim.Process, path string, flags int) posixshim.Handle {
	h, err := p.Open(posixshim.PathAt{Path: path}, flags, 0o644)
	require.NoError(t, err)
	return posixshim.Handle(h)
}

// fcntl calls fcntl(2) as process pid with the lock l.
func fcntl(p *posixshim.Process, h posixshim.Handle, pid, cmd int, l *unix.Flock_t) error {
	return p.Lock(h, pid, cmd, unsafe.Slice((*byte)(unsafe.Pointer(l)), unsafe.Sizeof(*l)))
}

// await requests a lock until it is granted, as the preload library does for F_SETLKW.
func await(t testing.TB, ask func() error) {
	begin := time.Now()
	for {
		err := ask()
		if err == nil {
			return
		}
		require.ErrorIs(t, err, syscall.EAGAIN)
		require.Less(t, time.Since(begin), testTimeout)
		time.Sleep(100 * time.Microsecond)
	}
}

// increment adds one to the number in a file.
func increment(t testing.TB, p *posixshim.Process, h posixshim.Handle) {
	b := make([]byte, 20)
	n, err := p.Pread(h, b, 0)
	require.NoError(t, err)
	v, err := strconv.Atoi("0" + string(b[:n]))
	require.NoError(t, err)
	b = strconv.AppendInt(b[:0], int64(v+1), 10)
	_, err = p.Pwrite(h, b, 0, posixshim.NoLimit)
	require.NoError(t, err)
}

// TestCounter increments a number from ranks and a script, each under a lock. No increment is lost.
func TestCounter(t *testing.T) {
	const times = 100
	pid := os.Getpid()
	record := func(t testing.TB, p *posixshim.Process, h posixshim.Handle) {
		await(t, func() error { return fcntl(p, h, pid, unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}) })
	}
	for name, once := range map[string]func(testing.TB, *posixshim.Process, posixshim.Handle){
		"fcntl": func(t testing.TB, p *posixshim.Process, h posixshim.Handle) {
			record(t, p, h)
			increment(t, p, h)
			require.NoError(t, fcntl(p, h, pid, unix.F_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}))
		},
		"flock": func(t testing.TB, p *posixshim.Process, h posixshim.Handle) {
			await(t, func() error { return p.Flock(h, unix.LOCK_EX) })
			increment(t, p, h)
			require.NoError(t, p.Flock(h, unix.LOCK_UN))
		},
		"a part is for reading afterwards": func(t testing.TB, p *posixshim.Process, h posixshim.Handle) {
			record(t, p, h)
			increment(t, p, h)
			require.NoError(t, fcntl(p, h, pid, unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Len: 2}))
			require.NoError(t, fcntl(p, h, pid, unix.F_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Start: 2}))
			require.NoError(t, fcntl(p, h, pid, unix.F_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}))
		},
		"the close of another descriptor": func(t testing.TB, p *posixshim.Process, h posixshim.Handle) {
			record(t, p, h)
			increment(t, p, h)
			require.NoError(t, p.Release(openIn(t, p, "counter", unix.O_RDONLY)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2)
			joined := []*rank{r.join(0), r.join(1), r.join(wire.NoPartition)}
			done := make(chan *posixshim.Process)
			for _, p := range joined {
				go func() {
					p := p.process()
					defer func() { done <- p }()
					h := openIn(t, p, "counter", unix.O_RDWR|unix.O_CREAT)
					for range times {
						once(t, p, h)
					}
				}()
			}
			for range joined {
				assert.NoError(t, (<-done).Finish())
			}
			assert.Equal(t, fmt.Sprint(len(joined)*times), joined[0].read("counter"))
		})
	}
}

// TestLocksOfProcesses checks which process holds a lock, and which one is reported as its holder.
func TestLocksOfProcesses(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0).process(), r.join(1).process()
	ha, hb := openIn(t, a, "f", unix.O_RDWR|unix.O_CREAT), openIn(t, b, "f", unix.O_RDWR)
	lock := func(kind int16, start, n int64) *unix.Flock_t { return &unix.Flock_t{Type: kind, Start: start, Len: n} }

	// Two processes of one client have read locks: no other process can write until both have released them.
	require.NoError(t, fcntl(a, ha, 10, unix.F_SETLK, lock(unix.F_RDLCK, 0, 10)))
	require.NoError(t, fcntl(a, ha, 11, unix.F_SETLK, lock(unix.F_RDLCK, 5, 10)))
	require.NoError(t, fcntl(a, ha, 10, unix.F_SETLK, lock(unix.F_UNLCK, 0, 0)))
	assert.Equal(t, syscall.EAGAIN, fcntl(b, hb, 12, unix.F_SETLK, lock(unix.F_WRLCK, 9, 1)))
	found := lock(unix.F_WRLCK, 0, 0)
	require.NoError(t, fcntl(b, hb, 12, unix.F_GETLK, found))
	assert.Equal(t, unix.Flock_t{Type: unix.F_RDLCK, Start: 5, Len: 10, Pid: 1}, *found, "the pid is that of the client")
	require.NoError(t, fcntl(b, hb, 12, unix.F_SETLK, lock(unix.F_WRLCK, 0, 5)))
	require.NoError(t, fcntl(a, ha, 11, unix.F_SETLK, lock(unix.F_UNLCK, 0, 0)))
	require.NoError(t, fcntl(b, hb, 12, unix.F_SETLK, lock(unix.F_WRLCK, 9, 1)))
	assert.Equal(t, syscall.EAGAIN, fcntl(a, ha, 10, unix.F_OFD_SETLK, lock(unix.F_RDLCK, 0, 0)))
	assert.NoError(t, a.Flock(ha, unix.LOCK_EX), "it knows nothing of those of fcntl")
	assert.Equal(t, syscall.EAGAIN, b.Flock(hb, unix.LOCK_SH))
	require.NoError(t, a.Flock(ha, unix.LOCK_SH))
	assert.NoError(t, b.Flock(hb, unix.LOCK_SH))

	// The last close releases the remaining locks.
	require.NoError(t, b.Release(hb))
	require.NoError(t, fcntl(a, ha, 10, unix.F_GETLK, found))
	assert.EqualValues(t, unix.F_UNLCK, found.Type)
	require.NoError(t, a.Flock(ha, unix.LOCK_EX))

	// Directories can be locked, too, as scripts do.
	require.NoError(t, a.Mkdir(posixshim.PathAt{Path: "d"}, 0o755))
	da, db := openIn(t, a, "d", unix.O_RDONLY), openIn(t, b, "d", unix.O_RDONLY)
	require.NoError(t, a.Flock(da, unix.LOCK_EX))
	assert.Equal(t, syscall.EAGAIN, b.Flock(db, unix.LOCK_EX))
	require.NoError(t, a.Finish())
	assert.NoError(t, b.Flock(db, unix.LOCK_EX))
	require.NoError(t, b.Finish())
}

// TestLocksOfTheKilled checks that the locks of a killed process are released, and that the next holder sees its
// synced data.
func TestLocksOfTheKilled(t *testing.T) {
	r := newRig(t, 2)
	killed := r.join(0)
	a, b := killed.process(), r.join(1).process()
	ha, hb := openIn(t, a, "counter", unix.O_RDWR|unix.O_CREAT), openIn(t, b, "counter", unix.O_RDWR)
	require.NoError(t, a.Flock(ha, unix.LOCK_EX))
	increment(t, a, ha)
	require.NoError(t, a.Fsync(ha))
	assert.Equal(t, syscall.EAGAIN, b.Flock(hb, unix.LOCK_EX))
	killed.kill()
	require.NoError(t, b.Flock(hb, unix.LOCK_EX))
	increment(t, b, hb)
	require.NoError(t, b.Finish())
	assert.Equal(t, "2", r.join(0).read("counter"))
}

// TestLocksMove checks that a process keeps its locks when it begins to write, and gets its partition for that.
func TestLocksMove(t *testing.T) {
	r := newRig(t, 1)
	r.join(wire.NoPartition).write("f", "text")
	var said []string
	a := posixshim.New(func(write bool) (*vfs.Mount, error) {
		place := wire.NoPartition
		if write {
			place = 0
		}
		p := r.join(place)
		return &vfs.Mount{FS: p.FS, Writable: write, Current: func() bool { return true }, Close: func() error {
			p.leave()
			return nil
		}}, nil
	}, func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) })
	b := r.join(wire.NoPartition).process()
	reads, hb := openIn(t, a, "f", unix.O_RDONLY), openIn(t, b, "f", unix.O_RDWR)
	require.NoError(t, a.Flock(reads, unix.LOCK_SH))
	require.NoError(t, fcntl(a, reads, 1, unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Len: 2}))
	openIn(t, a, "g", unix.O_WRONLY|unix.O_CREAT)
	assert.Equal(t, syscall.EAGAIN, b.Flock(hb, unix.LOCK_EX))
	assert.Equal(t, syscall.EAGAIN, fcntl(b, hb, 2, unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
	assert.NoError(t, fcntl(b, hb, 2, unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 2}))
	require.NoError(t, a.Finish())
	assert.NoError(t, b.Flock(hb, unix.LOCK_EX))
	require.NoError(t, b.Finish())
	assert.Empty(t, said)
}
