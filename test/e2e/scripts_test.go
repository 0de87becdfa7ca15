package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// Job scripts use the mount before, between and after the programs that they start.

const scriptRanks = 4

// launcher starts ranks of testdata/append.c.
type launcher struct{ mpi, program string }

// launchers builds the program for each installed MPI.
func launchers(t *testing.T, s *demo.Stage) (list []launcher) {
	for _, mpi := range []string{"openmpi", "mpich"} {
		if _, err := exec.LookPath("mpicc." + mpi); err != nil {
			continue
		}
		program := filepath.Join(s.Dir, "append-"+mpi)
		out, err := exec.Command("mpicc."+mpi, "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/append.c").CombinedOutput()
		require.NoError(t, err, string(out))
		list = append(list, launcher{mpi, program})
	}
	if len(list) == 0 {
		t.Skip("no MPI is installed: make deps")
	}
	return list
}

// line returns the command line for n ranks.
func (l launcher) line(n int, args ...string) string {
	return strings.Join(demo.MPIRun("mpirun."+l.mpi, n, append([]string{l.program}, args...)...), " ")
}

// touches are ways in which scripts use the mount.
var touches = map[string]string{
	"mkdir":    "mkdir -p /nvmecr/out",
	"ls":       "ls -la /nvmecr > /dev/null",
	"cd":       "(cd /nvmecr && pwd > /dev/null)",
	"redirect": "echo line >> /nvmecr/log",
	"test":     "if [ -e /nvmecr/c0 ]; then echo there; else echo new; fi",
	"find":     "find /nvmecr -type f | wc -l > /dev/null",
	"python":   `python3 -c 'import os; os.makedirs("/nvmecr/out/py", exist_ok=True); os.listdir("/nvmecr")'`,
	"single":   "cp /etc/passwd /nvmecr/input",
}

// ranksHold checks from outside that each rank has its own file, with a number of lines.
func ranksHold(t *testing.T, s *demo.Stage, lines int, flags ...string) {
	t.Helper()
	for rank := range scriptRanks {
		r := call(t, s, append([]string{"cat", "--rank", fmt.Sprint(rank), fmt.Sprintf("/c%d", rank)}, flags...)...)
		require.Equal(t, strings.Repeat(fmt.Sprintf("rank %d\n", rank), lines), r.ok(t))
	}
}

// slow matches a message that also occurs on a busy machine.
var slow = regexp.MustCompile(`^nvmecr: process \d+ ends, and waits until the target has taken `)

// quiet checks that a script succeeded without messages of nvmecr.
func (r result) quiet(t *testing.T) string {
	t.Helper()
	r.ok(t)
	for _, line := range strings.Split(r.stderr, "\n") {
		assert.True(t, line == "" || strings.HasPrefix(line, "nvmecr: store ") || slow.MatchString(line), "%s", r.stderr)
	}
	return r.stdout
}

// TestScriptTouches makes each use before, between and after the ranks, on a fresh store and on an existing one. TestScripts has ranks of
// MPI.
func TestScriptTouches(t *testing.T) {
	t.Parallel()
	ranks := fmt.Sprintf(`for r in $(seq 0 %d); do PMI_SIZE=%d PMI_RANK=$r sh -c 'echo rank $PMI_RANK >> /nvmecr/c$PMI_RANK' & done; wait`, scriptRanks-1, scriptRanks)
	for name, touch := range touches {
		t.Run(name, func(t *testing.T) {
			s := newRankStage(t)
			for i := range 2 {
				script := []string{"set -e", touch, ranks, touch}
				if i == 0 {
					script = append(script, script[2:]...)
				}
				out := sh(t, s, strings.Join(script, "\n"), "--size", "512M").quiet(t)
				if name == "test" {
					assert.Equal(t, []string{"new\nthere\nthere\n", "there\nthere\n"}[i], out)
				}
				ranksHold(t, s, 2+i)
			}
		})
	}
}

// TestScripts makes all uses in one script, with the output of the ranks in the mount, on the embedded target and on another one.
func TestScripts(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	for _, l := range launchers(t, s) {
		_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:512M")
		for where, flags := range map[string][]string{"own": {"--size", "512M"}, "target": {"--target", target}} {
			t.Run(l.mpi+" "+where, func(t *testing.T) {
				flags := append([]string{"--name", l.mpi + where}, flags...)
				script := `set -e
					mkdir -p /nvmecr/out/sub
					cd /nvmecr/out
					echo begin >> ../log
					` + l.line(scriptRanks, "/nvmecr/c%", "/nvmecr/out/sub/r%", "local%", "/nvmecr/rank/", "/nvmecr/rank/r%") + ` > /nvmecr/mpilog
					cat /nvmecr/mpilog
					ls /nvmecr
					cat sub/r0 local3
					mkdir -p between
					` + l.line(scriptRanks, "between/b%") + `
					ls between
					(cd /nvmecr/rank && mkdir -p mine && ls && /bin/pwd && echo mine > mine/m && cat mine/m) > in
					cat in
					exec >> /nvmecr/log
					` + l.line(scriptRanks, "/nvmecr/c%") + `
					echo end`
				for i := 1; i <= 2; i++ {
					out := sh(t, s, script, flags...).quiet(t)
					assert.Equal(t, "c0\nc1\nc2\nc3\nlog\nmpilog\nout\nrank\n"+strings.Repeat("rank 0\n", i)+strings.Repeat("rank 3\n", i)+
						"b0\nb1\nb2\nb3\n"+"mine\nr0\nr1\nr2\nr3\n/nvmecr/rank\nmine\n", out)
					ranksHold(t, s, 2*i, flags[:2]...)
				}
				r := call(t, s, append([]string{"cat", "--rank", "singleton", "/log"}, flags[:2]...)...)
				assert.Equal(t, "begin\nend\nbegin\nend\n", r.ok(t))
				listing := call(t, s, append([]string{"ls"}, flags[:2]...)...).ok(t)
				assert.Contains(t, listing, "singleton  ")
				call(t, s, append([]string{"verify"}, flags[:2]...)...).ok(t)
				call(t, s, append([]string{"fsck"}, flags[:2]...)...).ok(t)
				sh(t, s, "cmp /nvmecr/c1 /nvmecr/c1 && cp -r /nvmecr/out out-"+l.mpi+where, flags[:2]...).quiet(t)
				b, err := os.ReadFile(filepath.Join(s.Dir, "out-"+l.mpi+where, "sub", "r2"))
				require.NoError(t, err)
				assert.Equal(t, "rank 2\nrank 2\n", string(b))
			})
		}
	}
}

// TestScriptAlone checks that a single program, without a launcher or as the only rank, has the whole store, or a partition in one that
// ranks have formatted.
func TestScriptAlone(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	for _, l := range launchers(t, s) {
		for i := 1; i <= 2; i++ {
			for _, alone := range []string{l.program + " /nvmecr/a", l.line(1, "/nvmecr/a")} {
				sh(t, s, "[ -e /nvmecr/a ]; "+alone, "--name", l.mpi, "--size", "256M").quiet(t)
			}
			r := call(t, s, "stat", "--name", l.mpi)
			assert.Contains(t, r.ok(t), ", 1 partition: ")
			assert.Contains(t, call(t, s, "cat", "--name", l.mpi, "/a").ok(t), strings.Repeat("rank 0\n", 2*i))
		}
		sh(t, s, l.line(scriptRanks, "/nvmecr/c%"), "--name", l.mpi).quiet(t)
		sh(t, s, l.program+" /nvmecr/a - /nvmecr/c3; "+l.line(1, "/nvmecr/a", "-", "/nvmecr/c2"), "--name", l.mpi).quiet(t)
		assert.Equal(t, strings.Repeat("rank 0\n", 6), call(t, s, "cat", "--name", l.mpi, "/a").ok(t))
		ranksHold(t, s, 1, "--name", l.mpi)
	}
}

// TestScriptCannotChange checks that files of ranks are read-only for a script, with one message.
func TestScriptCannotChange(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	l := launchers(t, s)[0]
	sh(t, s, l.line(scriptRanks, "/nvmecr/c%"), "--size", "256M").quiet(t)
	for _, command := range []string{"echo >> /nvmecr/c2", "rm -f /nvmecr/c2", "mv /nvmecr/c2 /nvmecr/d", "truncate -s 0 /nvmecr/c2", "chmod 600 /nvmecr/c2"} {
		r := sh(t, s, command)
		assert.NotZero(t, r.code, command)
		assert.Equal(t, 1, strings.Count(r.stderr, "nvmecr: /nvmecr/c2 is rank 2's, which alone can change it"), r.stderr)
		assert.Contains(t, r.stderr, "Read-only file system")
	}
	ranksHold(t, s, 1)
}

// TestScriptInSmallStore checks that a store without a singleton partition, as earlier versions formatted, can be read by scripts.
func TestScriptInSmallStore(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	l := launchers(t, s)[0]
	sh(t, s, "[ -e /nvmecr/c0 ] || "+l.line(scriptRanks, "/nvmecr/c%"), "--size", "32M").quiet(t)
	sh(t, s, "set -e; [ -e /nvmecr/c3 ]; cat /nvmecr/c0; "+l.line(scriptRanks, "/nvmecr/c%")+"; "+l.line(1, "-", "/nvmecr/c0")).quiet(t)
	r := sh(t, s, "mkdir -p /nvmecr/out")
	assert.NotZero(t, r.code)
	assert.Contains(t, r.stderr, "none for job scripts and programs without a launcher")
	assert.Contains(t, r.stderr, "Read-only file system")
	ranksHold(t, s, 2)
}

// TestScriptTooFull checks the error of ranks whose store a program without a launcher has filled.
func TestScriptTooFull(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	l := launchers(t, s)[0]
	sh(t, s, "head -c 40M /dev/zero > /nvmecr/large", "--size", "64M").quiet(t)
	r := sh(t, s, l.line(2, "/nvmecr/c%"), "--timeout", "3s")
	assert.Contains(t, r.stderr, "cannot be divided among 2 ranks")
	assert.Contains(t, r.stderr, "start over with --fresh")
	sh(t, s, "cmp -n 40M /dev/zero /nvmecr/large && rm /nvmecr/large").quiet(t)
	sh(t, s, l.line(scriptRanks, "/nvmecr/c%")).quiet(t)
	ranksHold(t, s, 1)
}

// TestScriptKilled kills everything while the ranks run, with their output in the mount, and runs it again.
func TestScriptKilled(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	for _, l := range launchers(t, s) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		script := "mkdir -p /nvmecr/out; echo before >> /nvmecr/log; " + l.line(scriptRanks, "wait", "/nvmecr/out/r%", "/nvmecr/c%") + " | tee /nvmecr/mpilog"
		for i := 1; i <= 2; i++ {
			job, err := s.Start(append(s.RunFlags(l.mpi, "--size", "512M"), "sh", "-c", script))
			require.NoError(t, err)
			for len(job.Stdout.Lines()) == 0 {
				require.False(t, job.Ended(), job.Stderr.Tail(10))
				require.NoError(t, ctx.Err())
				time.Sleep(5 * time.Millisecond)
			}
			assert.Equal(t, "waiting", job.Stdout.Lines()[0])
			_, err = s.Kill()
			require.NoError(t, err)
			ranksHold(t, s, i, "--name", l.mpi)
		}
		out := sh(t, s, "cat /nvmecr/log; "+l.line(scriptRanks, "/nvmecr/out/r%", "/nvmecr/c%")+"; cat /nvmecr/out/r3", "--name", l.mpi).quiet(t)
		assert.Equal(t, "before\nbefore\n"+strings.Repeat("rank 3\n", 3), out)
		ranksHold(t, s, 3, "--name", l.mpi)
	}
}

// TestAnotherRankHasIt checks the message that another rank has a missing file, and that there is none if no rank has it.
func TestAnotherRankHasIt(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	for _, l := range launchers(t, s) {
		flags := []string{"--name", l.mpi, "--size", "256M"}
		out := sh(t, s, l.line(scriptRanks, "-", "/nvmecr/restart"), flags...).quiet(t)
		assert.Equal(t, strings.Repeat("No such file or directory of /nvmecr/restart\n", scriptRanks), out)
		sh(t, s, l.line(scriptRanks, "/nvmecr/c%"), flags...).quiet(t)
		said(t, s, l, "/nvmecr/c2", "rank 2 has it", 2, flags)
		sh(t, s, "echo input > /nvmecr/in", flags...).quiet(t)
		said(t, s, l, "/nvmecr/in", "a process without a launcher, such as the job script, has it", -1, flags)
	}
}

// said looks up a file in all ranks, twice, until each rank but the owner has printed who has the file. On a busy machine a rank may give
// up before.
func said(t *testing.T, s *demo.Stage, l launcher, name, who string, except int, flags []string) {
	heard := map[int]bool{except: true}
	for try := 0; len(heard) <= scriptRanks-min(1, except+1); try++ {
		require.Less(t, try, 20, "heard of ranks %v", heard)
		r := sh(t, s, l.line(scriptRanks, "-", name, name), flags...)
		r.ok(t)
		for rank := range scriptRanks {
			line := fmt.Sprintf("nvmecr: rank %d: %s is not there for rank %d; %s: each rank has files of its own\n", rank, name, rank, who)
			n := strings.Count(r.stderr, line)
			assert.LessOrEqual(t, n, 1, r.stderr)
			if n == 1 {
				assert.NotEqual(t, except, rank)
				heard[rank] = true
			}
		}
	}
}
