package target_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/target"
)

// identify returns the page of an Identify command.
func (h *client) identify(cns uint8) *[nvme.IdentifySize]byte {
	s := h.command(nvme.AdminIdentify)
	s.SetIdentify(cns)
	s.SGL().Set(nvme.SGLTransport, 0, nvme.IdentifySize)
	h.capsule(s, nil)
	_, _, page, err := h.next()
	require.NoError(h.t, err)
	require.Zero(h.t, h.response().Status())
	return (*[nvme.IdentifySize]byte)(page)
}

// verify sends a Verify command.
func (h *client) verify(slba uint64, blocks uint32) nvme.Status {
	h.capsule(h.rw(nvme.IOVerify, slba, blocks, 0), nil)
	return h.response().Status()
}

// reader is a Backing without Memory that counts the bytes read.
type reader struct {
	target.Backing
	read atomic.Int64
}

func (r *reader) Memory() []byte { return nil }

func (r *reader) ReadAt(p []byte, offset int64) error {
	r.read.Add(int64(len(p)))
	return r.Backing.ReadAt(p, offset)
}

// TestVerify checks that Verify reads the blocks, and that the target refuses ranges beyond
// the limit that the controller reports.
func TestVerify(t *testing.T) {
	b := &reader{Backing: memory(t, 4*nvmf.MiB, 4096)}
	_, addr := serve(t, one(b))
	admin, q := io2(t, addr, 0)
	page := admin.identify(nvme.CNSController)
	assert.NotZero(t, (*nvme.IdentifyController)(page).ONCS()&nvme.ONCSVerify)
	limit := int64(4096) << admin.identify(nvme.CNSCommandSetController)[0]
	assert.Zero(t, q.verify(3, uint32(limit/4096)))
	assert.Equal(t, limit, b.read.Load())
	assert.Equal(t, nvme.StatusInvalidField, q.verify(3, uint32(limit/4096)+1).Code())
	assert.Equal(t, limit, b.read.Load())

	_, addr = serve(t, one(memory(t, nvmf.MiB, 512)))
	_, q = io2(t, addr, 0)
	assert.Zero(t, q.verify(2047, 1))
	assert.Equal(t, nvme.StatusLBARange, q.verify(2047, 2).Code())
}
