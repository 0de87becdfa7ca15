//go:build interop

package interop

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
	"nvmecr/internal/demo/demotest"
	"nvmecr/nvmf"
	"nvmecr/test/interop/guest"
)

// demoNQN is a subsystem with a namespace large enough for the demonstration.
const demoNQN = "nqn.2014-08.org.nvmecr:interop-demo"

// TestDemo runs the demonstration with targets of others: LAMMPS is killed, restarts from its newest complete checkpoint, and has equal
// results.
func TestDemo(t *testing.T) {
	if _, err := exec.LookPath("lmp"); err != nil {
		t.Skip("LAMMPS (lmp) is not installed: make deps")
	}
	t.Run("SPDK", func(t *testing.T) {
		rpc := startTransport(t, "--interrupt-mode") // keeps the cores free for LAMMPS
		call(t, rpc, "nvmf_create_subsystem", params{"nqn": demoNQN, "serial_number": "INTEROPDEMO", "allow_any_host": true})
		call(t, rpc, "bdev_malloc_create", params{"name": "demo", "num_blocks": uint64(256 * nvmf.MiB / 4096), "block_size": 4096})
		call(t, rpc, "nvmf_subsystem_add_ns", params{"nqn": demoNQN, "namespace": params{"bdev_name": "demo"}})
		port := freePort(t)
		spdkListen(t, rpc, demoNQN, port)
		runDemo(t, at(port, demoNQN))
	})
	forKernels(t, func(t *testing.T, k guest.Kernel) {
		g := boot(t, guest.Options{Kernel: k, Modules: nvmetModules(k), Ports: []int{nvmetPort}})
		sh(t, g, "%s", nvmetFunctions+port()+fmt.Sprintf(`
			subsystem %[1]s; open %[1]s
			size=256; device demo 4096; namespace %[1]s 1 /dev/demo
			serve %[1]s`, demoNQN))
		runDemo(t, at(g.Port(nvmetPort), demoNQN))
	})
}

func runDemo(t *testing.T, id nvmf.TransportID) {
	command := demotest.Nvmecr(t)
	seed := time.Now().UnixNano() % 1_000_000
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	var out demo.Output
	err := demo.Run(ctx, &out, demo.Options{Nvmecr: command, Seed: seed, Target: id.String()})
	require.NoError(t, err, out.Tail(100))
	t.Log(out.Tail(100))
}
