package owner

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/hostile"
	"nvmecr/internal/shortdir"
)

// parse reads the message at the beginning of b.
func parse(b []byte) (code uint16, what string, err error) {
	r := bytes.NewReader(b)
	return readMessage(func(p []byte) error {
		_, err := io.ReadFull(r, p)
		return err
	})
}

// FuzzMessage checks that an accepted message encodes to the same bytes.
func FuzzMessage(f *testing.F) {
	f.Add(newMessage(verbYield, ""))
	f.Add(newMessage(verbDivide, "\x04\x00\x00\x00"))
	f.Add(newMessage(statusRefused, strings.Repeat("a", maxText)))
	f.Fuzz(func(t *testing.T, in []byte) {
		code, what, err := parse(in)
		if err != nil {
			require.True(t, errors.Is(err, errProtocol) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
			return
		}
		again := newMessage(code, what)
		require.Equal(t, again[:12], in[:12])
		require.Equal(t, again[headerSize:], in[headerSize:len(again)])
	})
}

// FuzzAnswer sends arbitrary bytes to an owner, which has to answer or end the connection, and may yield only if the
// request is to yield.
func FuzzAnswer(f *testing.F) {
	ask := newMessage(verbYield, "")
	f.Add(newMessage(verbDivide, "\x04\x00\x00\x00"), uint8(17))
	f.Add(newMessage(verbDivide, "\x04"), uint8(0))
	f.Add(newMessage(verbDivide, "\x04\x00\x00\x000*2,1*2"), uint8(21))
	f.Add(ask, uint8(0))
	f.Add(ask, uint8(7))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint8(1))
	f.Add(append(ask, ask...), uint8(255))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		here, there := os.NewFile(uintptr(fds[0]), "asker"), os.NewFile(uintptr(fds[1]), "owner")
		defer here.Close()
		asked, divided := false, false
		l := &Lock{onYield: func() bool { asked = true; return false }}
		l.OnDivide(func(uint32, string) error { divided = true; return errors.New("no") })
		done := make(chan struct{})
		hostile.Bounded(t, 1<<20, 20*time.Second, func() {
			go func() { defer close(done); l.answer(there) }()
			b = b[:min(len(b), 4096)]
			n := min(int(cut), len(b))
			for _, part := range [][]byte{b[:n], b[n:]} {
				_, _ = here.Write(part) // the owner may have closed the connection
			}
			require.NoError(t, unix.Shutdown(fds[0], unix.SHUT_WR))
			got, _ := io.ReadAll(here) // a reset, if it did not read everything
			<-done
			code, what, err := parse(b)
			require.Equal(t, err == nil && code == verbYield && what == "", asked)
			require.Equal(t, err == nil && code == verbDivide && len(what) >= 4, divided)
			switch {
			case err != nil && !errors.Is(err, errProtocol):
				require.Empty(t, got)
			case len(got) > 0:
				code, text, err := parse(got)
				require.NoError(t, err)
				require.Len(t, got, headerSize+len(text))
				require.Equal(t, asked, code == statusBusy)
				require.Equal(t, divided, code == statusRefused && text == "no")
			}
		})
	})
}

// FuzzAsk sends a request to a peer that answers arbitrary bytes.
func FuzzAsk(f *testing.F) {
	f.Add(newMessage(statusBusy, ""), uint8(3))
	f.Add(newMessage(statusRefused, "no"), uint8(17))
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
			status, text, err := ask(ctx, name, newMessage(verbYield, ""), func() bool { return false })
			<-done
			if err == nil {
				want, what, err := parse(b)
				require.NoError(t, err)
				require.Equal(t, want, status)
				require.Equal(t, what, text)
			}
			require.False(t, errors.Is(err, context.DeadlineExceeded), "%v", err)
		})
	})
}
