package store

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/busy"
	"nvmecr/internal/config"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/wiretest"
)

// TestSilentTarget lets the target stop answering at different PDUs of functions that read a store. Each must return
// an error after about the time-out.
func TestSilentTarget(t *testing.T) {
	cfg, port := newServed(t, 16*nvmf.MiB)
	mustOpen(t, cfg, 1)

	tests := []struct {
		name string
		step int
		f    func(*config.Config) error
	}{
		{"ranks", 3, func(c *config.Config) error { _, err := Ranks(ctx, c); return err }},
		{"open for reading", 7, func(c *config.Config) error {
			p, err := Open(ctx, c, Proc{0, 1, ""}, Options{ReadOnly: true})
			if err == nil {
				err = p.Close()
			}
			return err
		}},
		{"verify", 11, func(c *config.Config) error { _, err := Verify(ctx, c, Proc{0, 1, ""}, VerifyOptions{}); return err }},
		{"check", 5, func(c *config.Config) error {
			var found error
			err := Check(ctx, c, CheckOptions{
				Rank:   AllRanks,
				Target: func(r *TargetReport) { found = r.Err },
				Part: func(r *PartReport) {
					if found = r.Err; found == nil {
						assert.Empty(t, r.Findings)
						assert.NotNil(t, r.CheckReport)
						return
					}
					assert.Nil(t, r.CheckReport, "half a look says nothing")
				},
			})
			if err == nil {
				err = found
			}
			return err
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ended, patience, clock := false, 200*time.Millisecond, busy.Start(t)
			for n := 1; !ended; {
				wire, err := wiretest.New("127.0.0.1:" + port)
				require.NoError(t, err)
				wire.Script(wiretest.At(wiretest.ToHost, n, wiretest.Freeze(time.Hour)))
				c := *cfg
				c.Targets, c.Timeout = []nvmf.TransportID{wire.Through(cfg.Targets[0])}, patience
				done, begin := make(chan error, 1), clock.Now()
				go func() { done <- tt.f(&c) }()
				select {
				case err = <-done:
				case <-time.After(hang):
					wire.Thaw()
					<-done
					require.Failf(t, "it hangs", "silent from PDU %d on", n)
				}
				require.Less(t, clock.Now()-begin, 100*patience, "PDU %d", n)
				require.NotErrorIs(t, err, microfs.ErrCorrupt, "PDU %d", n)
				switch ended = err == nil && wire.Struck() == 0; {
				case ended:
				case wire.Struck() > 0:
					n += tt.step
				default: // the target answered, but later than the time-out allows: the machine is busy
					patience *= 2
					require.Less(t, patience, hang, "PDU %d: %v", n, err)
				}
				wire.Close()
			}
		})
	}
}

// newServed returns a store on a target with reservations, and the port of the target.
func newServed(t *testing.T, size nvmf.Bytes) (cfg *config.Config, port string) {
	const nqn = "nqn.2014-08.org.example:store"
	memory, err := target.NewMemory(size, 4*nvmf.KiB)
	require.NoError(t, err)
	tgt, err := target.New(target.Config{Subsystems: []target.Subsystem{{NQN: nqn, Namespaces: []target.Namespace{{Backing: memory}}}}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, tgt.Close(ctx)) })
	addr, err := tgt.Listen("127.0.0.1:0")
	require.NoError(t, err)
	_, port, err = net.SplitHostPort(addr.String())
	require.NoError(t, err)
	cfg = config.Default()
	require.NoError(t, cfg.Set("target", "trtype:TCP traddr:127.0.0.1 trsvcid:"+port+" subnqn:"+nqn+" ns:1"))
	return cfg, port
}
