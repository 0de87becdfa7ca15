package jsonrpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/jsonrpc"
	"nvmecr/internal/shortdir"
)

// serve starts a server and returns its socket.
func serve(t *testing.T, h jsonrpc.Handler) string {
	path := filepath.Join(shortdir.New(t), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- jsonrpc.Serve(ctx, l, h) }()
	t.Cleanup(func() { cancel(); assert.NoError(t, <-ended) })
	return path
}

// failing is a listener whose Accept first fails with each of errs.
type failing struct {
	net.Listener
	errs []error
}

func (f *failing) Accept() (net.Conn, error) {
	if len(f.errs) == 0 {
		return f.Listener.Accept()
	}
	err := f.errs[0]
	f.errs = f.errs[1:]
	return nil, err
}

// TestAcceptFails checks that temporary errors of Accept do not end the server.
func TestAcceptFails(t *testing.T) {
	path := filepath.Join(shortdir.New(t), "s")
	inner, err := net.Listen("unix", path)
	require.NoError(t, err)
	l := &failing{inner, []error{
		&net.OpError{Op: "accept", Err: syscall.EMFILE},
		&net.OpError{Op: "accept", Err: syscall.ECONNABORTED},
	}}
	ended := make(chan error, 1)
	go func() { ended <- jsonrpc.Serve(context.Background(), l, echo) }()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	require.NoError(t, client(t, path).Call(ctx, "null", nil, nil))
	require.NoError(t, inner.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed, "nobody can connect any more")

	inner, err = net.Listen("unix", path)
	require.NoError(t, err)
	ctx, cancel = context.WithCancel(context.Background())
	cancel()
	require.NoError(t, jsonrpc.Serve(ctx, &failing{inner, []error{syscall.EMFILE}}, echo))
}

func client(t *testing.T, path string) *jsonrpc.Client {
	c := jsonrpc.NewClient(path)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

type pair struct {
	A uint64 `json:"a"`
	B string `json:"b"`
}

func echo(_ context.Context, method string, params json.RawMessage) (any, error) {
	switch method {
	case "pair":
		var p pair
		err := jsonrpc.Unmarshal(params, &p)
		return p, err
	case "typed":
		return nil, &jsonrpc.Error{Code: -19, Message: "No such device"}
	case "plain":
		return nil, errors.New("it broke")
	case "big":
		return strings.Repeat("x", 2<<20), nil
	case "null":
		return nil, nil
	}
	return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found"}
}

func TestCall(t *testing.T) {
	c := client(t, serve(t, echo))
	ctx := context.Background()
	want := pair{A: 1<<63 + 1, B: "\x00 \u2028 \""}
	var got pair
	require.NoError(t, c.Call(ctx, "pair", want, &got))
	assert.Equal(t, want, got, "a number that no float64 holds")
	var open map[string]any
	require.NoError(t, c.Call(ctx, "pair", want, &open))
	assert.Equal(t, json.Number("9223372036854775809"), open["a"])
	var big string
	require.NoError(t, c.Call(ctx, "big", nil, &big))
	assert.Len(t, big, 2<<20)
	require.NoError(t, c.Call(ctx, "null", nil, nil))

	for _, x := range []struct {
		method string
		params any
		code   int64
		text   string
	}{
		{"typed", nil, -19, "typed: No such device (code -19)"},
		{"plain", nil, jsonrpc.CodeInternal, "it broke"},
		{"none", nil, jsonrpc.CodeMethodNotFound, "not found"},
		{"pair", map[string]int{"c": 1}, jsonrpc.CodeInvalidParams, "unknown field"},
		{"pair", map[string]string{"a": "x"}, jsonrpc.CodeInvalidParams, "parameters"},
	} {
		err := c.Call(ctx, x.method, x.params, nil)
		var e *jsonrpc.Error
		require.ErrorAs(t, err, &e, x.method)
		assert.Equal(t, x.code, e.Code)
		assert.ErrorContains(t, err, x.text)
	}
	require.ErrorContains(t, c.Call(ctx, "big", nil, &got), "result", "of another type")
}

// TestTurns checks that concurrent calls do not mix.
func TestTurns(t *testing.T) {
	var within atomic.Int32
	c := client(t, serve(t, func(ctx context.Context, m string, p json.RawMessage) (any, error) {
		assert.Equal(t, int32(1), within.Add(1))
		defer within.Add(-1)
		return echo(ctx, m, p)
	}))
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 20 {
				var got pair
				assert.NoError(t, c.Call(context.Background(), "pair", pair{A: uint64(i)}, &got))
				assert.Equal(t, uint64(i), got.A)
			}
		})
	}
	group.Wait()
}

// TestContext checks that a canceled call does not affect the next one.
func TestContext(t *testing.T) {
	free := make(chan struct{})
	c := client(t, serve(t, func(ctx context.Context, m string, p json.RawMessage) (any, error) {
		if m == "slow" {
			select {
			case <-free:
			case <-ctx.Done():
			}
			return "late", nil
		}
		return echo(ctx, m, p)
	}))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	err := c.Call(ctx, "slow", nil, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "slow")
	close(free)
	var got pair
	require.NoError(t, c.Call(context.Background(), "pair", pair{A: 7}, &got))
	assert.Equal(t, uint64(7), got.A)
	require.ErrorIs(t, c.Call(ctx, "pair", nil, nil), context.DeadlineExceeded)
}

// TestOddServers answers with invalid bytes.
func TestOddServers(t *testing.T) {
	for name, x := range map[string]struct{ answer, text string }{
		"nothing":        {"", "closed the connection"},
		"half":           {`{"jsonrpc":"2.0",`, "unexpected EOF"},
		"no JSON":        {"hello", "invalid character"},
		"another call's": {`{"jsonrpc":"2.0","id":99,"result":1}`, "99"},
		"neither":        {`{"jsonrpc":"2.0","id":1}`, "without a result"},
		"an array":       {`[1]`, "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(shortdir.New(t), "s")
			l, err := net.Listen("unix", path)
			require.NoError(t, err)
			t.Cleanup(func() { _ = l.Close() })
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = conn.Read(make([]byte, 4096))
					_, _ = io.WriteString(conn, x.answer)
					_ = conn.Close()
				}
			}()
			err = client(t, path).Call(context.Background(), "m", nil, nil)
			require.ErrorContains(t, err, x.text)
			assert.ErrorContains(t, err, path)
		})
	}
	c := client(t, filepath.Join(shortdir.New(t), "none"))
	require.ErrorContains(t, c.Call(context.Background(), "m", nil, nil), "no such file")
}

// TestOddClients checks that the server answers invalid requests with an error.
func TestOddClients(t *testing.T) {
	path := serve(t, echo)
	for sent, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1}`:                   `"code":-32600`,
		`{"jsonrpc":"1.0","id":1,"method":"null"}`:   `"code":-32600`,
		`{"jsonrpc":"2.0","method":"null"}`:          `"code":-32600`,
		`{"jsonrpc":"2.0","id":"x","method":"null"}`: `"id":"x","result":null`,
		`[]`: `"code":-32700`,
		`}`:  `"code":-32700`,
		`{"jsonrpc":"2.0","id":1,"method":["a"]}`:          `"code":-32700`,
		` {"jsonrpc" : "2.0", "id":1, "method" : "null"} `: `"result":null`,
	} {
		conn, err := net.Dial("unix", path)
		require.NoError(t, err)
		_, err = io.WriteString(conn, sent)
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Minute)))
		b := make([]byte, 4096)
		n, err := conn.Read(b)
		require.NoError(t, err, sent)
		assert.Contains(t, string(b[:n]), want, sent)
		require.NoError(t, conn.Close())
	}
}

// TestOnce checks that a client with Once refuses a restarted server.
func TestOnce(t *testing.T) {
	path := filepath.Join(shortdir.New(t), "s")
	ctx := context.Background()
	start := func() (stop func()) {
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		serving, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- jsonrpc.Serve(serving, l, echo) }()
		return func() { cancel(); require.NoError(t, <-ended) }
	}
	stop := start()
	once, other := client(t, path).Once(), client(t, path)
	for _, c := range []*jsonrpc.Client{once, other} {
		for range 2 {
			require.NoError(t, c.Call(ctx, "null", nil, nil))
		}
	}
	stop()
	defer start()()
	for range 2 {
		require.Error(t, once.Call(ctx, "null", nil, nil))
	}
	require.ErrorContains(t, once.Call(ctx, "null", nil, nil), "connection was lost")
	require.NoError(t, other.Call(ctx, "null", nil, nil))
}
