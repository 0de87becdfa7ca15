//go:build spdk

package spdk_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf/spdk"
)

// TestLeavesNoDirectory checks that the driver removes the directory that DPDK creates for
// each process.
func TestLeavesNoDirectory(t *testing.T) {
	require.NoError(t, openDevice(t, embedded(t, 512, 0).id(t), spdk.Options{}).Close())
	for _, dir := range []string{"/var/run", os.Getenv("XDG_RUNTIME_DIR"), "/tmp"} {
		assert.NoDirExists(t, filepath.Join(dir, "dpdk", fmt.Sprintf("spdk_pid%d", os.Getpid())))
	}
}

// TestLeavesNothingToOthers checks that an executed program inherits none of SPDK's
// descriptors.
func TestLeavesNothingToOthers(t *testing.T) {
	d := openDevice(t, embedded(t, 512, 0).id(t), spdk.Options{})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	openQueue(t, d, 1)
	out, err := exec.Command("sh", "-c", "readlink /proc/self/fd/* 2>/dev/null | grep -e socket: -e anon_inode -e memfd; true").Output()
	require.NoError(t, err)
	assert.Empty(t, string(out))
}
