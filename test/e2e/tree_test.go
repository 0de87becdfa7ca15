package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// treeProgram builds testdata/tree.c for an MPI.
func treeProgram(t *testing.T, dir, mpi string) string { return mpiProgram(t, dir, mpi, "tree") }

// mpiProgram builds a program of testdata for an MPI.
func mpiProgram(t *testing.T, dir, mpi, name string) string {
	compiler := "mpicc." + mpi
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skipf("%s is not installed: make deps", compiler)
	}
	program := filepath.Join(dir, name+"-"+mpi)
	out, err := exec.Command(compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/"+name+".c").CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// ranks runs a program with n ranks in the tree of the job.
func ranks(t *testing.T, s *demo.Stage, mpi string, n int, program string, args ...string) result {
	return call(t, s, append([]string{"run", "--view=job", "--"}, demo.MPIRun("mpirun."+mpi, n, append([]string{program}, args...)...)...)...)
}

// TestTree checks that ranks have one tree, and that a later run with any number of ranks has it, too.
func TestTree(t *testing.T) {
	t.Parallel()
	for _, mpi := range []string{"openmpi", "mpich"} {
		t.Run(mpi, func(t *testing.T) {
			s := newStage(t)
			program := treeProgram(t, s.Dir, mpi)
			require.Equal(t, "ok\n", ranks(t, s, mpi, 3, program, "/nvmecr", "write").ok(t))
			for _, n := range []int{2, 5, 1, 4} {
				require.Equal(t, "ok\n", ranks(t, s, mpi, n, program, "/nvmecr", "check").ok(t), "%d ranks", n)
			}
		})
	}
}

// TestTreeMappedByRanks checks that no write of ranks to one mapped file is lost, also if they share pages.
func TestTreeMappedByRanks(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	program := mpiProgram(t, s.Dir, "openmpi", "mapped")
	for range 2 {
		require.Equal(t, "ok\n", ranks(t, s, "openmpi", 3, program, "/nvmecr/f").ok(t))
	}
}

// TestTreeOfScripts checks that a job script and its programs have one tree.
func TestTreeOfScripts(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	program := treeProgram(t, s.Dir, "openmpi")
	line := strings.Join(demo.MPIRun("mpirun.openmpi", 3, program, "/nvmecr/run", "write"), " ")
	again := strings.Join(demo.MPIRun("mpirun.openmpi", 2, program, "/nvmecr/run", "check"), " ")
	out := sh(t, s, `set -e; mkdir -p /nvmecr/run/in; echo parameters > /nvmecr/run/in/file; `+line+`; ls /nvmecr/run | tr '\n' ' '
cat /nvmecr/run/in/file; cp /nvmecr/run/shared /nvmecr/run/copy; cmp /nvmecr/run/shared /nvmecr/run/copy; mv /nvmecr/run/ck /nvmecr/run/ck2; mv /nvmecr/run/ck2 /nvmecr/run/ck; `+
		again+` > /nvmecr/run/out; cat /nvmecr/run/out; rm -r /nvmecr/run/ck; ls /nvmecr/run | tr '\n' ' '`, "--view=job").ok(t)
	assert.Equal(t, "ok\nck head in shared parameters\nok\ncopy head in out shared ", out)
}

// TestTreeFromOutside checks that commands show the tree, and that a store is opened with the view that it was formatted with.
func TestTreeFromOutside(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	program := treeProgram(t, s.Dir, "openmpi")
	require.Equal(t, "ok\n", ranks(t, s, "openmpi", 3, program, "/nvmecr", "write").ok(t))
	names := call(t, s, "ls", "/").ok(t)
	for _, name := range []string{"ck", "head", "shared"} {
		assert.Contains(t, names, name)
	}
	out := filepath.Join(s.Dir, "out")
	call(t, s, "cp", "/", out).ok(t)
	shared, err := os.ReadFile(filepath.Join(out, "shared"))
	require.NoError(t, err)
	assert.Equal(t, string(shared), call(t, s, "cat", "/shared").ok(t))
	local := demo.MPIRun("mpirun.openmpi", 2, program, out, "check")
	got, err := exec.Command(local[0], local[1:]...).CombinedOutput()
	require.NoError(t, err, string(got))
	call(t, s, "run", "--view=rank", "--", "true").refused(t, "--view=job")
	assert.Equal(t, "head\n", sh(t, s, "cd /nvmecr; ls head").ok(t), "the store knows what it is")
}

// TestPartitionsOfATree checks that commands distinguish the tree from its partitions, and name damaged files as programs do.
func TestPartitionsOfATree(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	sh(t, s, `mkdir /nvmecr/d; for r in 0 1; do PMI_RANK=$r PMI_SIZE=2 sh -c 'echo "what rank $PMI_RANK wrote" > /nvmecr/d/f$PMI_RANK'; done`, "--view=job", "--size", "64M").ok(t)
	assert.NotContains(t, call(t, s, "ls").ok(t), "RANK")
	assert.True(t, strings.HasPrefix(call(t, s, "stat", "/d/f1").ok(t), "/d/f1\n"))
	for _, name := range []string{"index", "singleton"} {
		assert.Contains(t, call(t, s, "ls", "--rank", name).ok(t), "index  drwxr-xr-x")
	}
	for _, command := range []string{"stat", "verify", "fsck"} {
		out := call(t, s, command).ok(t)
		assert.Contains(t, out, "\nindex", command)
		assert.NotContains(t, out, "singleton", command)
	}
	call(t, s, "cat", "--rank", "1", "/d/f1").refused(t, "rank 1", "leave --rank out")

	image, err := os.ReadFile(s.Image("default"))
	require.NoError(t, err)
	spoil(t, s, int64(bytes.Index(image, []byte("what rank 1 wrote\n"))), 1)
	r := call(t, s, "verify")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.stdout, "rank 1: /d/f1: bytes 0 to ")
	call(t, s, "cat", "/d/f1").refused(t, "/d/f1", "rank 1")
	assert.Equal(t, "what rank 0 wrote\n", call(t, s, "cat", "/d/f0").ok(t))
}

// TestTreeOnOtherHosts checks that ranks on another host reach the index by TCP, together with the script on this host, and only with the
// secret of the run.
func TestTreeOnOtherHosts(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	agent := otherhost(t, s)
	_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:256M")
	target = strings.Replace(target, "traddr:127.0.0.1", "traddr:localhost", 1) // a name, which launchers carry elsewhere
	for _, l := range launchers(t, s) {
		t.Run(l.mpi, func(t *testing.T) {
			program := treeProgram(t, s.Dir, l.mpi)
			mpirun := strings.Join(onNode7(l.mpi, agent, 3), " ")
			script := `set -e; mkdir -p /nvmecr/in; echo from the script > /nvmecr/in/file; ` +
				mpirun + ` ` + program + ` /nvmecr/in write; ` + mpirun + ` sh -c 'hostname; cat /nvmecr/in/file'; ` +
				strings.Join(demo.MPIRun("mpirun."+l.mpi, 2, program, "/nvmecr/in", "check"), " ") + `; echo $NVMECR_INDEX`
			r := call(t, s, "run", "--fresh", "--view=job", "--name", l.mpi, "--target", target, "--takeover", "--", "env", "STAGE="+s.Dir, "sh", "-c", script)
			lines := strings.Split(strings.TrimSpace(r.ok(t)), "\n")
			require.Len(t, lines, 9, r.stdout)
			assert.Equal(t, []string{"ok", "ok"}, []string{lines[0], lines[7]})
			assert.ElementsMatch(t, slices.Concat(slices.Repeat([]string{"node7"}, 3), slices.Repeat([]string{"from the script"}, 3)), lines[1:7])
			_, port, err := net.SplitHostPort(lines[8])
			require.NoError(t, err)
			assert.NotEmpty(t, port)
			call(t, s, "release", "--name", l.mpi, "--target", target).ok(t)
		})
	}
}

// onNode7 returns a command line that starts n ranks on the other host.
func onNode7(mpi, agent string, n int) []string {
	if mpi == "mpich" {
		return []string{"mpirun.mpich", "-n", strconv.Itoa(n), "-hosts", "node7:" + strconv.Itoa(n), "-launcher", "ssh", "-launcher-exec", agent}
	}
	return []string{"mpirun.openmpi", "-n", strconv.Itoa(n), "--host", "node7:" + strconv.Itoa(n), "--mca", "plm_rsh_agent", agent, "--allow-run-as-root"}
}

// nodeScript is the command of a launcher on each node: two of four processes, each of which waits for a file of every process.
const nodeScript = `for r in $0; do RANK=$r WORLD_SIZE=4 LOCAL_RANK=$r TORCHELASTIC_RUN_ID=job sh -c '
	set -e; mkdir -p /nvmecr/d; echo "of $RANK" > /nvmecr/d/$RANK
	for r in 0 1 2 3; do until [ -s /nvmecr/d/$r ]; do sleep 0.05; done; done; cat /nvmecr/d/*
	touch $STAGE/done.$RANK; for r in 0 1 2 3; do until [ -e $STAGE/done.$r ]; do sleep 0.05; done; done' & done; wait`

// TestRunOnEachNode checks that runs with the same job id, given or that of a Slurm step, are one run of the store, on one host or on
// several.
func TestRunOnEachNode(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	agent := otherhost(t, s)
	_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:256M")
	target = strings.Replace(target, "traddr:127.0.0.1", "traddr:localhost", 1)
	for _, c := range []struct {
		hosts []string
		id    string
		flags []string
		env   []string // in addition to SLURM_PROCID
	}{
		{[]string{"", "node7"}, "4711", []string{"--job-id", "4711"}, nil},
		{[]string{"", ""}, "slurm-7.0.0", nil, []string{"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2"}},
	} {
		hosts := c.hosts
		t.Run(strings.Join(hosts, "+"), func(t *testing.T) {
			for r := range 4 { // written by the earlier job
				_ = os.Remove(filepath.Join(s.Dir, "done."+strconv.Itoa(r)))
			}
			run := slices.Concat([]string{"run", "--fresh"}, c.flags, []string{"--view=job", "--name", "nodes", "--target", target, "--", "sh", "-c", nodeScript})
			var jobs []*demo.Job
			for i, host := range hosts {
				line := append(append([]string{s.Nvmecr}, run...), []string{"0 1", "2 3"}[i])
				if host != "" {
					line = append([]string{agent, host, "env", "XDG_STATE_HOME=" + filepath.Join(s.Dir, host)}, quoted(line)...)
				}
				job, err := s.Start(line, append(c.env, "SLURM_PROCID="+strconv.Itoa(i), "STAGE="+s.Dir)...)
				require.NoError(t, err)
				jobs = append(jobs, job)
			}
			joined := 0
			for i := range jobs {
				job := jobs[len(jobs)-1-i] // after a failure the others would wait
				require.NoError(t, job.Wait(t.Context()), "%v", job.Stderr.Lines())
				lines := job.Stdout.Lines()
				assert.Equal(t, []string{"of 0", "of 0", "of 1", "of 1", "of 2", "of 2", "of 3", "of 3"}, slices.Sorted(slices.Values(lines)), "%v", job.Stderr.Lines())
				if strings.Contains(strings.Join(job.Stderr.Lines(), "\n"), fmt.Sprintf("joined job %q", c.id)) {
					joined++
				}
			}
			assert.Equal(t, 1, joined)
		})
	}
	call(t, s, "run", "--job-id", "4711", "--", "true").refused(t, "--target")
}

// quoted quotes a command line for a shell.
func quoted(line []string) (words []string) {
	for _, w := range line {
		words = append(words, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
	}
	return words
}
