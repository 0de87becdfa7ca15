package microfs

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// TestOutcomeOfALostCall has a rename fail with EIO because the target did not come back in time, while
// the Write command with its log record is delayed in the network. Then the process ends. The test
// checks that the next mount for writing makes the failed rename final: no later mount finds the rename,
// even after the target has executed the delayed command. A read-only mount has no such effect.
func TestOutcomeOfALostCall(t *testing.T) {
	for _, v := range []variant{variants[0], variants[6]} {
		for _, records := range []int{0, 1, 2, 40, 47, 48, 49, 50, 51, 100} { // start, middle and end of a log page
			for _, writes := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %d records, next mount for writing %t", v.name, records, writes), func(t *testing.T) {
					outcomeOfALostCall(t, v, records, writes)
				})
			}
		}
	}
}

func outcomeOfALostCall(t *testing.T, v variant, records int, writes bool) {
	v.o.Claimed = notFenced
	c, fs := mounted(t, v)
	require.NoError(t, fs.Mkdir(RootIno, "before", 0o700))
	for i := range records {
		require.NoError(t, fs.Mkdir(RootIno, fmt.Sprint(i), 0o700))
	}
	fs.opts.Timeout = 20 * time.Millisecond
	fs.opts.Reserve = func(context.Context) error { return nvmf.ErrUnreachable }
	c.dev.DisconnectAt(nvmf.Write, 1)
	require.ErrorIs(t, fs.Rename(RootIno, "before", RootIno, "after", 0), unix.EIO)
	fs.ckpt.stop()
	c.dev.Heal()

	reads := c.v.o
	reads.ReadOnly = true
	reader, err := Mount(context.Background(), c.dev, c.seg, reads)
	require.NoError(t, err)
	require.Equal(t, "before", renamed(t, reader), "nothing has landed")
	require.NoError(t, reader.Unmount())

	if writes {
		next, err := c.mount()
		require.NoError(t, err)
		next.ckpt.stop()
		require.Equal(t, "before", renamed(t, next))
	}
	n, err := c.dev.Release()
	require.NoError(t, err)
	require.Positive(t, n, "nothing was held back")
	want := "after"
	if writes {
		want = "before"
	}
	for range 2 {
		last, err := c.mount()
		require.NoError(t, err)
		last.ckpt.stop()
		require.Equal(t, want, renamed(t, last))
	}
}

// renamed returns which of the two names exists.
func renamed(t *testing.T, fs *FS) string {
	_, before := fs.Stat(RootIno, "before", false)
	_, after := fs.Stat(RootIno, "after", false)
	require.NotEqual(t, before == nil, after == nil, "one of both")
	if before == nil {
		return "before"
	}
	return "after"
}
