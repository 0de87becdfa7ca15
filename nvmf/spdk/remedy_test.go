//go:build spdk

package spdk

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// TestRemedies checks the advice about huge pages and PCI devices for several states of /sys.
func TestRemedies(t *testing.T) {
	sys := t.TempDir()
	put := func(path, text string) {
		path = filepath.Join(sys, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	assert.Contains(t, hugeRemedy(sys, 256*nvmf.MiB), "0 bytes are free", "a kernel without huge pages")
	put("kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "127\n")
	assert.Contains(t, hugeRemedy(sys, 256*nvmf.MiB), "vm.nr_hugepages")
	put("kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "128\n")
	assert.Contains(t, hugeRemedy(sys, 256*nvmf.MiB), "hugetlbfs")

	put("bus/pci/devices/0000:00:1f.0/class", "0x060100\n")
	for address, driver := range map[string]string{"0000:0a:00.0": "nvme", "0000:0b:00.0": "vfio-pci", "0000:0c:00.0": ""} {
		device := "bus/pci/devices/" + address
		put(device+"/class", "0x010802\n")
		if driver != "" {
			require.NoError(t, os.Symlink("../../../bus/pci/drivers/"+driver, filepath.Join(sys, device, "driver")))
		}
	}
	for address, want := range map[string]string{
		"0000:09:00.0": "there is no PCI device 0000:09:00.0",
		"00:1f.0":      "no NVMe drive",
		"0A:00.0":      "driver nvme",
		"0000:0c:00.0": "no driver",
	} {
		assert.Contains(t, pciRemedy(sys, address), want)
	}
	assert.Empty(t, pciRemedy(sys, "0000:0b:00.0"))
}

func TestLockRemedy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	assert.Empty(t, lockRemedy(file), "no lock file, so no advice")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	assert.Contains(t, lockRemedy(file), fmt.Sprintf("%s belongs to user %d,", file, os.Getuid()))
}
