package store

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/wiretest"
)

// TestLateFormat cuts the connection of the rank that formats the store, at different PDUs, and lets the rank try
// again. Then it delivers the commands that the first attempt had sent. They must not overwrite files that were
// written meanwhile.
func TestLateFormat(t *testing.T) {
	t.Parallel()
	ended, half := false, 0
	step := 2
	if testing.Short() {
		step = 7
	}
	for n := 8; !ended; n += step {
		cfg, port := newServed(t, 4*nvmf.MiB)
		wire, err := wiretest.New("127.0.0.1:" + port)
		require.NoError(t, err)
		wire.Script(wiretest.At(wiretest.ToTarget, n, wiretest.KeepAll()))
		c := *cfg
		c.Timeout = hang
		c.Targets = []nvmf.TransportID{wire.Through(cfg.Targets[0])}
		c.Run, err = NewRun(uuid.Nil)
		require.NoError(t, err)
		var p *Partition
		for begin := time.Now(); p == nil; time.Sleep(time.Millisecond) { // the runtime tries again, too
			if p, err = Open(ctx, &c, Proc{0, 1, ""}, Options{drain: time.Millisecond}); err != nil {
				require.ErrorIs(t, err, nvmf.ErrConnectionLost, "PDU %d", n)
				require.Less(t, time.Since(begin), hang)
				if errors.Is(err, ErrHalfFormatted) { // the user starts a new run
					half++
					c.Run, err = NewRun(c.Run)
					require.NoError(t, err)
				}
			}
		}
		ended = wire.Struck() == 0
		wire.Script(nil)
		f, err := p.FS.Open(microfs.RootIno, "f", os.O_CREATE|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		_, err = f.WriteAt([][]byte{[]byte("acknowledged")}, 0)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		late := wire.Release()
		t.Logf("PDU %d: %d late", n, late)
		require.NoError(t, p.Close())
		wire.Close()

		cfg.Run, err = NewRun(c.Run)
		require.NoError(t, err)
		p, err = Open(ctx, cfg, Proc{0, 1, ""}, Options{})
		require.NoError(t, err, "PDU %d, %d commands late", n, late)
		_, err = p.FS.Stat(microfs.RootIno, "f", false)
		require.NoError(t, err, "PDU %d", n)
		require.NoError(t, p.Close())
		require.NoError(t, Check(ctx, cfg, CheckOptions{Rank: AllRanks,
			Target: func(r *TargetReport) { require.NoError(t, r.Err); require.Empty(t, r.Findings) },
			Part:   func(r *PartReport) { require.NoError(t, r.Err); require.Empty(t, r.Findings, "PDU %d", n) },
		}))
	}
	require.NotZero(t, half, "cut off while formatting")
}
