package wiretest_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/wiretest"
)

// rig is a proxy whose host and target are both the test.
type rig struct {
	*wiretest.Proxy
	t        *testing.T
	accepted chan net.Conn
}

func newRig(t *testing.T) *rig {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	r := &rig{t: t, accepted: make(chan net.Conn, 8)}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.accepted <- c
		}
	}()
	r.Proxy, err = wiretest.New(l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { r.Close(); l.Close() })
	return r
}

// hang is a time limit that only a failure exceeds, even on a busy machine.
const hang = 5 * time.Minute

// connect opens a connection through the proxy and returns its two ends.
func (r *rig) connect() (host, target net.Conn) {
	host, err := net.Dial("tcp4", r.Addr())
	require.NoError(r.t, err)
	target = <-r.accepted
	for _, c := range []net.Conn{host, target} {
		r.t.Cleanup(func() { c.Close() })
		require.NoError(r.t, c.SetDeadline(time.Now().Add(hang)))
	}
	return host, target
}

// capsule returns a write command with in-capsule data.
func capsule(cid uint16, data string) []byte {
	rules := pdu.Rules{FromHost: true}
	b := make([]byte, pdu.MaxHeaderSize)
	n := rules.Put(b, pdu.TypeCapsuleCmd, 0, len(data))
	pdu.SQEOf(b).Reset(nvme.IOWrite, cid, 1)
	return append(b[:n], data...)
}

func response(cid uint16, s nvme.Status) []byte {
	b := make([]byte, pdu.CapsuleRespSize)
	(&pdu.Rules{}).Put(b, pdu.TypeCapsuleResp, 0, 0)
	pdu.CQEOf(b).Set(cid, 0, s, 0)
	return b
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// TestActions sends two PDUs to the target with an action for the first one. It checks
// which bytes arrive, and how the connection ends.
func TestActions(t *testing.T) {
	a, b := capsule(1, "first"), capsule(2, "second")
	damaged := bytes.Clone(a)
	damaged[9] ^= 0x40
	tests := []struct {
		name   string
		action wiretest.Action
		want   []byte
		ended  error // the error with which the connection ends; nil if it stays open
	}{
		{"pass", wiretest.Pass, join(a, b), nil},
		{"cut before", wiretest.Cut(0), nil, syscall.ECONNRESET},
		{"cut after", wiretest.Cut(wiretest.End), a, syscall.ECONNRESET},
		{"cut in the middle", wiretest.Cut(wiretest.Middle), a[:len(a)/2], syscall.ECONNRESET},
		{"cut at a byte", wiretest.Cut(7), a[:7], syscall.ECONNRESET},
		{"cut all", wiretest.CutAll, nil, syscall.ECONNRESET},
		{"finish", wiretest.Finish(9), a[:9], io.EOF},
		{"delay", wiretest.Delay(time.Millisecond), join(a, b), nil},
		{"corrupt", wiretest.Corrupt(9, 0x40), join(damaged, b), nil},
		{"swap", wiretest.Swap(hang), join(b, a), nil},
		{"drop", wiretest.Drop, b, nil},
		{"answer", wiretest.Answer(nvme.StatusNamespaceNotReady), b, nil},
		{"freeze", wiretest.Freeze(time.Millisecond), join(a, b), nil},
		{"rewrite is for responses", wiretest.Rewrite(nvme.StatusWriteFault), join(a, b), nil},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			host, target := r.connect()
			r.Script(wiretest.At(wiretest.ToTarget, 1, tc.action))
			_, err := host.Write(join(a, b))
			require.NoError(t, err)
			got := make([]byte, len(tc.want))
			_, err = io.ReadFull(target, got)
			require.NoError(t, err)
			require.Equal(t, string(tc.want), string(got))
			if tc.ended != nil {
				_, err = target.Read(make([]byte, 1))
				require.ErrorIs(t, err, tc.ended)
				_, err = host.Read(make([]byte, 1))
				require.ErrorIs(t, err, tc.ended)
			}
		})
	}
}

// TestResponses sends responses with an action for the first one, and checks what the
// host receives.
func TestResponses(t *testing.T) {
	const fault = nvme.StatusWriteFault | nvme.DNR
	a, b := response(1, 0), response(2, 0)
	tests := []struct {
		name   string
		action wiretest.Action
		want   []byte
	}{
		{"reordered", wiretest.Swap(hang), join(b, a)},
		{"another status", wiretest.Rewrite(fault), join(response(1, fault), b)},
		{"keep is for what goes to the target", wiretest.Keep(), join(a, b)},
		{"lost", wiretest.Drop, b},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			host, target := r.connect()
			r.Script(wiretest.At(wiretest.ToHost, 1, tc.action))
			_, err := target.Write(join(a, b))
			require.NoError(t, err)
			got := make([]byte, len(tc.want))
			_, err = io.ReadFull(host, got)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
			require.Equal(t, 2, r.Seen(wiretest.ToHost))
		})
	}
	t.Run("swapped without a next PDU", func(t *testing.T) {
		r := newRig(t)
		host, target := r.connect()
		r.Script(wiretest.At(wiretest.ToHost, 1, wiretest.Swap(time.Millisecond)))
		_, err := target.Write(a)
		require.NoError(t, err)
		_, err = io.ReadFull(host, make([]byte, len(a)))
		require.NoError(t, err)
	})
	t.Run("answered by the proxy with a header digest", func(t *testing.T) {
		r := newRig(t)
		host, target := r.connect()
		ic := make([]byte, pdu.ICSize)
		pdu.PutICResp(ic, 0, pdu.EnableHeaderDigest, 4096)
		_, err := target.Write(ic)
		require.NoError(t, err)
		_, err = io.ReadFull(host, ic)
		require.NoError(t, err)
		r.Script(func(p *wiretest.PDU) wiretest.Action { return wiretest.Answer(fault) })
		_, err = host.Write(capsule(7, "x"))
		require.NoError(t, err)
		got := make([]byte, pdu.CapsuleRespSize+pdu.DigestSize)
		_, err = io.ReadFull(host, got)
		require.NoError(t, err)
		rules := pdu.Rules{HeaderDigest: true}
		h, err := rules.Common(got)
		require.NoError(t, err)
		require.NoError(t, rules.Header(h, got))
		require.Equal(t, fault, pdu.CQEOf(got).Status())
		require.EqualValues(t, 7, pdu.CQEOf(got).CID())
		require.Equal(t, 1, r.Struck())
	})
}

// TestLate checks Keep: the host is disconnected and can reconnect before the target
// gets the kept data. Release then delivers all of it, including the beginning of an
// incomplete PDU, and does so once.
func TestLate(t *testing.T) {
	r := newRig(t)
	host, target := r.connect()
	before, a, b := capsule(1, "before"), capsule(2, "kept"), capsule(3, "behind")
	r.Script(wiretest.At(wiretest.ToTarget, 2, wiretest.Keep()))
	_, err := host.Write(join(before, a, b, a[:20]))
	require.NoError(t, err)
	_, err = host.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	got := make([]byte, len(before))
	_, err = io.ReadFull(target, got)
	require.NoError(t, err)
	again, target2 := r.connect()
	_, err = again.Write(before)
	require.NoError(t, err)
	_, err = io.ReadFull(target2, got)
	require.NoError(t, err)
	require.Equal(t, before, got)

	landed := make(chan int)
	go func() { landed <- r.Release() }()
	late, err := io.ReadAll(target)
	require.NoError(t, err)
	require.Equal(t, join(a, b, a[:20]), late)
	_, err = target.Write(join(response(2, 0), response(3, 0)))
	require.NoError(t, err)
	require.NoError(t, target.Close())
	require.Equal(t, 2, <-landed)
	require.Zero(t, r.Release(), "once")
}

// TestWhole checks Down, Up, Freeze, Thaw and SetTarget, which affect all connections.
func TestWhole(t *testing.T) {
	r := newRig(t)
	host, target := r.connect()
	r.Down()
	for _, c := range []net.Conn{host, target} {
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	_, err := net.Dial("tcp4", r.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, r.Up())
	require.NoError(t, r.Up(), "Up without Down")

	host, target = r.connect()
	r.Freeze()
	a := capsule(1, "x")
	_, err = host.Write(a)
	require.NoError(t, err)
	require.NoError(t, target.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = target.Read(make([]byte, 1))
	var timeout net.Error
	require.True(t, errors.As(err, &timeout) && timeout.Timeout(), "%v", err)
	require.NoError(t, target.SetReadDeadline(time.Now().Add(hang)))
	r.Thaw()
	_, err = io.ReadFull(target, make([]byte, len(a)))
	require.NoError(t, err)

	other := newRig(t)
	r.SetTarget(other.Addr())
	host, err = net.Dial("tcp4", r.Addr())
	require.NoError(t, err)
	_, err = host.Write(a)
	require.NoError(t, err)
	target = <-other.accepted
	_, err = io.ReadFull(target, make([]byte, len(a)))
	require.NoError(t, err)
	require.NoError(t, errors.Join(host.Close(), target.Close()))
	assert.GreaterOrEqual(t, r.Connections(), 2)
}

// TestOrdinary checks that a proxy without a script forwards bytes that are not PDUs,
// and the orderly close of either side.
func TestOrdinary(t *testing.T) {
	r := newRig(t)
	host, target := r.connect()
	_, err := host.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	require.NoError(t, host.(*net.TCPConn).CloseWrite())
	got, err := io.ReadAll(target)
	require.NoError(t, err)
	require.Equal(t, "GET / HTTP/1.1\r\n\r\n", string(got))
	_, err = target.Write(response(1, 0))
	require.NoError(t, err)
	require.NoError(t, target.Close())
	got, err = io.ReadAll(host)
	require.NoError(t, err)
	require.Equal(t, response(1, 0), got)
}

// TestCounts checks that PDUs are numbered for each direction, and that a PDU has the
// queue ID of its connection.
func TestCounts(t *testing.T) {
	r := newRig(t)
	var qids, numbers []int
	r.Script(func(p *wiretest.PDU) wiretest.Action {
		qids, numbers = append(qids, p.QID), append(numbers, p.N)
		return wiretest.Pass
	})
	host, target := r.connect()
	connect := capsule(1, "x")
	pdu.SQEOf(connect).ResetFabrics(nvme.FabricsConnect, 1)
	pdu.SQEOf(connect).SetConnect(nvme.Connect{QID: 5})
	ic := make([]byte, pdu.ICSize)
	pdu.PutICReq(ic, 0, 0, 1)
	all := join(ic, connect, capsule(2, "y"))
	_, err := host.Write(all)
	require.NoError(t, err)
	_, err = io.ReadFull(target, make([]byte, len(all)))
	require.NoError(t, err)
	require.Equal(t, 3, r.Seen(wiretest.ToTarget))
	require.Zero(t, r.Seen(wiretest.ToHost))
	require.Equal(t, []int{-1, 5, 5}, qids)
	require.Equal(t, []int{1, 2, 3}, numbers)
	id := r.Through(nvmf.TransportID{Address: "192.0.2.1", Service: "1"})
	require.Equal(t, r.Addr(), id.HostPort())
}
