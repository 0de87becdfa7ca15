package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestIndexOfAnotherVersion checks that a rank whose libraries are of another build than the index is refused with a message that says so,
// and that other ranks go on.
func TestIndexOfAnotherVersion(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	agent := otherhost(t, s)
	proxy, err := filepath.Abs("testdata/otherversion.py")
	require.NoError(t, err)
	_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:256M")
	target = strings.Replace(target, "traddr:127.0.0.1", "traddr:localhost", 1)
	for _, side := range []string{"client", "index"} {
		t.Run("of the "+side, func(t *testing.T) {
			r := call(t, s, "run", "--view=job", "--name", side, "--target", target, "--takeover", "--", "env", "STAGE="+s.Dir, "bash", "-c", `
				export PMI_SIZE=2
				exec 3< <(exec `+python+` `+proxy+` `+side+`)
				helper=$!
				read -r address <&3
				`+agent+` node7 env NVMECR_INDEX=$address PMI_RANK=1 sh -c "'echo lost > /nvmecr/other'"
				status=$?
				kill $helper
				PMI_RANK=0 sh -c 'echo kept > /nvmecr/mine'
				cat /nvmecr/*
				exit $status`)
			assert.Equal(t, 2, r.code, "that of the shell: %s", r.stderr)
			assert.Equal(t, "kept\n", r.stdout)
			assert.Contains(t, r.stderr, "version 2 of the tree's protocol, and this program has 1; use one build of nvmecr in the whole job")
			call(t, s, "release", "--name", side, "--target", target).ok(t)
		})
	}
}
