package store

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/parttable"
	"nvmecr/nvmf"
	"nvmecr/nvmf/mirror"
)

// TestMirrorUsed checks that a target in the place of a lost one gets the used space of the mirror only. Those copies
// must suffice when the other target is lost and replaced.
func TestMirrorUsed(t *testing.T) {
	t.Parallel()
	targets := []*served{serve(t, 0, blankMemory(t)), serve(t, 1, blankMemory(t))}
	run := startMirrored(t, targets...)
	names := []string{"a", "b", strings.Repeat("long", 30)} // the files of the last name are larger than 1 MiB
	for _, name := range names {
		run.write(name)
	}
	all := usedOfHome(t, run)
	run.end()
	used := usedOfHome(t, run)
	assert.Less(t, used, all/2, "closed, beside not closed")

	targets[0].stop()
	memory, garbage := blankMemory(t), bytes.Repeat([]byte{0xaa}, int(nvmf.MiB))
	for at := parttable.HeadSize; at < 63*nvmf.MiB; at += nvmf.MiB {
		require.NoError(t, memory.WriteAt(garbage, int64(at)))
	}
	targets[0] = serve(t, 0, memory)
	run = startMirrored(t, targets...)
	run.check(names...)
	run.end()
	kept, b := 0, make([]byte, nvmf.MiB)
	for at := nvmf.Bytes(0); at < 63*nvmf.MiB; at += nvmf.MiB {
		require.NoError(t, memory.ReadAt(b, int64(at)))
		if bytes.Equal(garbage, b) {
			kept++
		}
	}
	assert.Greater(t, kept, 30, "MiB that were not written to")

	targets[1].stop()
	targets[1] = serve(t, 1, blankMemory(t))
	run = startMirrored(t, targets...)
	run.check(names...)
	run.end()
}

// usedOfHome returns the number of MiB in use in the mirror whose home is the first target.
func usedOfHome(t *testing.T, run *mirrored) (n int) {
	dev, err := connect(ctx, run.cfg, run.cfg.Targets[0], true)
	require.NoError(t, err)
	used, err := inUse(ctx, run.cfg, dev)
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	for _, u := range used {
		if u {
			n++
		}
	}
	require.Len(t, used, int(dev.(*mirror.Device).Identity().Capacity()/nvmf.MiB))
	return n
}
