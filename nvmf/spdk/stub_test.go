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
