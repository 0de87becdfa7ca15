package command

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
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

// TestLastRoundUnlisted checks that the last round fails if the store cannot be read: then the newest checkpoint may not be copied. An earlier
// round does not fail: the target may return.
func TestLastRoundUnlisted(t *testing.T) {
	o, cmd := &drainOptions{}, &cobra.Command{}
	o.bindSets(cmd, "level2", "copies")
	dir := t.TempDir()
	require.NoError(t, cmd.ParseFlags([]string{"--target", "file:" + filepath.Join(dir, "lost"), "--level2", dir}))
	cmd.SetContext(t.Context())
	var said bytes.Buffer
	cmd.SetErr(&said)
	f := &follower{drainOptions: o, cmd: cmd, series: map[string]*seriesState{}, damaged: map[string]bool{}}
	require.NoError(t, f.round(t.Context(), roundDue))
	require.Contains(t, said.String(), "lost")
	require.Error(t, f.round(t.Context(), roundLast))
}
