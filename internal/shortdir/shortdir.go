// Package shortdir makes directories for the sockets of tests: the path of a
// socket has at most 107 bytes, and those of other temporary directories may be
// longer already.
package shortdir

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// New returns a directory in /tmp that is removed at the end of the test.
func New(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/tmp", "nvmecr-test-")
	require.NoError(tb, err)
	tb.Cleanup(func() { assert.NoError(tb, os.RemoveAll(dir)) })
	return dir
}
