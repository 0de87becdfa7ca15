package fabric

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/wiretest"
)

// refuses counts the failing operations of a list. They may fail with ENOSPC only.
func (w *work) refuses(t *testing.T, what string, steps []step) (n int) {
	for _, s := range steps {
		err := s.do(w)
		if err == nil || errors.Is(err, errSkipped) {
			continue
		}
		require.ErrorIs(t, err, syscall.ENOSPC, "%s: %s", what, s.name)
		n++
	}
	return n
}

// TestNoSpace fills the data blocks with writes, appends and overwrites of random sizes, while connections are lost now and then. An
// operation without space returns ENOSPC, all others work, also those that need no block. Deleting files frees space.
func TestNoSpace(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	for _, s := range someShapes() {
		for _, cuts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, cuts %t", s.name, cuts), func(t *testing.T) {
				t.Logf("seed %d", seed)
				random := rand.New(rand.NewPCG(seed, 1))
				s.length, s.logPages = 6*nvmf.MiB, 128
				r := newRig(t, s, "data blocks")
				defer r.close()
				require.NoError(t, r.mount())
				w := newWork(r.fs)
				file := func(i int) string { return fmt.Sprintf("f%d", i) }
				for i := range 5 {
					w.run(t, r.what, []step{create(file(i)), write(file(i), 0, pattern(1000, uint32(i)))})
				}
				if cuts {
					period := 200 + random.IntN(100)
					r.wire.Script(func(p *wiretest.PDU) wiretest.Action {
						if p.N%period == 0 {
							return wiretest.Cut(wiretest.Middle)
						}
						return wiretest.Pass
					})
				}
				for round := range 2 {
					full := 0
					for i := 0; full < some(20); i++ {
						require.Less(t, i, 2000)
						f := file(random.IntN(5))
						b := pattern(1+random.IntN(120_000), random.Uint32())
						n := 0
						if c := w.model[f]; c != nil {
							n = len(c.data)
						}
						full += w.refuses(t, r.what, [][]step{
							{appendTo(f, b)}, {write(f, random.IntN(n+1), b)}, {appendTo(f, b[:1+len(b)/100])}, {fsync(f)},
						}[random.IntN(4)])
					}
					w.run(t, r.what, []step{mkdir(fmt.Sprint("d", round)), truncate(file(2), 100)}) // no block is needed
					w.match(t, r.fs, r.what+", full")
					w.run(t, r.what, []step{closing(file(round)), unlink(file(round)), fsync(file(2))})
					w.run(t, r.what, []step{create(file(round)), write(file(round), 0, pattern(30_000, 9))})
				}
				r.wire.Script(nil)
				w.match(t, r.fs, r.what)
				r.crash()
				require.NoError(t, r.direct(func(fs *microfs.FS) {
					w.match(t, fs, r.what+", mounted again")
					require.NoError(t, fs.Unlink(microfs.RootIno, "f2"))
				}))
			})
		}
	}
}

// TestNoInodes fills the space that a state checkpoint has for names and inodes,
// with connections lost now and then.
func TestNoInodes(t *testing.T) {
	s := shapes[0]
	s.length = 6 * nvmf.MiB
	r := newRig(t, s, "inodes")
	defer r.close()
	require.NoError(t, r.mount())
	r.wire.Script(func(p *wiretest.PDU) wiretest.Action {
		if p.N%1777 == 0 {
			return wiretest.Cut(wiretest.Middle)
		}
		return wiretest.Pass
	})
	w := newWork(r.fs)
	w.run(t, r.what, []step{create("f"), write("f", 0, pattern(1000, 1))})
	long := strings.Repeat("long", 60)
	n := 0
	for ; w.refuses(t, r.what, []step{mkdir(fmt.Sprint(long, n))}) == 0; n++ {
		require.Less(t, n, 100_000)
	}
	require.Greater(t, n, 100)
	w.run(t, r.what, []step{appendTo("f", pattern(70_000, 2)), truncate("f", 60_000), fsync("f"), checkpoint()})
	require.Equal(t, 1, w.refuses(t, r.what, []step{mkdir(long)}))
	for i := range 3 {
		w.run(t, r.what, []step{rmdir(fmt.Sprint(long, i)), mkdir(fmt.Sprint("other", strings.Repeat("x", 100), i))})
	}
	w.match(t, r.fs, r.what)
	r.crash()
	require.NoError(t, r.direct(func(fs *microfs.FS) {
		w.match(t, fs, r.what+", mounted again")
		require.NoError(t, fs.Rmdir(microfs.RootIno, fmt.Sprint(long, 3)))
		require.NoError(t, fs.Mkdir(microfs.RootIno, "room", 0o700))
	}))
}

// TestDeviceFull makes the device refuse all writes for a while, from the n-th on, like a thin volume without space; with a small log, so
// that this also happens in forced state checkpoints. Operations return ENOSPC, reads work, and all operations work when there is space
// again.
func TestDeviceFull(t *testing.T) {
	for _, s := range someShapes() {
		s.logPages = 8
		for n := range some(6) {
			t.Run(fmt.Sprintf("%s, from write %d on", s.name, 5+n*9), func(t *testing.T) {
				r := newRig(t, s, "thin")
				defer r.close()
				require.NoError(t, r.mount())
				w := newWork(r.fs)
				var full atomic.Bool
				writes := 0
				r.wire.Script(func(p *wiretest.PDU) wiretest.Action {
					if sqe := p.SQE(); sqe != nil && p.QID > 0 && sqe.Opcode() == nvme.IOWrite {
						if writes++; writes == 5+n*9 {
							full.Store(true)
						}
						if full.Load() {
							return wiretest.Answer(nvme.StatusCapacityExceeded | nvme.DNR)
						}
					}
					return wiretest.Pass
				})
				refused := 0
				for i, st := range longWorkload() {
					n := w.refuses(t, r.what, []step{st})
					refused += n
					if n > 0 {
						w.refuses(t, r.what, []step{readback("big"), readback("d/small")})
					}
					if refused > 4+i%3 && full.Swap(false) {
						w.match(t, r.fs, r.what+", there is space again")
					}
				}
				require.Positive(t, refused)
				r.wire.Script(nil)
				w.run(t, r.what, []step{create("end"), write("end", 0, pattern(100, 99)), fsync("end"), checkpoint()})
				w.match(t, r.fs, r.what)
				r.crash()
				require.NoError(t, r.direct(func(fs *microfs.FS) { w.match(t, fs, r.what+", mounted again") }))
			})
		}
	}
}

// longWorkload writes several pages of the log.
func longWorkload() []step {
	var steps []step
	for i := range 20 {
		steps = append(steps, symlink(fmt.Sprint("l", i)))
		if i == 8 {
			steps = append(steps, workload()...)
		}
	}
	return steps
}
