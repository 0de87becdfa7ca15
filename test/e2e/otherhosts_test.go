package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// otherhost returns a script that starts commands on what counts as another host.
func otherhost(t *testing.T, s *demo.Stage) string {
	path, err := filepath.Abs("testdata/otherhost.sh")
	require.NoError(t, err)
	cmd := exec.Command(path, "node7", "true")
	cmd.Env = append(os.Environ(), "STAGE="+s.Dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("no namespaces for another host: %v: %s", err, out)
	}
	return path
}

// serversOf returns the processes that serve a view on hosts other than that of the run.
func serversOf(t *testing.T, view string) (pids []int) {
	return serversWith(t, "NVMECR_EXPORT="+view)
}

// serversWith returns such processes whose environment has a variable.
func serversWith(t *testing.T, variable string) (pids []int) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, dir := range processes {
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // may have ended
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if strings.HasSuffix(string(command), "\x00--until-idle\x00") && strings.Contains(string(environ), variable+"\x00") {
			pid, err := strconv.Atoi(filepath.Base(dir))
			require.NoError(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestViewOnOtherHosts checks that ranks on another host have their files in a view there, at the same path. The first rank has it
// mounted, and it is unmounted after the last one.
func TestViewOnOtherHosts(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	needsView(t, s, programsHere)
	agent := otherhost(t, s)
	_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:256M")
	target = strings.Replace(target, "traddr:127.0.0.1", "traddr:localhost", 1) // not a loopback address, so that the settings are passed to other hosts
	script := filepath.Join(s.Dir, "rank.sh")
	require.NoError(t, os.WriteFile(script, []byte(`r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
echo of $r > /nvmecr/mine; cp /bin/echo /nvmecr/echo; cp /bin/sleep /nvmecr/sleep
echo $(hostname) $(env -u LD_PRELOAD readlink $NVMECR_EXPORT/self) $(cat $NVMECR_EXPORT/self/mine) $(/nvmecr/echo ran)
echo $NVMECR_EXPORT > $STAGE/view.$r
while [ ! -e $STAGE/go ]; do sleep 0.01; done
exec env LD_PRELOAD= $NVMECR_EXPORT/self/sleep $NAP
`), 0o600))
	naps := map[string]string{"openmpi": "12", "mpich": "0"} // once longer than the server stays idle: the program uses only the view
	var all []string
	for _, l := range launchers(t, s) {
		t.Run(l.mpi, func(t *testing.T) {
			mpirun := []string{"mpirun." + l.mpi, "-n", "3", "--host", "node7:3", "--mca", "plm_rsh_agent", agent, "--allow-run-as-root"}
			if l.mpi == "mpich" {
				mpirun = []string{"mpirun." + l.mpi, "-n", "3", "-hosts", "node7:3", "-launcher", "ssh", "-launcher-exec", agent}
			}
			job, err := s.Start(slices.Concat(s.RunFlags("hosts", "--target", target, "--log", "info", "--fresh"), mpirun, []string{"sh", script}), "STAGE="+s.Dir, "NAP="+naps[l.mpi])
			require.NoError(t, err)
			var views [3]string
			require.Eventually(t, func() bool {
				for rank := range views {
					b, _ := os.ReadFile(filepath.Join(s.Dir, "view."+strconv.Itoa(rank)))
					views[rank] = strings.TrimSpace(string(b))
				}
				return !slices.Contains(views[:], "") || job.Ended()
			}, hang, time.Millisecond)
			require.False(t, job.Ended(), "%v", job.Stderr.Lines())
			assert.Len(t, serversOf(t, views[0]), 1)
			assert.NoDirExists(t, filepath.Join(views[0], "self/mine"), "on this host")
			require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "go"), nil, 0o600))
			// From here on only programs without the library use the view.
			require.NoError(t, job.Wait(t.Context()), "%v", job.Stderr.Lines())
			lines := job.Stdout.Lines()
			slices.Sort(lines)
			assert.Equal(t, []string{"node7 0of3 of 0 ran", "node7 1of3 of 1 ran", "node7 2of3 of 2 ran"}, lines)
			all = append(all, views[0])
			for _, name := range []string{"go", "view.0", "view.1", "view.2"} {
				require.NoError(t, os.Remove(filepath.Join(s.Dir, name)))
			}
		})
	}
	for _, view := range all {
		require.Eventually(t, func() bool { return len(serversOf(t, view)) == 0 }, hang, 10*time.Millisecond)
	}
}

// TestViewOnOtherHostKilled kills the server on another host, as the end of a Slurm step does: the next process that uses the mount has
// the view mounted again.
func TestViewOnOtherHostKilled(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	needsView(t, s, programsHere)
	agent := otherhost(t, s)
	job, err := s.Start([]string{s.Nvmecr, "run", "--", "sh", "-c", `exec env -u LD_PRELOAD ` + agent +
		` node7 env LD_PRELOAD=$LD_PRELOAD sh $STAGE/script`}, "STAGE="+s.Dir)
	script := `echo one > /nvmecr/a; echo $NVMECR_EXPORT; while [ ! -e $STAGE/go ]; do sleep 0.01; done
		env -i cat $NVMECR_EXPORT/self/a; echo $?; (echo two >> /nvmecr/a); cat /nvmecr/a > /dev/null; env -i cat $NVMECR_EXPORT/self/a`
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "script"), []byte(script), 0o600))
	require.NoError(t, err)
	awaitLines(t, job, 1)
	view := job.Stdout.Lines()[0]
	servers := serversOf(t, view)
	require.Len(t, servers, 1)
	require.NoError(t, syscall.Kill(servers[0], syscall.SIGKILL))
	require.Eventually(t, func() bool { return len(serversOf(t, view)) == 0 }, hang, time.Millisecond)
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "go"), nil, 0o600))
	require.NoError(t, job.Wait(t.Context()), "%v", job.Stderr.Lines())
	assert.Equal(t, []string{view, "1", "one", "two"}, job.Stdout.Lines())
}

// TestExecuteFirstOnOtherHost checks that executing a program under the mount, as its first use on another host, mounts the view.
func TestExecuteFirstOnOtherHost(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	needsView(t, s, programsHere)
	agent := otherhost(t, s)
	script := filepath.Join(s.Dir, "script")
	require.NoError(t, os.WriteFile(script, []byte("exec /nvmecr/echo ran on $(hostname)"), 0o600))
	job, err := s.Start([]string{s.Nvmecr, "run", "--", "sh", "-c", `cp /bin/echo /nvmecr/echo; exec env -u LD_PRELOAD ` + agent +
		` node7 env LD_PRELOAD=$LD_PRELOAD sh $STAGE/script`}, "STAGE="+s.Dir)
	require.NoError(t, err)
	require.NoError(t, job.Wait(t.Context()), "%v", job.Stderr.Lines())
	assert.Equal(t, []string{"ran on node7"}, job.Stdout.Lines())
}

// TestOrphanOnOtherHost checks that nvmecr serve makes the calls of a child whose parent was killed also on another host, with and
// without a view, and ends after the child.
func TestOrphanOnOtherHost(t *testing.T) {
	t.Parallel()
	for _, fuse := range []bool{true, false} {
		t.Run(fmt.Sprintf("fuse %v", fuse), func(t *testing.T) {
			s := newRankStage(t)
			agent := otherhost(t, s)
			script := `sh -c '(while kill -0 $$ 2> $STAGE/errors; do sleep 0.01; done; echo late > /nvmecr/late; cat /nvmecr/first /nvmecr/late > $STAGE/out; echo > $STAGE/done) &
				echo first > /nvmecr/first; kill -KILL $$'
				while [ ! -e $STAGE/done ]; do sleep 0.01; done; cat $STAGE/out; echo $NVMECR_RUN`
			require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "script"), []byte(script), 0o600))
			job, err := s.Start([]string{s.Nvmecr, "run", fmt.Sprintf("--fuse=%v", fuse), "--", "sh", "-c", `exec env -u LD_PRELOAD ` + agent +
				` node7 env LD_PRELOAD=$LD_PRELOAD sh $STAGE/script`}, "STAGE="+s.Dir)
			require.NoError(t, err)
			require.NoError(t, job.Wait(t.Context()), "%v", job.Stderr.Lines())
			out := job.Stdout.Lines()
			require.Len(t, out, 3, "%v", job.Stderr.Lines())
			assert.Equal(t, []string{"first", "late"}, out[:2], "%v", job.Stderr.Lines())
			require.Eventually(t, func() bool { return len(serversWith(t, "NVMECR_RUN="+out[2])) == 0 }, hang, 10*time.Millisecond)
		})
	}
}
