package processfs

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestSignalsDoNotProlongATimeout reads from a peer that says nothing, in a thread that gets signals all the time.
func TestSignalsDoNotProlongATimeout(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fds[1])
	s := &stream{fd: fds[0]}
	defer unix.Close(s.fd)
	const timeout = 200 * time.Millisecond
	require.NoError(t, s.SetTimeout(timeout))

	thread, result := make(chan int, 1), make(chan error, 1)
	begin := time.Now()
	go func() {
		runtime.LockOSThread()
		thread <- unix.Gettid()
		_, err := s.Read(make([]byte, 1))
		result <- err
	}()
	reader := <-thread
	for end := begin.Add(2 * time.Minute); time.Now().Before(end); time.Sleep(timeout / 20) {
		select {
		case err := <-result:
			assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
			return
		default:
			require.NoError(t, unix.Tgkill(unix.Getpid(), reader, unix.SIGURG))
		}
	}
	t.Fatal("the read has not ended")
}
