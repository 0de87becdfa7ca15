package fabric

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/wiretest"
)

// statuses are status codes of failed commands with the errno for the application. A zero errno is a pause, in which the command is sent
// again, unless Do Not Retry is set: then the second errno is returned.
var statuses = []struct {
	status nvme.Status
	errno  syscall.Errno
	final  syscall.Errno
}{
	// Generic.
	{0x001, syscall.EOPNOTSUPP, 0}, {0x002, syscall.EINVAL, 0}, {0x003, syscall.EIO, 0},
	{0x004, syscall.EIO, 0}, {0x005, 0, syscall.EIO}, {0x006, syscall.EIO, 0}, {0x007, 0, syscall.EIO},
	{0x008, 0, syscall.EIO}, {0x009, syscall.EIO, 0}, {0x00b, syscall.ENODEV, 0}, {0x00c, syscall.EIO, 0},
	{0x015, syscall.EPERM, 0}, {0x01c, syscall.EIO, 0}, {0x01d, 0, syscall.EBUSY}, {0x020, syscall.EROFS, 0},
	{0x021, 0, syscall.EIO}, {0x022, 0, syscall.EIO}, {0x07f, syscall.EIO, 0},
	{0x080, syscall.ENOSPC, 0}, {0x081, syscall.ENOSPC, 0}, {0x082, 0, syscall.EIO}, {0x084, 0, syscall.EBUSY},
	{0x0c0, syscall.EIO, 0}, // vendor specific
	// Command specific.
	{0x180, syscall.EINVAL, 0}, {0x182, syscall.ENOENT, 0}, {0x1c0, syscall.EIO, 0}, {0x1ff, syscall.EIO, 0},
	// Media and data integrity.
	{0x280, syscall.EIO, 0}, {0x281, syscall.EIO, 0}, {0x282, syscall.EIO, 0}, {0x283, syscall.EIO, 0},
	{0x284, syscall.EIO, 0}, {0x285, syscall.EIO, 0}, {0x286, syscall.EACCES, 0}, {0x287, syscall.EIO, 0}, {0x2c0, syscall.EIO, 0},
	// Path.
	{0x300, 0, syscall.EIO}, {0x301, syscall.EIO, 0}, {0x302, 0, syscall.EIO}, {0x303, 0, syscall.EIO},
	{0x360, 0, syscall.EIO}, {0x370, 0, syscall.EIO}, {0x371, 0, syscall.EIO}, {0x3c0, syscall.EIO, 0},
	// Reserved types, and vendor specific ones.
	{0x400, syscall.EIO, 0}, {0x600, syscall.EIO, 0}, {0x700, syscall.EIO, 0}, {0x7ff, syscall.EIO, 0},
}

// expected returns the errno of a status; 0 for a pause.
func expected(i int, dnr bool) syscall.Errno {
	if s := statuses[i]; s.errno != 0 || !dnr {
		return s.errno
	}
	return statuses[i].final
}

// TestStatuses fails each kind of command with each status, with and without Do Not Retry, at times spread over the workload, after
// executing the command or without. The operation returns the right errno or pauses, works when repeated, and no data is missing
// afterwards.
func TestStatuses(t *testing.T) {
	for _, s := range shapes[:2] {
		s.transfer = 8 * nvmf.KiB // many commands
		s.silent = patience       // no connection may be lost: a reconnection would have its reads refused, which is final
		for _, op := range []nvmf.Opcode{nvmf.Write, nvmf.Read, nvmf.Flush} {
			if op == nvmf.Flush && !s.cache || testing.Short() && !s.cache {
				continue
			}
			for _, executed := range []bool{false, true} {
				if executed && op == nvmf.Read {
					continue // its data would arrive, too
				}
				t.Run(fmt.Sprintf("%s/%s, executed %t", s.name, op, executed), func(t *testing.T) {
					refused, failed := 0, 0
					shifts := 1
					if *all {
						shifts = 12
					}
					for shift := range shifts {
						for i := 0; i < 2*len(statuses); {
							n, f := refuse(t, s, op, i, shift, executed)
							require.Positive(t, n)
							i, refused, failed = i+n, refused+n, failed+f
						}
					}
					t.Logf("%d commands refused, %d operations failed", refused, failed)
				})
			}
		}
	}
}

// refuse runs the workload and fails commands now and then with one status after the other, from first on, each without and with Do Not
// Retry. It returns how many commands were refused, and how many operations failed.
func refuse(t *testing.T, s shape, op nvmf.Opcode, first, shift int, executed bool) (refused, failed int) {
	period := map[nvmf.Opcode]int{nvmf.Write: 7, nvmf.Read: 61, nvmf.Flush: 2}[op]
	r := newRig(t, s, fmt.Sprintf("%s refused from status %d on, shift %d", op, first, shift))
	defer r.close()
	require.NoError(t, r.mount(), r.what)
	var count atomic.Int32
	seen, marked := shift, map[uint16]bool{}
	strike := func() nvme.Status {
		i := first + int(count.Add(1)) - 1
		status := statuses[i/2].status
		if i%2 == 1 {
			status |= nvme.DNR
		}
		return status
	}
	more := func() bool { return first+int(count.Load()) < 2*len(statuses) }
	r.wire.Script(func(p *wiretest.PDU) wiretest.Action {
		if sqe := p.SQE(); sqe != nil && p.QID > 0 && sqe.Opcode() == uint8(op) && more() {
			if seen++; seen%period == 0 {
				if !executed {
					return wiretest.Answer(strike())
				}
				marked[sqe.CID()] = true
			}
		}
		if p.To == wiretest.ToHost && p.QID > 0 && len(marked) > 0 {
			if cqe := p.CQE(); cqe != nil && marked[cqe.CID()] && more() {
				delete(marked, cqe.CID())
				return wiretest.Rewrite(strike())
			}
		}
		return wiretest.Pass
	})
	w := newWork(r.fs)
	steps := workload()
	for i := range 12 { // further commands to refuse
		switch op {
		case nvmf.Read:
			steps = append(steps, readback("big"))
		case nvmf.Flush:
			steps = append(steps, appendTo("last", pattern(10, uint32(50+i))), fsync("last"))
		}
	}
	for _, st := range steps {
		for tries := 0; ; tries++ {
			before := int(count.Load())
			err := st.do(w)
			if err == nil || errors.Is(err, errSkipped) {
				break
			}
			failed++
			require.Less(t, tries, 20, "%s: %s: %v", r.what, st.name, err)
			requireErrno(t, err, first+before, first+int(count.Load()), r.what+": "+st.name)
		}
	}
	r.wire.Script(nil)
	// These operations are acknowledged after the last refusal.
	w.run(t, r.what, []step{create("end"), write("end", 0, pattern(100, 99)), fsync("end")})
	w.match(t, r.fs, r.what)
	r.crash()
	require.NoError(t, r.direct(func(fs *microfs.FS) { w.match(t, fs, r.what+", mounted again") }), r.what)
	return int(count.Load()), failed
}

// requireErrno checks that err is the errno of one of the statuses from..to.
func requireErrno(t *testing.T, err error, from, to int, what string) {
	var got syscall.Errno
	require.True(t, errors.As(err, &got), "%s: %v", what, err)
	var damage *microfs.DamageError
	if errors.As(err, &damage) {
		require.Equal(t, syscall.EIO, got, what)
		err = damage.Cause
		require.True(t, errors.As(err, &got), "%s: %v", what, err)
	}
	var status *nvmf.StatusError
	require.True(t, errors.As(err, &status), "%s: %v", what, err)
	for i := from; i < to; i++ {
		if e := expected(i/2, i%2 == 1); e != 0 && e == got {
			return
		}
	}
	require.Failf(t, "wrong errno", "%s: %v is errno %d, after statuses %d to %d", what, err, got, from, to)
}
