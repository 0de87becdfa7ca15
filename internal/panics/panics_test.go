package panics

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestContain checks that a panic becomes EIO with its context and place, also if a deferred function passes it on.
func TestContain(t *testing.T) {
	for name, f := range map[string]func(){
		"at once":   breakDown,
		"passed on": func() { defer passOn(); breakDown() },
	} {
		err := func() (err error) {
			defer Contain("a read", &err)
			f()
			return nil
		}()
		assert.ErrorIs(t, err, syscall.EIO, name)
		assert.ErrorContains(t, err, "internal error during a read", name)
		assert.ErrorContains(t, err, "index out of range [3]", name)
		assert.ErrorContains(t, err, "panics.breakDown:", name)
		assert.Equal(t, 1, strings.Count(err.Error(), "internal error"), name)
	}
	err := func() (err error) {
		defer Contain("a read", &err)
		return syscall.ENOENT
	}()
	assert.Equal(t, syscall.ENOENT, err, "no panic")
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
