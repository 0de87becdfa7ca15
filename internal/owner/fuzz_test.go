package owner

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/hostile"
	"nvmecr/internal/shortdir"
)

// FuzzHeader: a header that is accepted says what it was made of.
func FuzzHeader(f *testing.F) {
	b := make([]byte, headerSize)
	putHeader(b, verbYield)
	f.Add(b)
	f.Fuzz(func(t *testing.T, in []byte) {
		b := make([]byte, headerSize)
		copy(b, in)
		code, err := parseHeader(b)
		if err != nil {
			require.ErrorIs(t, err, errProtocol)
			return
		}
		again := make([]byte, headerSize)
		putHeader(again, code)
		require.Equal(t, again[:12], b[:12])
	})
}

// FuzzAnswer asks an owner with arbitrary bytes. It answers, or ends the
// connection, and yields only when that is what was asked.
func FuzzAnswer(f *testing.F) {
	ask := make([]byte, headerSize)
	putHeader(ask, verbYield)
	f.Add(ask, uint8(0))
	f.Add(ask, uint8(7))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint8(1))
	f.Add(append(ask, ask...), uint8(255))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		here, there := os.NewFile(uintptr(fds[0]), "asker"), os.NewFile(uintptr(fds[1]), "owner")
		defer here.Close()
		asked := false
		l := &Lock{onYield: func() bool { asked = true; return false }}
		done := make(chan struct{})
		hostile.Bounded(t, 1<<20, 20*time.Second, func() {
			go func() { defer close(done); l.answer(there) }()
			b = b[:min(len(b), 4096)]
			n := min(int(cut), len(b))
			for _, part := range [][]byte{b[:n], b[n:]} {
				_, _ = here.Write(part) // it may have had enough
			}
			require.NoError(t, unix.Shutdown(fds[0], unix.SHUT_WR))
			got, _ := io.ReadAll(here) // a reset, if it did not read everything
			<-done
			var code uint16
			err := errProtocol
			if len(b) >= headerSize {
				code, err = parseHeader(b[:headerSize])
			}
			require.Equal(t, err == nil && code == verbYield, asked)
			switch {
			case len(b) < headerSize:
				require.Empty(t, got)
			case len(got) > 0:
				require.Len(t, got, headerSize)
				code, err := parseHeader(got)
				require.NoError(t, err)
				require.Equal(t, asked, code == statusBusy)
			}
		})
	})
}

// FuzzAsk asks somebody who is no owner.
func FuzzAsk(f *testing.F) {
	answer := make([]byte, headerSize)
	putHeader(answer, statusBusy)
	f.Add(answer, uint8(3))
	f.Add([]byte{}, uint8(0))
	f.Add([]byte("NVCO\x01\x00\x00\x00\x00\x00\x00\x01...."), uint8(16))
	dir := shortdir.New(f)
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		name := dir + "/sock"
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(fd)
		_ = os.Remove(name)
		require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: name}))
		require.NoError(t, unix.Listen(fd, 1))
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if err != nil {
				return
			}
			defer unix.Close(c)
			n := min(int(cut), len(b))
			for _, part := range [][]byte{b[:n], b[n:]} {
				_, _ = unix.SendmsgN(c, part, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			}
		}()
		hostile.Bounded(t, 1<<20+2*uint64(len(b)), 20*time.Second, func() {
			ctx, cancel := context.WithTimeout(t.Context(), hang)
			defer cancel()
			status, err := ask(ctx, name, func() bool { return false })
			<-done
			if err == nil {
				want, err := parseHeader(b[:headerSize])
				require.NoError(t, err)
				require.Equal(t, want, status)
			}
			require.False(t, errors.Is(err, context.DeadlineExceeded), "%v", err)
		})
	})
}
