package command

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRoundWriter checks that a round prints only messages that the previous round has not printed, and none after it was canceled.
func TestRoundWriter(t *testing.T) {
	var out bytes.Buffer
	ctx, end := context.WithCancel(t.Context())
	defer end()
	w := roundWriter{ctx, &out, map[string]bool{"as before\n": true}, map[string]bool{}}
	for _, text := range []string{"as before\n", "new\n", "after\n"} {
		n, err := w.Write([]byte(text))
		require.NoError(t, err)
		assert.Equal(t, len(text), n)
		if text == "new\n" {
			end()
		}
	}
	assert.Equal(t, "new\n", out.String())
	assert.Equal(t, map[string]bool{"as before\n": true, "new\n": true}, w.said, "the next one does not say it either")
}
