package fabric

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/wiretest"
)

// lasting is storage that outlives its targets.
type lasting struct{ target.Backing }

func (lasting) Close() error { return nil }

// TestTargetRestart ends the target at PDU 1, 2, 3, ... of the workload, and starts another one with the same storage.
func TestTargetRestart(t *testing.T) {
	for _, s := range someShapes() {
		seen := lengthOf(t, s)
		for _, to := range []wiretest.Direction{wiretest.ToTarget, wiretest.ToHost} {
			t.Run(fmt.Sprintf("%s/%s", s.name, to), func(t *testing.T) {
				runs := sweep(t, 5*int(to), some(4), seen[to], func(n int) bool { return restartOnce(t, s, to, n) })
				t.Logf("%d PDUs", runs)
			})
		}
	}
}

func restartOnce(t *testing.T, s shape, to wiretest.Direction, n int) bool {
	b := s.backing(t)
	r := newRigOn(t, s, fmt.Sprintf("target ended at PDU %d %s", n, to), s.serve(t, lasting{b}))
	defer func() { require.NoError(t, b.Close()) }()
	defer r.close()
	require.NoError(t, r.mount(), r.what)
	reached, restarted := make(chan bool, 1), make(chan bool)
	r.wire.Script(func(p *wiretest.PDU) wiretest.Action {
		if p.To == to && p.N == n {
			reached <- true
			return wiretest.Delay(0)
		}
		return wiretest.Pass
	})
	go func() {
		defer close(restarted)
		if !<-reached {
			return
		}
		r.wire.Down()
		shut(t, r.tgt)
		r.tgt = s.serve(t, lasting{b})
		r.id = idOf(r.tgt.Addr())
		r.wire.SetTarget(r.tgt.Addr().String())
		if err := r.wire.Up(); err != nil {
			t.Error(err)
		}
	}()
	w := newWork(r.fs)
	w.run(t, r.what, workload())
	struck := r.wire.Struck() > 0
	if !struck {
		reached <- false
	}
	<-restarted
	r.wire.Script(nil)
	w.match(t, r.fs, r.what)
	r.crash()
	require.NoError(t, r.direct(func(fs *microfs.FS) { w.match(t, fs, r.what+", mounted again") }), r.what)
	return struck
}
