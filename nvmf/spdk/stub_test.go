//go:build !spdk

package spdk_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nvmecr/nvmf"
	"nvmecr/nvmf/spdk"
)

func TestBuiltWithout(t *testing.T) {
	_, err := spdk.Open(t.Context(), nvmf.TransportID{Transport: nvmf.PCIe, Address: "0000:01:00.0", NSID: 1}, spdk.Options{})
	assert.ErrorIs(t, err, nvmf.ErrUnsupported)
	assert.ErrorContains(t, err, "make SPDK=1")
	assert.Empty(t, spdk.Version())
}

// TestDriver is skipped. It represents the tests of the driver, which are not built
// without SPDK.
func TestDriver(t *testing.T) {
	t.Skip("built without SPDK: `make test` runs this package's tests once more, with it, where pkg-config finds it")
}
