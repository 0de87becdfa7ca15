package posixshim

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestContain: a panic is EIO, tells where it began, also if a deferred function passes
// it on, and ends all calls after it.
func TestContain(t *testing.T) {
	for name, call := range map[string]func(){
		"at once":   breakDown,
		"passed on": func() { defer passOn(); breakDown() },
	} {
		var said []string
		p := New(nil, func(format string, a ...any) { said = append(said, fmt.Sprintf(format, a...)) })
		assert.False(t, p.Crashed())
		err := func() (err error) {
			defer func() {
				if r := recover(); r != nil {
					err = p.Contain(r)
				}
			}()
			call()
			return nil
		}()
		assert.ErrorIs(t, err, syscall.EIO, name)
		assert.True(t, p.Crashed())
		assert.Len(t, said, 1)
		assert.Contains(t, said[0], "index out of range [3]", name)
		assert.Contains(t, said[0], "posixshim.breakDown:", name)
		assert.Equal(t, 1, strings.Count(said[0], "internal error"))
	}
}

//go:noinline
func breakDown() {
	var empty []int
	_ = empty[indexOf("abc")]
}

func indexOf(s string) int { return len(s) }

func passOn() {
	if r := recover(); r != nil {
		panic(r)
	}
}
