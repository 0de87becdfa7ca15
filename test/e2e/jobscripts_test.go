package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/demo"
)

// The scripts of docs/job-scripts.md and docs/parallel-fs.md, run as they are printed there.
// ./app is testdata/app.c.

var pages = []string{"../../docs/job-scripts.md", "../../docs/parallel-fs.md"}

// scriptOnPage matches a script: a code block with the interpreter, and a comment with name and purpose.
var scriptOnPage = regexp.MustCompile("(?ms)^```sh\n(#!/bin/sh\n# ([a-z-]+\\.[a-z]+): .*?)^```$")

// jobScripts writes the scripts and the application to the stage's directory, for one MPI, and returns the variables that its commands
// need.
func jobScripts(t *testing.T, s *demo.Stage, mpi string) []string {
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		scripts := scriptOnPage.FindAllSubmatch(text, -1)
		require.NotEmpty(t, scripts, page)
		for _, script := range scripts {
			require.NoError(t, os.WriteFile(filepath.Join(s.Dir, string(script[2])), script[1], 0o600))
		}
	}
	if _, err := exec.LookPath("mpicc." + mpi); err != nil {
		t.Skipf("%s is not installed: make deps", mpi)
	}
	out, err := exec.Command("mpicc."+mpi, "-O2", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(s.Dir, "app"), "testdata/app.c").CombinedOutput()
	require.NoError(t, err, string(out))
	bin := filepath.Join(s.Dir, "bin")
	require.NoError(t, os.MkdirAll(bin, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "mpirun"), []byte("#!/bin/sh\nexec mpirun."+mpi+` "$@"`+"\n"), 0o700))
	return []string{
		"PATH=" + bin + ":" + filepath.Dir(s.Nvmecr) + ":" + os.Getenv("PATH") + ":/usr/sbin",
		// Allow more ranks than cores, root, and several nodes on one host.
		"OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_btl=tcp,self",
		"SLURM_MPI_TYPE=" + map[string]string{"openmpi": "pmix", "mpich": "pmi2"}[mpi],
	}
}

// command runs a command line of the page to its end.
func command(t *testing.T, s *demo.Stage, env []string, line string, extra ...string) result {
	t.Helper()
	argv := strings.Fields(line)
	for _, kv := range env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok && argv[0] == "nvmecr" {
			argv[0] = filepath.Join(strings.Split(path, ":")[1], argv[0])
		}
	}
	job, err := s.Start(argv, append(env[:len(env):len(env)], extra...)...)
	require.NoError(t, err)
	err = job.Wait(t.Context())
	r := result{0, strings.Join(job.Stdout.Lines(), "\n"), strings.Join(job.Stderr.Lines(), "\n")}
	if err != nil {
		r.code = 1
	}
	return r
}

// onPage checks that a page has a command line, and returns it.
func onPage(t *testing.T, line string) string {
	t.Helper()
	var all []byte
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		all = append(all, text...)
	}
	require.Contains(t, string(all), "    $ "+line+"\n")
	return line
}

func TestJobScriptsOfMPIRun(t *testing.T) {
	t.Parallel()
	for _, mpi := range []string{"openmpi", "mpich"} {
		t.Run(mpi, func(t *testing.T) {
			s := newStage(t)
			env := append(jobScripts(t, s, mpi), "NVMECR_SIZE=256M")
			job, loop := onPage(t, "nvmecr run --name melt -- sh job.sh"), onPage(t, "nvmecr run --name melt -- sh loop.sh")

			r := command(t, s, env, job, "APP_DIES=500")
			assert.NotZero(t, r.code)
			assert.Contains(t, r.stdout, "app: 4 ranks, from step 0")
			r = command(t, s, env, job)
			assert.Equal(t, "app: 4 ranks, from step 400\napp: done", r.ok(t))
			assert.Regexp(t, `newest complete( on all 4 ranks)?: /ckpt\.1000\.\*`, r.stderr)

			// The last rank dies once after a start from the beginning and once after a start from step 400.
			loop = strings.Replace(loop, "melt", "loop", 1)
			r = command(t, s, env, loop, "APP_DIES=500", "APP_DIES_BELOW=401")
			assert.NotZero(t, r.code)
			assert.Equal(t, 5, strings.Count(r.stderr, "failed"), r.stderr)
			r = command(t, s, env, strings.Replace(loop, "loop", "second", 1), "APP_DIES=500")
			r.ok(t)
			assert.Regexp(t, `(?s)from step 0.*from step 400\napp: done`, r.stdout)
			assert.Contains(t, r.stderr, "attempt 1, from step 0, failed")
		})
	}
}

// TestParallelFS copies checkpoints out, after the job and while it runs, and back, under both MPIs.
func TestParallelFS(t *testing.T) {
	t.Parallel()
	back := map[config.View]string{
		config.ViewJob:  "nvmecr run --name again -- cp -a /scratch/melt/. /nvmecr/",
		config.ViewRank: "nvmecr run --name again --view=rank -- mpirun -n 4 sh stage-in.sh /scratch/melt",
	}
	for mpi, view := range map[string]config.View{"openmpi": config.ViewJob, "mpich": config.ViewRank} {
		t.Run(mpi+" "+string(view), func(t *testing.T) {
			s := newStage(t)
			s.View = view
			env := append(jobScripts(t, s, mpi), "NVMECR_SIZE=256M")
			scratch := filepath.Join(s.Dir, "scratch")
			here := func(line string) string {
				return strings.Replace(onPage(t, line), "/scratch/melt", scratch, 1)
			}
			level2 := func(line string) string { // without a shell, remove the quotes
				line, _, _ = strings.Cut(onPage(t, line), " #")
				return strings.NewReplacer("/scratch/level2", filepath.Join(s.Dir, "level2"), "'", "").Replace(line)
			}
			command(t, s, env, level2("mkdir /scratch/level2")).ok(t)
			command(t, s, env, level2("nvmecr run --name melt --level2 /scratch/level2 --level2-every 2 --level2-pattern 'ckpt.{step}.*' -- mpirun -n 4 ./app --from 0")).ok(t)
			assert.Regexp(t, `(?m)^ckpt\.\{step\}\.\* +1000 +4 .* store, level2 .* yes$`, command(t, s, env, level2("nvmecr checkpoints --name melt 'ckpt.{step}.*'")).ok(t))
			command(t, s, env, level2("nvmecr drain --name melt --all --keep 3 'ckpt.{step}.*'")).ok(t)
			drained, err := filepath.Glob(filepath.Join(s.Dir, "level2", "melt", "ckpt.*"))
			require.NoError(t, err)
			assert.Len(t, drained, 3)
			assert.Contains(t, command(t, s, env, level2("ls -A /scratch/level2/melt/ckpt.1000")).ok(t), ".nvmecr-set")
			command(t, s, env, level2("mv /scratch/level2/melt /scratch/level2/again        # the checkpoints are another store's now")).ok(t)
			r := command(t, s, env, level2("nvmecr run --name again --level2 /scratch/level2 -- true"))
			r.ok(t)
			assert.Contains(t, r.stderr, ": 1000, copied back from ")
			command(t, s, env, level2("nvmecr restore --name again --checkpoint 900")).ok(t)
			assert.Equal(t, "1000\n", call(t, s, "latest", "--name", "again", "ckpt.{step}.*").ok(t))
			call(t, s, "release", "--name", "again").ok(t)

			require.NoError(t, os.RemoveAll(scratch))
			command(t, s, env, onPage(t, "nvmecr verify --name melt")).ok(t)
			command(t, s, env, here("nvmecr cp --name melt / /scratch/melt")).ok(t)
			command(t, s, env, here(back[view])).ok(t)
			assert.Equal(t, "1000\n", call(t, s, "latest", "--name", "again", "ckpt.{step}.*").ok(t))
			call(t, s, "cp", "--name", "again", "/", "again").ok(t)
			out, err := exec.Command("diff", "-r", scratch, filepath.Join(s.Dir, "again")).CombinedOutput()
			assert.NoError(t, err, string(out))
			// The program itself checks the checkpoint.
			r = command(t, s, env, "nvmecr run --name again -- mpirun -n 4 ./app --from 500")
			assert.Contains(t, r.ok(t), "from step 500\napp: done")
		})
	}
}

// slurm starts Slurm on the stage and returns its variables.
func slurm(t *testing.T, s *demo.Stage, env []string) []string {
	for _, daemon := range []string{"slurmctld", "slurmd", "sbatch", "srun"} {
		if _, err := exec.LookPath(daemon); err != nil {
			if _, err := os.Stat("/usr/sbin/" + daemon); err != nil {
				t.Skipf("Slurm (%s) is not installed: apt-get install slurmctld slurmd slurm-client", daemon)
			}
		}
	}
	dir := filepath.Join(s.Dir, "slurm")
	script, err := filepath.Abs("testdata/slurm.sh")
	require.NoError(t, err)
	const nodes = 2
	command(t, s, env, fmt.Sprintf("%s %s %d %d", script, dir, freePorts(t, nodes+1), nodes)).ok(t)
	env = append(env, "SLURM_CONF="+filepath.Join(dir, "etc", "slurm.conf"))
	t.Cleanup(func() { // before the stage is removed
		if t.Failed() {
			t.Log(command(t, s, env, "sh slurm/state.sh").stdout)
		}
	})
	eventually(t, func() bool {
		return strings.Count(command(t, s, env, "sinfo --noheader --Node --states=idle").stdout, "idle") == nodes
	}, "nodes that are idle: see "+dir+"/log")
	return env
}

// freePorts returns the first of n consecutive free ports.
func freePorts(t *testing.T, n int) int {
	for first := 20000; ; first += n {
		require.Less(t, first, 32000, "no ports are free")
		free := true
		for port := first; port < first+n && free; port++ {
			l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
			if free = err == nil; free {
				require.NoError(t, l.Close())
			}
		}
		if free {
			return first
		}
	}
}

// eventually waits for a condition, for at most hang.
func eventually(t *testing.T, done func() bool, what string) {
	t.Helper()
	for begin := time.Now(); !done(); time.Sleep(50 * time.Millisecond) {
		require.Less(t, time.Since(begin), hang, what)
	}
}

// says waits until a file of the stage has words, and returns its content.
func says(t *testing.T, s *demo.Stage, file, words string) string {
	t.Helper()
	var out []byte
	eventually(t, func() bool {
		out, _ = os.ReadFile(filepath.Join(s.Dir, file)) // does not exist before the job begins
		return strings.Contains(string(out), words)
	}, words)
	return string(out)
}

func TestJobScriptsOfSlurm(t *testing.T) {
	t.Parallel()
	for _, mpi := range []string{"openmpi", "mpich"} {
		t.Run(mpi, func(t *testing.T) {
			s := newStage(t)
			env := slurm(t, s, append(jobScripts(t, s, mpi), "NVMECR_SIZE=256M"))
			_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:512M")
			env = append(env, "TARGET="+target)
			idle := func() {
				eventually(t, func() bool { return command(t, s, env, "squeue --noheader").stdout == "" }, "the end of the job")
			}

			command(t, s, env, onPage(t, "sbatch one.sbatch")).ok(t)
			out := says(t, s, "one.out", ": /ckpt.1000.*")
			assert.Contains(t, out, "app: 2 ranks, from step 0\n")
			idle()

			// A rank dies, and the step ends; the next job continues.
			nodes := onPage(t, "sbatch nodes.sbatch")
			command(t, s, append(env, "APP_DIES=500"), nodes).ok(t)
			idle()
			command(t, s, env, nodes).ok(t)
			out = says(t, s, "nodes.out", "app: done")
			assert.Regexp(t, `(?s)app: 4 ranks, from step 0\n.*app: 4 ranks, from step 400\n`, out)
			idle()

			if mpi != "openmpi" {
				return // once is enough: Slurm delays the requeued job
			}
			// Slurm's signal before the time limit, sent early: the job is requeued, and continues.
			call(t, s, "release", "--name", "melt", "--target", target).ok(t)
			limit := strings.Replace(onPage(t, "sbatch limit.sbatch"), "sbatch ", "sbatch --parsable ", 1)
			id := strings.TrimSpace(command(t, s, append(env, "APP_SLEEP=500"), limit).ok(t))
			eventually(t, func() bool {
				r := call(t, s, "latest", "--target", target, "--name", "melt", "ckpt.{step}.*")
				step, err := strconv.Atoi(strings.TrimSpace(r.stdout))
				return err == nil && step >= 200
			}, "a second checkpoint")
			command(t, s, env, "scancel --batch --signal=USR1 "+id).ok(t)
			out = says(t, s, "limit.out", "app: done")
			assert.Regexp(t, `(?s)app: 4 ranks, from step 0\n.*app: 4 ranks, from step [2-9]00\n`, out)
			assert.NotContains(t, out, "from step 100\n")
		})
	}
}
