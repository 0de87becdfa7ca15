package fabric

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/busy"
	"nvmecr/microfs"
	"nvmecr/nvmf/wiretest"
)

// TestAway checks that an operation fails with EIO after Options.Timeout if the target, or a part of it, does not answer.
func TestAway(t *testing.T) {
	tests := []struct {
		name string
		take func(r *rig)
	}{
		{"frozen", func(r *rig) { r.wire.Freeze() }},
		{"down", func(r *rig) { r.wire.Down() }},
		{"gone without a word", func(r *rig) {
			r.wire.Script(func(*wiretest.PDU) wiretest.Action { return wiretest.Drop })
		}},
		{"I/O queues answer nothing, the admin queue all", func(r *rig) {
			r.wire.Script(func(p *wiretest.PDU) wiretest.Action {
				if p.QID > 0 && p.SQE() != nil && p.SQE().Opcode() < 0x7f {
					return wiretest.Drop
				}
				return wiretest.Pass
			})
		}},
		{"connections are cut as soon as they stand", func(r *rig) {
			r.wire.Script(func(p *wiretest.PDU) wiretest.Action {
				if p.QID > 0 && p.SQE() != nil && p.SQE().Opcode() < 0x7f {
					return wiretest.Cut(0)
				}
				return wiretest.Pass
			})
		}},
		{"connections are taken and nothing is said", func(r *rig) {
			r.wire.Cut()
			r.wire.Freeze()
		}},
	}
	const silence = 3 * commandTimeout // more than any time-out of a command
	operations := []step{write("f", 0, pattern(100_000, 2)), readback("f"), mkdir("d"), checkpoint()}
	for i, tc := range tests {
		for j, op := range operations {
			if !*all && j != i%len(operations) {
				continue
			}
			t.Run(tc.name+"/"+op.name, func(t *testing.T) {
				t.Parallel()
				if testing.Short() && i > 0 {
					t.Skip("the time-out has to pass: one operation of each kind in a short run")
				}
				s := shapes[0]
				s.silent, s.patient = silence, 3*silence
				r := newRig(t, s, tc.name)
				defer r.close()
				require.NoError(t, r.mount())
				w := newWork(r.fs)
				w.run(t, r.what, []step{create("f"), write("f", 0, pattern(50_000, 1)), fsync("f")})
				tc.take(r)
				begin, clock := time.Now(), busy.Start(t)
				require.ErrorIs(t, op.do(w), syscall.EIO)
				took := clock.Now()
				require.GreaterOrEqual(t, time.Since(begin), s.patient-silence/10)
				// One command may be waited for after the time-out.
				require.Less(t, took, s.patient+silence*3/2)
				require.ErrorIs(t, mkdir("e").do(w), syscall.EIO)
				require.Less(t, clock.Now()-took, silence/2, "it is known by now")
				r.crash()
				require.NoError(t, r.direct(func(fs *microfs.FS) { w.match(t, fs, r.what) }))
			})
		}
	}
}
