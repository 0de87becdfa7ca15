package command

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestUntilEnd(t *testing.T) {
	var out bytes.Buffer
	ctx, end := context.WithCancel(t.Context())
	defer end()
	w := untilEnd{ctx, &out}
	for _, text := range []string{"before", "after"} {
		n, err := w.Write([]byte(text))
		require.NoError(t, err)
		assert.Equal(t, len(text), n)
		end()
	}
	assert.Equal(t, "before", out.String())
}
