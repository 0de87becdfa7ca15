//go:build interop

package interop

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo/demotest"
	"nvmecr/test/interop/guest"
)

// TestBenchBesideKernelHost runs the benchmark with Linux's host and XFS as a peer. Target, ranks and kernel are all in the guest.
// Without KVM its instructions are interpreted, which slows computation (user space, checksums, the target) more than copying. So the
// ratios are not those of a machine.
func TestBenchBesideKernelHost(t *testing.T) {
	command := demotest.Nvmecr(t)
	bin := filepath.Dir(command)
	forKernels(t, func(t *testing.T, k guest.Kernel) {
		files := map[string]string{}
		for _, name := range []string{"nvmecr", "nvmecr-bench", "nvmecr-bench-rank", "libnvmecr.so", "libnvmecr-plain.so"} {
			require.FileExists(t, filepath.Join(bin, name))
			files["/opt/bin/"+name] = filepath.Join(bin, name)
		}
		g := boot(t, guest.Options{Kernel: k, Modules: []string{"nvme_tcp", "xfs"}, Memory: 6144, Files: files,
			Programs: []string{"nvme", "mkfs.xfs", "mount", "modprobe"}})
		r := try(t, g, `export HOME=/tmp PATH=$PATH:/usr/sbin:/sbin:/usr/bin:/opt/bin; mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm; ip link set lo up
			nvmecr bench checkpoint --ranks 1 --size 8M --count 1 --rounds 6 --compute 10ms 2>&1; ls /sys/class/nvme | wc -l`)
		t.Log(r.Stdout + r.Stderr)
		require.NoError(t, r.Err())
		assert.Contains(t, r.Stdout, "XFS on Linux's NVMe/TCP host")
		assert.NotContains(t, r.Stdout, "Not measured: XFS on Linux's NVMe/TCP host")
		assert.Regexp(t, `(?m)^0$`, r.Stdout, "the connection is gone")
	})
}
