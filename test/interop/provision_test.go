//go:build interop

package interop

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/test/interop/guest"
)

// TestProvision runs the tests of `nvmecr admin` with real targets.
func TestProvision(t *testing.T) {
	t.Run("SPDK", func(t *testing.T) {
		rpc := startTransport(t)
		call(t, rpc, "bdev_malloc_create", params{"name": "store", "num_blocks": uint64(512 * nvmf.MiB / 4096), "block_size": 4096})
		call(t, rpc, "bdev_lvol_create_lvstore", params{"bdev_name": "store", "lvs_name": "lvs0"})
		cmd := exec.CommandContext(t.Context(), compiled(t, "spdk"), "-test.run", "^(TestSPDK|TestIsolation)$", "-test.v")
		cmd.Env = append(os.Environ(), "NVMECR_TEST_SPDK_RPC="+rpc.socket,
			"NVMECR_TEST_SPDK_LISTEN="+net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t))))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.NotRegexp(t, `--- SKIP: \w+ \(`, string(out))
	})
	forKernels(t, func(t *testing.T, k guest.Kernel) {
		// The files of namespaces need a file system with direct I/O.
		g := boot(t, guest.Options{Kernel: k, Modules: append(nvmetModules(k), "ext4"), Memory: 2048, Programs: []string{"mkfs.ext4"},
			Files: map[string]string{"/provision": compiled(t, "nvmet")}})
		out := sh(t, g, "%s", nvmetFunctions+`
			size=512; device files 4096; mkfs.ext4 -q /dev/files; mount -t ext4 /dev/files /mnt
			NVMECR_TEST_NVMET=$nvmet NVMECR_TEST_NVMET_DIR=/mnt /provision -test.run '^(TestKernel|TestIsolation)$' -test.v 2>&1`)
		require.NotRegexp(t, `--- SKIP: \w+ \(`, out) // a skipped test
	})
}

// compiled builds the tests of a provisioner, without the C library, so that they run anywhere.
func compiled(t *testing.T, name string) string {
	program := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("go", "test", "-c", "-o", program, "nvmecr/nvmf/provision/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}
