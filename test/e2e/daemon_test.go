package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/busy"
)

// TestDaemon checks that a process which outlives its run keeps its open files if the target is external, also when the run is killed.
// The server with these files ends after the process, and leaves nothing.
func TestDaemon(t *testing.T) {
	t.Parallel()
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed %v", killed), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:64M")
			goOn := filepath.Join(s.Dir, "go")
			end := ""
			if killed {
				end = "kill -KILL $PPID; exec 1>&- 2>&-; "
			}
			script := `(exec 1>/nvmecr/log 2>&-; while [ ! -e ` + goOn + ` ]; do sleep 0.01; done; echo late; echo $? > ` + goOn + `.status) &
				echo dir=${NVMECR_EXPORT%/view}; echo first >> /nvmecr/first; ` + end
			r := sh(t, s, script, "--name", "daemon", "--target", target)
			dir, found := strings.CutPrefix(strings.TrimSpace(r.stdout), "dir=")
			require.True(t, found, "%s%s", r.stdout, r.stderr)
			require.NoError(t, os.WriteFile(goOn, nil, 0o600))
			status := func() string { b, _ := os.ReadFile(goOn + ".status"); return string(b) }
			require.Eventually(t, func() bool { return status() != "" }, hang, time.Millisecond)
			assert.Equal(t, "0\n", status(), r.stderr)
			assert.Equal(t, "late\n", call(t, s, "cat", "--name", "daemon", "--target", target, "/log").ok(t))
			assert.Equal(t, "first\n", call(t, s, "cat", "--name", "daemon", "--target", target, "/first").ok(t))
			if !killed && dir != "" {
				require.Eventually(t, func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) }, hang, 10*time.Millisecond)
			}
		})
	}
}

// TestServerEndsWithTheRun checks that a run does not wait for its server if all processes have ended.
func TestServerEndsWithTheRun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:64M")
	clock := busy.Start(t)
	dir := strings.TrimSpace(sh(t, s, `sh -c 'exec echo text' > /nvmecr/log; echo ${NVMECR_EXPORT%/view}`, "--target", target).ok(t))
	assert.Less(t, clock.Now(), 10*time.Second)
	assert.NoDirExists(t, dir)
}
