package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// askSpace is a rank that checks the reported free space before and after it writes its file.
const askSpace = `
import os
path = "/nvmecr/file.%s" % os.environ["OMPI_COMM_WORLD_RANK"]
def space():
    s = os.statvfs("/nvmecr")
    return s.f_blocks * s.f_frsize >> 20, s.f_bfree * s.f_frsize >> 20, s.f_bavail * s.f_frsize >> 20
def check(what, ok):
    if not ok: print(what, space())
check("before", space()[0] > 230 and 100 < space()[2] < 130)
f = open(path, "wb")
check("open", space()[0] > 230 and 100 < space()[2] < 120)
f.write(bytes(60 << 20))
f.flush()
os.fsync(f.fileno())
check("written", space()[0] > 230 and space()[1] < 200 and 40 < space()[2] < 60)
`

// TestSpaceOfTheTree checks that all processes get the space of the whole store, and the space that they can write to themselves.
func TestSpaceOfTheTree(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	script := "set -e; " + strings.Join(demo.MPIRun("mpirun.openmpi", 2, "python3", "-c", `"$RANK"`), " ") + `
df -m --output=size,avail,used /nvmecr | tail -1
if cp /nvmecr/file.0 /nvmecr/copy; then exit 1; fi; rm /nvmecr/copy /nvmecr/file.*`
	r := call(t, s, "run", "--view=job", "--size", "256M", "--", "env", "RANK="+askSpace, "sh", "-c", script)
	var size, avail, used int
	_, err := fmt.Sscan(r.ok(t), &size, &avail, &used)
	require.NoError(t, err, r.stdout)
	assert.Equal(t, []int{239, 17}, []int{size, avail})
	assert.InDelta(t, 120, used, 2)
	assert.Contains(t, r.stderr, "what processes without a rank can write to")
	assert.Contains(t, call(t, s, "stat").ok(t), "3 partitions: ")
}

// TestTreeNeedsSharedTargets checks that one tree is refused on targets that only one process can open.
func TestTreeNeedsSharedTargets(t *testing.T) {
	call(t, newStage(t), "run", "--view=job", "--target", "mem:64M", "--", "true").refused(t, "mem:67108864 can be opened by one process only")
}

// TestSpaceOfRanksThatAreNoMore checks that ranks of a larger job get the space of files that were removed since the last job, and that
// the remaining files are intact.
func TestSpaceOfRanksThatAreNoMore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	run := func(ranks int, line string) {
		mpirun := strings.Join(demo.MPIRun("mpirun.openmpi", ranks, "sh", "-c", `"$LINE"`), " ")
		call(t, s, "run", "--view=job", "--size", "160M", "--", "env", "LINE="+line, "sh", "-c", mpirun).ok(t)
	}
	run(4, "r=$OMPI_COMM_WORLD_RANK; yes $r | head -c 1M > /nvmecr/kept.$r; head -c 30M /dev/zero > /nvmecr/gone.$r")
	sh(t, s, "rm /nvmecr/gone.*").ok(t)
	run(9, "yes new | head -c 8M > /nvmecr/new.$OMPI_COMM_WORLD_RANK") // new ranks would have only 3 MiB each without the removal
	sh(t, s, "set -e; for r in 0 1 2 3; do yes $r | head -c 1M | cmp - /nvmecr/kept.$r; done; for r in 0 1 2 3 4 5 6 7 8; do yes new | head -c 8M | cmp - /nvmecr/new.$r; done").ok(t)
	call(t, s, "fsck").ok(t)
}
