package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/demo"
	"nvmecr/internal/owner"
	"nvmecr/internal/store"
)

// TestOrphans checks processes that outlive the process which has forked them: a background job of a script, a daemon, and a worker
// whose parent is killed. What they write is in the files of their rank.
func TestOrphans(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs("testdata/orphans.sh")
	require.NoError(t, err)
	for _, view := range []config.View{config.ViewRank, config.ViewJob} {
		for _, ranks := range []int{1, 2} {
			for _, fuse := range []bool{true, false} {
				t.Run(fmt.Sprintf("view %s, ranks %d, fuse %v", view, ranks, fuse), func(t *testing.T) {
					s := newStage(t)
					s.View = view
					argv := []string{"sh", script, s.Dir, python}
					if ranks > 1 {
						argv = demo.MPIRun("mpirun.openmpi", ranks, argv...)
					}
					r := call(t, s, append([]string{"run", "--name", "orphans", fmt.Sprintf("--fuse=%v", fuse), "--"}, argv...)...)
					out := r.ok(t)
					var want []string
					for rank := range ranks {
						want = append(want, fmt.Sprintf("late %d", rank), fmt.Sprintf("first %d", rank), fmt.Sprintf("1 daemon %d", rank), fmt.Sprintf("1 worker %d", rank))
						for thread := range 3 {
							line := fmt.Sprintf("10 thread %d of %d", thread, rank)
							want = append(want, line, line)
						}
					}
					slices.Sort(want)
					got := strings.Split(strings.TrimSpace(out), "\n")
					slices.Sort(got)
					assert.Equal(t, want, got, r.stderr)
				})
			}
		}
	}
}

// TestOrphanBehindTheRun checks that a child whose parent has ended goes on behind the run if the target is external and nvmecr serve
// made its calls when the run ended. The server ends after the child.
func TestOrphanBehindTheRun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:64M")
	script := `dir=` + s.Dir + `
		sh -c '(while kill -0 $$ 2> $0/errors; do sleep 0.01; done; echo one > /nvmecr/log; echo > $0/one; exec 1>&-
			while [ ! -e $0/go ]; do sleep 0.01; done; echo two >> /nvmecr/log; echo $? > $0/two) 2>&- &
			echo first > /nvmecr/first; kill -KILL $$' $dir
		while [ ! -e $dir/one ]; do sleep 0.01; done; echo ${NVMECR_RUN}`
	run := strings.TrimSpace(sh(t, s, script, "--name", "behind", "--target", target).ok(t))
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "go"), nil, 0o600))
	status := func() string { b, _ := os.ReadFile(filepath.Join(s.Dir, "two")); return string(b) }
	require.Eventually(t, func() bool { return status() != "" }, hang, time.Millisecond)
	assert.Equal(t, "0\n", status())
	assert.Equal(t, "one\ntwo\n", call(t, s, "cat", "--name", "behind", "--target", target, "/log").ok(t))
	group := owner.Directory(store.LockGroup(uuid.MustParse(run)))
	require.Eventually(t, func() bool { _, err := os.Stat(group); return os.IsNotExist(err) }, hang, 10*time.Millisecond)
}
