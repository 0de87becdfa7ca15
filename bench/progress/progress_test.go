package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestNothingInAPipe checks that nothing is written to a pipe, and that a nil bar can be used.
func TestNothingInAPipe(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	b := Start(w)
	b.Show("one", 0.5)
	b.End()
	require.NoError(t, w.Close())
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	assert.Empty(t, string(got))

	var none *Bar
	none.Show("", 0)
	none.End()
	Start(nil).Show("", 2)
}

// TestOnATerminal checks the output on a terminal.
func TestOnATerminal(t *testing.T) {
	master, slave := terminal(t)
	b := Start(slave)
	b.Show("round 1", 0)
	b.Show("round 2", 0.25)
	b.Show("round 3", 7)
	b.End()
	b.End()
	require.NoError(t, slave.Close())
	var all strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := master.Read(buf)
		all.Write(buf[:n])
		if err != nil {
			break // EIO: the other side is closed
		}
	}
	assert.Contains(t, all.String(), "round 1")
	assert.Contains(t, all.String(), "round 2  25%")
	assert.Contains(t, all.String(), "round 3  99%")
}

// terminal returns both sides of a pseudo-terminal.
func terminal(t *testing.T) (master, slave *os.File) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminal here: ", err)
	}
	t.Cleanup(func() { master.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	return master, slave
}
