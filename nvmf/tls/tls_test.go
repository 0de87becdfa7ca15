package tls_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf/tls"
)

// pair returns two connected sockets.
func pair(t *testing.T) (a, b int) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	return fds[0], fds[1]
}

// file returns a net.Conn for a socket's descriptor.
func file(t *testing.T, fd int) net.Conn {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func key(identity string, size int) tls.Key {
	return tls.Key{Identity: identity, Secret: bytes.Repeat([]byte{7}, size)}
}

type end struct {
	fd       int
	identity string
	err      error
}

// shake performs a handshake between a client with one key and a server with another,
// or with the same.
func shake(t *testing.T, client, server tls.Key) (c, s end) {
	a, b := pair(t)
	done := make(chan end)
	go func() {
		fd, identity, err := tls.Server(context.Background(), b, func(name string) []byte {
			if name != server.Identity {
				return nil
			}
			return server.Secret
		})
		done <- end{fd, identity, err}
	}()
	fd, err := tls.Client(t.Context(), a, client)
	return end{fd: fd, err: err}, <-done
}

// TestBytes checks that data arrives in both directions after a handshake, including data sent right before a close.
func TestBytes(t *testing.T) {
	for _, size := range []int{32, 48} {
		k := key("NVMe0R01 host sub", size)
		client, server := shake(t, k, k)
		require.NoError(t, client.err)
		require.NoError(t, server.err)
		assert.Equal(t, k.Identity, server.identity)
		a, b := file(t, client.fd), file(t, server.fd)
		// Both directions carry data concurrently, more than all buffers hold.
		exchange(t, a, b)
		// Bytes sent right before a close arrive.
		last := make([]byte, 1<<20)
		_, _ = rand.Read(last)
		go func() { _, _ = a.Write(last); _ = a.Close() }()
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(last, got))
	}
}

func exchange(t *testing.T, a, b net.Conn) {
	const size = 8 << 20
	errs := make(chan error, 4)
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		sent := make([]byte, size)
		_, _ = rand.Read(sent)
		go func() {
			_, err := way[0].Write(sent)
			errs <- err
		}()
		go func() {
			got := make([]byte, size)
			_, err := io.ReadFull(way[1], got)
			if err == nil && !bytes.Equal(sent, got) {
				err = errors.New("other bytes came")
			}
			errs <- err
		}()
	}
	for range 4 {
		require.NoError(t, <-errs)
	}
}

// TestRefused checks that both sides report ErrRefused if their keys differ.
func TestRefused(t *testing.T) {
	k := key("NVMe0R01 host sub", 32)
	other := k
	other.Secret = bytes.Repeat([]byte{8}, 32)
	for name, c := range map[string]struct{ client, server tls.Key }{
		"another secret":   {other, k},
		"another identity": {key("NVMe0R01 host other", 32), k},
		"another size":     {key(k.Identity, 48), k},
		"no good secret":   {k, key(k.Identity, 16)},
	} {
		client, server := shake(t, c.client, c.server)
		assert.ErrorIs(t, client.err, tls.ErrRefused, name)
		assert.ErrorIs(t, server.err, tls.ErrRefused, name)
		assert.NotContains(t, client.err.Error(), string(c.client.Secret))
	}
	_, err := tls.Client(t.Context(), -1, key("x", 16))
	assert.ErrorContains(t, err, "32 or 48 bytes")
}

// TestNotTLS checks the errors when the other end sends bytes that are not TLS, closes
// the connection, or sends nothing.
func TestNotTLS(t *testing.T) {
	k := key("NVMe0R01 host sub", 32)
	_, err := tls.Client(t.Context(), talksPlain(t), k)
	assert.ErrorIs(t, err, tls.ErrNotTLS)
	_, _, err = tls.Server(t.Context(), talksPlain(t), func(string) []byte { return k.Secret })
	assert.ErrorIs(t, err, tls.ErrNotTLS)

	a, b := pair(t)
	require.NoError(t, unix.Close(b))
	_, err = tls.Client(t.Context(), a, k)
	assert.ErrorIs(t, err, tls.ErrEnded)

	a, _ = pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = tls.Client(ctx, a, k)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
}

// talksPlain returns a socket whose other end sends bytes that are not TLS, as an
// NVMe/TCP peer without TLS does.
func talksPlain(t *testing.T) int {
	a, b := pair(t)
	peer := file(t, b)
	go func() { _, _ = peer.Write(make([]byte, 128)) }()
	return a
}

// TestPlainGone checks that the relay ends when the plain socket is closed, and that
// the other end then reads the end of the stream.
func TestPlainGone(t *testing.T) {
	k := key("NVMe0R01 host sub", 32)
	client, server := shake(t, k, k)
	require.NoError(t, client.err)
	require.NoError(t, server.err)
	require.NoError(t, unix.Close(client.fd))
	got, err := io.ReadAll(file(t, server.fd))
	assert.NoError(t, err)
	assert.Empty(t, got)
}

// TestOpenSSL checks Server against the program openssl as the client. That program
// supports pre-shared keys for SHA-256 only.
func TestOpenSSL(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("the program openssl is not installed")
	}
	k := key("NVMe0R01 host sub", 32)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	cmd := exec.Command("openssl", "s_client", "-connect", l.Addr().String(), "-tls1_3", "-quiet",
		"-psk_identity", k.Identity, "-psk", hex.EncodeToString(k.Secret), "-ciphersuites", "TLS_AES_128_GCM_SHA256")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	_, err = stdin.Write([]byte("hello"))
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	f, err := accepted.(*net.TCPConn).File()
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
	fd, err := unix.Dup(int(f.Fd()))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	plain, identity, err := tls.Server(t.Context(), fd, func(string) []byte { return k.Secret })
	require.NoError(t, err)
	assert.Equal(t, k.Identity, identity)
	b := make([]byte, 5)
	_, err = io.ReadFull(file(t, plain), b)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(b))
}
