package initiator

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRunnable(t *testing.T) {
	for line, want := range map[string]int{
		"0.20 0.18 0.12 2/80 11206\n": 2,
		"0.20 0.18 0.12 117/2080 1\n": 117,
	} {
		got, ok := runnable([]byte(line))
		assert.True(t, ok)
		assert.Equal(t, want, got)
	}
	for _, line := range []string{"", "0.20", "0.20 0.18 0.12 ", "0.20 0.18 0.12 /80 11206"} {
		_, ok := runnable([]byte(line))
		assert.False(t, ok, line)
	}
}
