package tree

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/posixshim"
	"nvmecr/tree/wire"
)

// A cutter ends a connection at a message: before the message arrives, or when it is answered.
type cutter struct {
	*countedConn
	at     int
	behind bool
	kill   func()
	sent   map[wire.Op]bool
}

func (c *cutter) Write(b []byte) (int, error) {
	op := wire.Op(binary.LittleEndian.Uint16(b[6:]))
	c.sent[op] = true
	if c.at--; c.at != 0 {
		return c.countedConn.Write(b)
	}
	if c.behind {
		_, _ = c.countedConn.Write(b)
		if op != wire.OpLeave {
			_, _ = c.Conn.Read(make([]byte, 64<<10)) // the answer
		}
	}
	c.kill()
	return 0, syscall.EPIPE
}

// cutAt makes a rank's connection end at a message.
func (c *crash) cutAt(p *rank, at int, behind bool, sent map[wire.Op]bool, kill func()) {
	k := &cutter{countedConn: p.counted, at: at, behind: behind, kill: kill, sent: sent}
	p.client.conn = wire.NewConn(k, testTimeout, p.client.released)
}

// startAgain starts a successor of a killed index.
func (c *crash) startAgain() {
	c.start()
	for place := range c.disks {
		c.index.Adopt(uint32(place))
	}
}

// TestCrashAtMessages kills a rank, or the index, at every message, before the message or its answer has arrived.
// After the kill of the index the workload continues, unless a change of names was in progress.
func TestCrashAtMessages(t *testing.T) {
	list := states(t)
	sent := map[wire.Op]bool{}
	for _, behind := range []bool{false, true} {
		for _, index := range []bool{false, true} {
			if behind && !index {
				continue // the rank is killed before the next message
			}
			for which := range 3 {
				crashes, doubts := 0, 0
				for at := 1; ; at++ {
					c := newCrash(t, false, uint64(at))
					killed := false
					for i, p := range c.ranks {
						p.client.Redial = func(time.Time) (io.ReadWriteCloser, error) { return c.connect(p), nil }
						if i != which {
							continue
						}
						c.cutAt(p, at, behind, sent, func() {
							killed = true
							if index {
								c.killIndex()
								c.startAgain()
								return
							}
							p.client.Redial = nil
							if p.dev != nil {
								_ = p.dev.Crash(c.lost)
							}
							_ = p.stream.Close()
						})
					}
					err := c.run()
					what := fmt.Sprintf("message %d of process %d, behind it %v, index %v: %v", at, which, behind, index, err)
					if err != nil && index {
						require.ErrorIs(t, err, errUncertain, what)
						doubts++
					}
					if killed {
						crashes++
						if !index {
							c.ranks[which].kill()
						}
						c.check(list, what)
					}
					c.end()
					if !killed {
						require.NoError(t, err)
						break
					}
				}
				t.Logf("index %v, behind %v, process %d: %d crashes, %d doubts", index, behind, which, crashes, doubts)
				require.Greater(t, crashes, 10)
				if index {
					require.NotZero(t, doubts)
				}
			}
		}
	}
	for op := wire.OpHello; op.String() != fmt.Sprintf("operation %d", op); op++ {
		assert.True(t, sent[op] || slices.Contains([]wire.Op{wire.OpHello, wire.OpShards, wire.OpReopen, wire.OpGrow, wire.OpReadCopy}, op),
			"nobody was killed at %v: only Hello, Reopen and Shards are for TestCrashWhileComingBack, Grow for internal/store, and ReadCopy changes nothing", op)
	}
}

// connect connects a rank to the present index.
func (c *crash) connect(p *rank) io.ReadWriteCloser {
	conn := c.dial()
	p.stream, p.served = conn, conn.served
	return conn
}

// TestCrashWhileComingBack kills an index, and its successors at every message by which a process reconnects.
func TestCrashWhileComingBack(t *testing.T) {
	for _, behind := range []bool{false, true} {
		sent := map[wire.Op]bool{}
		for at := 1; ; at++ {
			r := newRig(t, 2)
			c := &crash{rig: r, t: t}
			a, b := c.join(0), c.join(1)
			c.ranks = [3]*rank{a, b}
			f, log := a.open("/f", unix.O_CREAT|unix.O_RDWR), a.open("/log", unix.O_CREAT|unix.O_WRONLY)
			put(t, f, 0, "hello")
			_, _, err := log.AppendBelow([][]byte{[]byte("line")}, posixshim.NoLimit)
			require.NoError(t, err)
			require.NoError(t, f.(vfs.Locker).Lock(true, 0, 1, []vfs.Held{{Start: 0, End: 1, Write: true}}))
			put(t, f, 5, " world")
			killed := false
			a.client.Redial = func(time.Time) (io.ReadWriteCloser, error) {
				conn := c.dial()
				a.stream, a.served = conn, conn.served
				if killed {
					return conn, nil
				}
				return &cutter{countedConn: conn, at: at, behind: behind, sent: sent, kill: func() {
					killed = true
					c.killIndex()
					c.startAgain()
				}}, nil
			}
			b.client.Redial = func(time.Time) (io.ReadWriteCloser, error) { return c.connect(b), nil }
			c.killIndex()
			c.startAgain()
			require.NoError(t, f.Close())
			require.NoError(t, log.Close())
			what := fmt.Sprintf("message %d, behind it %v", at, behind)
			assert.Equal(t, "hello world", b.read("/f"), what)
			assert.Equal(t, "line", b.read("/log"), what)
			for _, path := range []string{"/f", "/log"} {
				attr, err := b.Stat(root, path, true)
				require.NoError(t, err)
				assert.True(t, attr.Closed, "%s: %s", path, what)
			}
			c.end()
			if !killed {
				break
			}
		}
		for _, op := range []wire.Op{wire.OpHello, wire.OpReopen, wire.OpLock, wire.OpClose} {
			assert.True(t, sent[op], "%v of %v", op, slices.Collect(maps.Keys(sent)))
		}
	}
}
