package tcp_test

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/tcp/fakepeer"
)

// reluctant fails commands of one opcode with status, the given number of times for
// each LBA. All other commands succeed.
func reluctant(opcode uint8, times int, status nvme.Status, seen func(lba uint64, data []byte)) fakepeer.Script {
	refused := map[uint64]int{}
	return func(c *fakepeer.Conn, sqe *nvme.SQE, data []byte) error {
		if sqe.Opcode() == nvme.IOWrite && len(data) == 0 {
			n := sqe.NLB() * 512
			if err := c.R2T(sqe.CID(), 1, 0, n); err != nil {
				return err
			}
			var err error
			if data, err = c.ReadData(sqe.CID(), 1, 0, n); err != nil {
				return err
			}
		}
		if seen != nil {
			seen(sqe.SLBA(), data)
		}
		if sqe.Opcode() == opcode && refused[sqe.SLBA()] < times {
			refused[sqe.SLBA()]++
			return c.Respond(sqe.CID(), status, 0)
		}
		return zeros(c, sqe, data)
	}
}

// TestAgain checks that the queue retries commands that end with a transient
// status, with their data, and returns every other status to the caller.
func TestAgain(t *testing.T) {
	tests := []struct {
		status    nvme.Status
		transient bool
	}{
		{nvme.StatusNamespaceNotReady, true},
		{nvme.StatusTransientTransport, true},
		{nvme.StatusSQDeletion, true},
		{nvme.StatusAbortRequested, true},
		{0x021, true}, // Command Interrupted
		{0x303, true}, // Asymmetric Access Transition
		{0x371, true}, // Command Aborted By Host
		{nvme.StatusNamespaceNotReady | nvme.DNR, false},
		{0x301, false}, // Asymmetric Access Persistent Loss
		{nvme.StatusInternalError, false},
		{nvme.StatusWriteFault, false},
		{nvme.StatusReadError, false},
		{nvme.StatusCapacityExceeded, false},
		{nvme.StatusReservation, false},
		{0x7c0, false}, // vendor specific
	}
	for _, tc := range tests {
		for _, opcode := range []uint8{nvme.IOWrite, nvme.IORead, nvme.IOFlush} {
			t.Run(fmt.Sprintf("status %#x, opcode %d", tc.status, opcode), func(t *testing.T) {
				small, large := pattern(1024), pattern(64<<10)
				writes := make(chan string, 64)
				p := fakepeer.New(reluctant(opcode, 2, tc.status, func(lba uint64, data []byte) {
					switch {
					case lba == 10 && len(data) > 0 && !bytes.Equal(data, small),
						lba == 20 && len(data) > 0 && !bytes.Equal(data, large):
						writes <- "other data"
					}
				}))
				_, q := scripted(t, p, tcp.Options{})
				cmds := []*nvmf.Command{
					{Opcode: nvmf.Opcode(opcode), LBA: 10}, {Opcode: nvmf.Opcode(opcode), LBA: 20},
				}
				if opcode == nvme.IOWrite {
					cmds = []*nvmf.Command{write(10, pieces(small)...), write(20, pieces(large)...)}
				} else if opcode == nvme.IORead {
					cmds = []*nvmf.Command{read(10, small), read(20, pieces(large)...)}
				}
				// The fake peer asks for the data of one write at a time.
				err := errors.Join(do(q, cmds[0]), do(q, cmds[1]))
				require.Empty(t, writes)
				repeats := q.(*tcp.Queue).Stats().Retries
				if tc.transient {
					require.NoError(t, err)
					require.Positive(t, repeats)
					return
				}
				var status *nvmf.StatusError
				require.ErrorAs(t, err, &status)
				assert.Equal(t, [2]uint8{tc.status.SCT(), tc.status.SC()}, [2]uint8{status.SCT, status.SC})
				require.Zero(t, repeats)
			})
		}
	}
}

// TestAgainHoldsNobodyUp checks that other commands complete while a command waits
// for its retry.
func TestAgainHoldsNobodyUp(t *testing.T) {
	p := fakepeer.New(reluctant(nvme.IOWrite, 1<<30, nvme.StatusNamespaceNotReady, nil))
	_, q := scripted(t, p, tcp.Options{})
	w := write(0, make([]byte, 512))
	q.Submit([]*nvmf.Command{w})
	for range 10 {
		require.NoError(t, do(q, read(1, make([]byte, 512))))
	}
	require.False(t, w.Done(), "the reads waited")
}

// TestAgainEnds checks that retries end with the command time-out, and that the
// command then fails with its status.
func TestAgainEnds(t *testing.T) {
	const limit = 2 * time.Second
	p := fakepeer.New(reluctant(nvme.IOWrite, 1<<30, nvme.StatusNamespaceNotReady, nil))
	_, q := scripted(t, p, tcp.Options{CommandTimeout: limit})
	w := write(0, make([]byte, 512))
	start := time.Now()
	q.Submit([]*nvmf.Command{w})
	err := q.Wait([]*nvmf.Command{w})
	var status *nvmf.StatusError
	require.True(t, errors.As(err, &status), "%v", err)
	require.ErrorIs(t, err, syscall.EIO)
	require.Equal(t, nvme.StatusNamespaceNotReady.SC(), status.SC)
	require.Greater(t, time.Since(start), limit/4)
	require.NoError(t, do(q, read(1, make([]byte, 512))))
	require.Zero(t, q.(*tcp.Queue).Stats().Reconnects)
}

// TestAgainLost checks that a command that waits for its retry ends with
// ErrConnectionLost when the connection is lost.
func TestAgainLost(t *testing.T) {
	p := fakepeer.New(reluctant(nvme.IOWrite, 1<<30, nvme.StatusNamespaceNotReady, nil))
	_, q := scripted(t, p, tcp.Options{CommandTimeout: time.Minute})
	time.AfterFunc(20*time.Millisecond, p.Cut)
	require.ErrorIs(t, do(q, write(0, make([]byte, 512))), nvmf.ErrConnectionLost)
	require.NoError(t, q.Reset(t.Context()))
	require.NoError(t, do(q, read(1, make([]byte, 512))))
}
