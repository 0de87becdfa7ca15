package posixshim

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestContain checks that a call which panics fails with EIO, that one line is printed, and that the process counts
// as crashed.
func TestContain(t *testing.T) {
	var said []string
	p := New(nil, func(format string, a ...any) { said = append(said, fmt.Sprintf(format, a...)) })
	assert.False(t, p.Crashed())
	err := func() (err error) {
		defer func() { err = p.Contain("pread", recover()) }()
		panic("as deliberate as it can be")
	}()
	assert.ErrorIs(t, err, syscall.EIO)
	assert.True(t, p.Crashed())
	assert.Len(t, said, 1)
	assert.Contains(t, said[0], "internal error during pread, please report it: as deliberate as it can be, at nvmecr/posixshim.TestContain")
}
