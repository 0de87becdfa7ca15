//go:build spdk

package spdk_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf/spdk"
)

// TestLeavesNoDirectory: DPDK makes one for each process, and leaves it.
func TestLeavesNoDirectory(t *testing.T) {
	require.NoError(t, openDevice(t, embedded(t, 512, 0).id(t), spdk.Options{}).Close())
	for _, dir := range []string{"/var/run", os.Getenv("XDG_RUNTIME_DIR"), "/tmp"} {
		assert.NoDirExists(t, filepath.Join(dir, "dpdk", fmt.Sprintf("spdk_pid%d", os.Getpid())))
	}
}
