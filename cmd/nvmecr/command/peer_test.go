package command

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPeerSaysErrors checks that a peer reports its errors, continues, and ends without an error when its standard input ends.
func TestPeerSaysErrors(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "melt"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "melt", ".peers"), nil, 0o600)) // a file in place of the directory
	stdin, lifeline := io.Pipe()
	stderr, said := io.Pipe()
	root := newRoot()
	root.SetIn(stdin)
	root.SetErr(said)
	root.SetArgs([]string{"drain", "--peer", "--name", "melt", "--level2", dir})
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(t.Context()) }()
	line, err := bufio.NewReader(stderr).ReadString('\n')
	require.NoError(t, err)
	assert.Contains(t, line, "not a directory")
	go func() { _, _ = io.Copy(io.Discard, stderr) }() // it may repeat the message
	require.NoError(t, lifeline.Close())
	require.NoError(t, <-ended)
}
