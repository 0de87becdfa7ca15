package microfs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// TestFramedSizes checks framedSize, framedCapacity and unframe for states whose lengths are near the
// limits of blocks and groups.
func TestFramedSizes(t *testing.T) {
	for _, n := range []nvmf.Bytes{1, statePayload, statePayload + 1, groupPayload - 1, groupPayload, groupPayload + 1, 3*groupPayload + 7} {
		state := pattern(int(n), 1)
		framed := frame(state, 9)
		require.Equal(t, framedSize(n), nvmf.Bytes(len(framed)), n)
		require.GreaterOrEqual(t, framedCapacity(framedSize(n)), n)
		require.Less(t, framedCapacity(framedSize(n)-blockSize), n, "a block less is too small for %d", n)
		got, repaired, err := unframe(framed, n, 9)
		require.NoError(t, err)
		require.Empty(t, repaired)
		require.Equal(t, state, got)
	}
}

// TestStateBlockRepaired damages each block of a state in turn, also with the content of another block
// or of an earlier state. It checks that unframe repairs one damaged block of each group, and fails for
// two damaged blocks of one group.
func TestStateBlockRepaired(t *testing.T) {
	state := pattern(groupPayload+3*statePayload+5, 1)
	good := frame(state, 9)
	old := frame(pattern(len(state), 2), 8)
	step := 1
	if testing.Short() {
		step = 13
	}
	for n := 0; n < len(good)/blockSize; n += step {
		at := n * blockSize
		other := (at + blockSize) % len(good)
		for what, block := range map[string][]byte{
			"noise": pattern(blockSize, 3), "zeros": make([]byte, blockSize),
			"earlier state": old[at : at+blockSize], "misdirected": good[other : other+blockSize],
		} {
			framed := append([]byte(nil), good...)
			copy(framed[at:], block)
			got, repaired, err := unframe(framed, nvmf.Bytes(len(state)), 9)
			require.NoError(t, err, "block %d, %s", n, what)
			require.Equal(t, []int{n}, repaired)
			require.Equal(t, state, got)
			require.Equal(t, good, framed)
		}
	}
	framed := append([]byte(nil), good...)
	framed[5]++
	framed[groupBytes+5]++ // one damaged block in each group
	got, _, err := unframe(framed, nvmf.Bytes(len(state)), 9)
	require.NoError(t, err)
	require.Equal(t, state, got)
	framed[5]++
	framed[blockSize+5]++
	_, _, err = unframe(framed, nvmf.Bytes(len(state)), 9)
	require.ErrorIs(t, err, ErrCorrupt)
}

// TestMountRepairsState damages a block of the current state on the media, or makes it unreadable. It
// checks that Mount succeeds and repairs the block.
func TestMountRepairsState(t *testing.T) {
	for _, kind := range []string{"damaged", "unreadable"} {
		t.Run(kind, func(t *testing.T) {
			mem, err := memdev.New(16*nvmf.MiB, 4096, memdev.Options{})
			require.NoError(t, err)
			r := newCrashRigOn(t, mem, crashSegment, variants[0])
			defer r.dev.Close()
			fs, err := r.mount()
			require.NoError(t, err)
			for i := range 100 {
				require.NoError(t, fs.Mkdir(RootIno, fmt.Sprintf("d%d", i), 0o700))
			}
			require.NoError(t, fs.Checkpoint())
			want := snapshotFS(t, fs)
			at := crashSegment.Start + fs.g.state[fs.ckpt.header.area] + blockSize
			block := mem.Bytes()[at : at+blockSize]
			good := append([]byte(nil), block...)
			require.NoError(t, fs.Unmount())
			if kind == "damaged" {
				block[100] ^= 1
			} else {
				clear(block)
				r.dev.FailAt(nvmf.Read, 7, mediaError) // the state, after superblocks, claims and headers
				r.dev.FailAt(nvmf.Read, 9, mediaError) // the second block of the state
			}
			var said []string
			r.v.o.Logf = func(f string, a ...any) { said = append(said, fmt.Sprintf(f, a...)) }
			fs, err = r.mount()
			require.NoError(t, err)
			require.Contains(t, fmt.Sprint(said), "repaired")
			require.Equal(t, want, snapshotFS(t, fs))
			require.Equal(t, good, block)
			require.NoError(t, fs.Unmount())
		})
	}
}

var mediaError = &nvmf.StatusError{Opcode: nvmf.Read, SCT: 2, SC: 0x81, DNR: true}
