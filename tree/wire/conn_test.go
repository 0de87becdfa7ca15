package wire

import (
	"bytes"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// connect returns both ends of a connection.
func connect(t testing.TB, timeout time.Duration, released func([]Shard)) (*Conn, *Peer, net.Conn) {
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close(); server.Close() })
	return NewConn(client, timeout, released), NewPeer(server), server
}

// echo answers every Grow with its number.
func echo(p *Peer, releases []Shard) {
	var g Grow
	for {
		if _, err := p.Next(); err != nil || p.Body(&g) != nil || p.Answer(nil, releases, &g) != nil {
			return
		}
	}
}

func TestCallsTakeTurns(t *testing.T) {
	c, p, _ := connect(t, time.Minute, nil)
	go echo(p, nil)
	var all sync.WaitGroup
	for i := range uint32(8) {
		all.Go(func() {
			for j := range uint32(50) {
				var g Grow
				assert.NoError(t, c.Call(OpGrow, &Grow{Partitions: i<<16 | j}, &g))
				assert.Equal(t, i<<16|j, g.Partitions)
			}
		})
	}
	all.Wait()
}

func TestReleasesAreToldBeforeTheCallReturns(t *testing.T) {
	var told int
	c, p, _ := connect(t, time.Minute, func(list []Shard) { told += len(list) })
	go echo(p, make([]Shard, 3))
	for i := 1; i <= 3; i++ {
		require.NoError(t, c.Call(OpGrow, &Grow{}, &Grow{}))
		assert.Equal(t, 3*i, told)
	}
}

func TestACallAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	c, p, _ := connect(t, 0, nil)
	go echo(p, nil)
	g := &Grow{Partitions: 1}
	require.NoError(t, c.Call(OpGrow, g, g))
	assert.Zero(t, testing.AllocsPerRun(100, func() { _ = c.Call(OpGrow, g, g) }))
}

// TestGone checks that a connection is not used after an error: the next answer could be for another request.
func TestGone(t *testing.T) {
	answer := func(h header) []byte {
		list := []Shard{}
		b, err := new(codec).encode(nil, &h, &list, &Grow{})
		require.NoError(t, err)
		return b
	}
	good := header{kind: kindAnswer, op: OpGrow, number: 1}
	damaged := answer(good)
	damaged[len(damaged)-1]++
	later := answer(good)
	later[offVersion]++
	other := append(answer(good), 0)
	(&header{kind: kindAnswer, op: OpGrow, number: 1}).seal(other)
	for name, b := range map[string][]byte{
		"end":            nil,
		"cut short":      answer(good)[:headerSize+2],
		"damaged":        damaged,
		"other magic":    append([]byte("HTTP"), answer(good)[4:]...),
		"other version":  later,
		"other number":   answer(header{kind: kindAnswer, op: OpGrow, number: 2}),
		"other call":     answer(header{kind: kindAnswer, op: OpMkdir, number: 1}),
		"a request":      answer(header{kind: kindRequest, op: OpGrow, number: 1}),
		"more than that": other,
	} {
		t.Run(name, func(t *testing.T) {
			s := &conversation{Reader: bytes.NewReader(b)}
			c := NewConn(s, 0, nil)
			err := c.Call(OpGrow, &Grow{}, &Grow{})
			require.ErrorIs(t, err, ErrGone)
			require.ErrorIs(t, err, syscall.EIO)
			s.Reader = bytes.NewReader(answer(header{kind: kindAnswer, op: OpGrow, number: 2}))
			assert.Equal(t, err, c.Call(OpGrow, &Grow{}, &Grow{}))
		})
	}
}

func TestTimeOut(t *testing.T) {
	c, _, server := connect(t, time.Minute, nil)
	c.SetTimeout(time.Millisecond)
	go io.Copy(io.Discard, server) // without an answer
	assert.ErrorIs(t, c.Call(OpSync, nil, nil), ErrGone)
	assert.ErrorIs(t, c.Call(OpSync, nil, nil), ErrGone)
}

func TestCloseEndsCalls(t *testing.T) {
	c, p, _ := connect(t, time.Minute, nil)
	require.NoError(t, c.Close())
	assert.ErrorIs(t, c.Call(OpSync, nil, nil), ErrGone)
	_, err := p.Next()
	assert.Equal(t, io.EOF, err)
}

// A counted stream counts reads that return data.
type counted struct {
	conversation
	reads int
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.conversation.Read(b)
	if n > 0 {
		c.reads++
	}
	return n, err
}

func TestAMessageTakesOneRead(t *testing.T) {
	asked := request(t, OpStat, 1, &Stat{Name: samplePlace})
	s := &counted{conversation: conversation{Reader: bytes.NewReader(asked)}}
	p := NewPeer(s)
	_, err := p.Next()
	require.NoError(t, err)
	assert.Equal(t, 1, s.reads)
}

type closings struct {
	io.ReadWriter
	times int
}

func (c *closings) Close() error {
	c.times++
	return nil
}

// TestCloseOnce checks that a stream is closed once: later its descriptor may belong to another file.
func TestCloseOnce(t *testing.T) {
	s := &closings{ReadWriter: &bytes.Buffer{}} // the stream returns the request, which is no answer
	c := NewConn(s, 0, nil)
	require.ErrorIs(t, c.Call(OpSync, nil, nil), ErrGone)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	assert.Equal(t, 1, s.times)
}

// sharing is a stream whose ends share memory.
type sharing struct {
	net.Conn
	window []byte
}

func (s sharing) Window() []byte { return s.window }

// TestShare checks that data is passed through shared memory, and not over the connection.
func TestShare(t *testing.T) {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	window := make([]byte, MaxData)
	c, p := NewConn(sharing{near, window}, time.Minute, nil), NewPeer(far)
	p.Share(window)
	go func() { // a Read returns the last written data
		for {
			op, err := p.Next()
			if err != nil {
				return
			}
			assert.Less(t, len(p.buf), 1000)
			var w Write
			var r Read
			if op == OpRead {
				assert.NoError(t, p.Body(&r))
				assert.NoError(t, p.Answer(nil, nil, &Data{Bytes: append([]byte("read "), window[:r.Len-5]...)}))
				continue
			}
			assert.NoError(t, p.Body(&w))
			assert.Equal(t, &window[0], &w.Data[0], "it is not copied")
			assert.NoError(t, p.Answer(nil, nil, &Written{N: uint32(len(w.Data))}))
		}
	}()
	for _, n := range []int{1, 4096, MaxData} {
		data := bytes.Repeat([]byte{byte(n) + 7}, n)
		var w Written
		require.NoError(t, c.Call(OpWrite, &Write{Data: data}, &w))
		require.EqualValues(t, n, w.N)
		n = min(n, MaxData-5)
		got := Data{Bytes: make([]byte, 0, MaxData)}
		require.NoError(t, c.Call(OpRead, &Read{Len: uint32(n + 5)}, &got))
		require.Equal(t, append([]byte("read "), data[:n]...), got.Bytes)
		clear(window)
		assert.Equal(t, byte('r'), got.Bytes[0], "the next call changes the window")
	}
	assert.ErrorIs(t, c.Call(OpWrite, &Write{Data: make([]byte, MaxData+1)}, nil), errProtocol)
}

// TestShareTooMuch checks that a message with more data than the window ends the connection.
func TestShareTooMuch(t *testing.T) {
	b := request(t, OpWrite, 1, &Write{Data: make([]byte, 1)})
	b[headerSize+24+2] = 0x11 // the length becomes 0x110001
	(&header{kind: kindRequest, op: OpWrite, number: 1}).seal(b[:len(b)-1])
	p := NewPeer(&conversation{Reader: bytes.NewReader(b[:len(b)-1])})
	p.Share(make([]byte, MaxData))
	_, err := p.Next()
	require.NoError(t, err)
	assert.ErrorIs(t, p.Body(new(Write)), errProtocol)
}
