package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// input writes a random file named in to the stage's directory.
func input(t *testing.T, s *demo.Stage, random *rand.Rand, size int) {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "in"), b, 0o600))
}

// seeded returns random numbers, and logs the seed.
func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// TestTreeOfLargeFilesWithoutARank runs programs without a launcher that write much data before, while and after ranks write, with a file
// open throughout.
func TestTreeOfLargeFilesWithoutARank(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	program := treeProgram(t, s.Dir, "openmpi")
	input(t, s, seeded(t), 5<<20+12345)
	ranks := func(n int, what string) string {
		return strings.Join(demo.MPIRun("mpirun.openmpi", n, program, "/nvmecr/run", what), " ")
	}
	script := `set -e; cd ` + s.Dir + `; mkdir /nvmecr/run
dd if=in of=/nvmecr/before bs=3M
{ cat in; until [ -e go ]; do sleep 0.05; done; cat in; } | dd of=/nvmecr/across bs=100K iflag=fullblock & across=$!
` + ranks(3, "write") + `; cmp in /nvmecr/before; touch go; wait $across
dd if=in of=/nvmecr/after bs=64K oflag=append; ` + ranks(2, "check") + `
cmp in /nvmecr/after; cat in in | cmp - /nvmecr/across`
	assert.Equal(t, "ok\nok\n", sh(t, s, script, "--view=job").ok(t))
	assert.Equal(t, "", sh(t, s, "cd "+s.Dir+"; cmp in /nvmecr/before; cmp in /nvmecr/after; cat in in | cmp - /nvmecr/across").ok(t), "a later run")
}

// TestTreeKillsWithoutARank kills a program without a launcher at random times. Its synced data must exist.
func TestTreeKillsWithoutARank(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	random := seeded(t)
	input(t, s, random, 2<<20+321)
	writer := `i=0; while :; do dd if=in of=/nvmecr/$1.$i bs=300K conv=fsync 2>/dev/null && echo $1.$i >> done; i=$((i+1)); done`
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "writer"), []byte(writer), 0o600))
	script := `set -e; cd ` + s.Dir + `; touch done; trap 'kill -KILL -$pid' EXIT
for round in 1 2 3; do
	setsid sh writer $round & pid=$!
	sleep $1; cp in /nvmecr/copy.$round; cmp in /nvmecr/copy.$round
	sleep $2; kill -KILL -$pid; wait $pid || true
	shift 2
done
for f in $(cat done); do cmp in /nvmecr/$f; done
trap - EXIT; wc -l < done`
	args := []string{"run", "--view=job", "--", "sh", "-c", script, "sh"}
	for range 6 {
		args = append(args, fmt.Sprintf("%.3f", (time.Duration(random.IntN(1500))*time.Millisecond).Seconds()))
	}
	out := call(t, s, args...).ok(t)
	assert.NotEqual(t, "0", strings.TrimSpace(out))
	assert.Equal(t, "", sh(t, s, "cd "+s.Dir+"; for f in $(cat done); do cmp in /nvmecr/$f; done").ok(t), "a later run")
}
