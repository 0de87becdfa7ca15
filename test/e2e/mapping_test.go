package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/demo"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

// TestMapping: ranks of an MPI program, and others, write where --mapping says, and a later run
// without it, or with another one, finds them there.
func TestMapping(t *testing.T) {
	for _, h := range []heat{
		{"heat.c", "mpirun.openmpi", []string{"mpicc.openmpi"}},
		{"heat.c", "mpirun.mpich", []string{"mpicc.mpich"}},
	} {
		t.Run(h.launcher, func(t *testing.T) {
			s := newStage(t)
			program := h.build(t, s.Dir)
			cfg := config.Default()
			var flags []string
			for _, name := range []string{"a", "b"} {
				path := filepath.Join(s.Dir, name)
				require.NoError(t, os.WriteFile(path, nil, 0o600))
				require.NoError(t, os.Truncate(path, 256<<20))
				id := nvmf.TransportID{Transport: nvmf.File, Address: path}
				cfg.Targets = append(cfg.Targets, id)
				flags = append(flags, "--target", id.String())
			}
			run := func(more []string, line ...string) result {
				args := append(append([]string{"run"}, flags...), more...)
				return call(t, s, append(append(args, "--"), demo.MPIRun(h.launcher, 4, line...)...)...)
			}
			refused := run([]string{"--mapping", "0,2"}, "true")
			refused.refused(t, "names target 2")

			run([]string{"--mapping", "1,0*3"}, program, "/nvmecr", "0", "50", "100").ok(t)
			ranks, err := store.Ranks(t.Context(), cfg)
			require.NoError(t, err)
			for _, r := range ranks {
				want := 0
				if r.Rank == 0 {
					want = 1
				}
				assert.Equal(t, cfg.Targets[want], r.Target, "rank %d", r.Rank)
			}
			run(nil, program, "/nvmecr", "100", "50", "200").ok(t)
			run([]string{"--mapping", "0*2,1*2"}, program, "/nvmecr", "200", "50", "300").ok(t)
			run(nil, "sh", "-c", "cat /nvmecr/heat.300.* > /nvmecr/copy").ok(t)
			again, err := store.Ranks(t.Context(), cfg)
			require.NoError(t, err)
			assert.Equal(t, ranks, again)
		})
	}
}
