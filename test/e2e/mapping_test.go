package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/demo"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

// heatsInC is one program under both MPIs.
var heatsInC = []heat{
	{"heat.c", "mpirun.openmpi", []string{"mpicc.openmpi"}},
	{"heat.c", "mpirun.mpich", []string{"mpicc.mpich"}},
}

// TestMapping checks that ranks write to the targets of --mapping, and that a later run without --mapping, or with another one, finds the
// data there.
func TestMapping(t *testing.T) {
	t.Parallel()
	for _, h := range heatsInC {
		t.Run(h.launcher, func(t *testing.T) {
			s := newStage(t)
			program := h.build(t, s.Dir)
			cfg := config.Default()
			flags := fileTargets(t, s, cfg, 256, 256)
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

// TestMappingByHosts checks that the target of a rank depends on the host on which MPI starts it, and at a restart on the record.
func TestMappingByHosts(t *testing.T) {
	t.Parallel()
	for _, h := range heatsInC {
		t.Run(h.launcher, func(t *testing.T) {
			s := newStage(t)
			program := h.build(t, s.Dir)
			cfg := config.Default()
			flags := fileTargets(t, s, cfg, 256, 256)
			// Ranks 0 and 2 are on cn2, 1 and 3 on cn1.
			onHosts := []string{"sh", "-c", `SLURMD_NODENAME=cn$((2 - ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} % 2)) exec "$0" "$@"`, program, "/nvmecr"}
			run := func(mapping string, steps ...string) result {
				args := append(append([]string{"run", "--view=rank", "--mapping", mapping}, flags...), "--")
				return call(t, s, append(args, demo.MPIRun(h.launcher, 4, append(onHosts, steps...)...)...)...)
			}
			unknown := run("cn1=0*2;cn3=1*2", "0", "50", "100")
			assert.NotEqual(t, 0, unknown.code)
			assert.Equal(t, 1, strings.Count(unknown.stderr, "this is host cn2"), unknown.stderr)
			run("cn2=0*2;cn1=1*2", "0", "50", "100").ok(t)
			ranks, err := store.Ranks(t.Context(), cfg)
			require.NoError(t, err)
			for _, r := range ranks {
				assert.Equal(t, cfg.Targets[r.Rank%2], r.Target, "rank %d", r.Rank)
			}
			run("cn1=0*2;cn2=1*2", "100", "50", "200").ok(t)
			again, err := store.Ranks(t.Context(), cfg)
			require.NoError(t, err)
			assert.Equal(t, ranks, again)
		})
	}
}

// fileTargets creates a file of this size in MiB for each target of cfg, and returns the flags that name them.
func fileTargets(t *testing.T, s *demo.Stage, cfg *config.Config, mib ...int64) (flags []string) {
	for i, size := range mib {
		path := filepath.Join(s.Dir, fmt.Sprint("target", i))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Truncate(path, size<<20))
		id := nvmf.TransportID{Transport: nvmf.File, Address: path}
		cfg.Targets = append(cfg.Targets, id)
		flags = append(flags, "--target", id.String())
	}
	return flags
}

// TestFormatFails checks that a rank which cannot format its target notifies the waiting ranks, whose time-out is an hour.
func TestFormatFails(t *testing.T) {
	t.Parallel()
	for _, h := range heatsInC {
		t.Run(h.launcher, func(t *testing.T) {
			s := newStage(t)
			program := h.build(t, s.Dir)
			args := append([]string{"run", "--timeout", "1h"}, fileTargets(t, s, config.Default(), 256, 4)...)
			r := call(t, s, append(append(args, "--"), demo.MPIRun(h.launcher, 4, program, "/nvmecr", "0", "50", "100")...)...)
			assert.NotEqual(t, 0, r.code)
			assert.Equal(t, 1, strings.Count(r.stderr, "cannot be used"), "one rank tells: %s", r.stderr)
			assert.Contains(t, r.stderr, "rank 1: ")
			assert.Contains(t, r.stderr, "take one of at least")
		})
	}
}
