package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"nvmecr/internal/config"
	"nvmecr/internal/proc"
)

// token is a variable of every process of a stage, by which the stage finds them in any process group or session.
const token = "NVMECR_STAGE"

// A Stage is where jobs run: directories and processes of its own.
type Stage struct {
	// Dir is a directory for any use. It is removed with the stage.
	Dir string
	// Nvmecr is the command.
	Nvmecr string
	// View is the --view of runs that do not set it; "": the default.
	View config.View
	// Env has additional variables of its processes.
	Env []string

	shm string // a directory in memory for the ranks' shared memory, or ""
	id  string // value of token
}

// NewStage returns a stage for the command nvmecr.
func NewStage(nvmecr string) (*Stage, error) {
	dir, err := os.MkdirTemp("", "nvmecr-demo-")
	if err != nil {
		return nil, err
	}
	s := &Stage{Dir: dir, Nvmecr: nvmecr, id: strconv.Itoa(os.Getpid()) + filepath.Base(dir)}
	for _, d := range []string{"state", "run", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	// Killed ranks leave their shared memory: give them a directory that can be removed. Without it they use their
	// default.
	s.shm, _ = os.MkdirTemp("/dev/shm", "nvmecr-demo-")
	return s, nil
}

// Close kills all processes and removes the directories.
func (s *Stage) Close() error {
	return errors.Join(s.Leave(), os.RemoveAll(s.Dir))
}

// Leave is Close, but keeps Dir, for diagnosis.
func (s *Stage) Leave() error {
	_, err := s.Kill()
	if s.shm != "" {
		err = errors.Join(err, os.RemoveAll(s.shm))
	}
	return err
}

// Kill sends SIGKILL to all processes of the stage and waits until they have ended. It returns their number. Known
// ones (see Processes) are killed at once, the others when they are found, milliseconds later.
func (s *Stage) Kill(known ...int) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return proc.KillWithEnv(ctx, token, s.id, known...)
}

// Processes returns the processes of the stage.
func (s *Stage) Processes() []int { return proc.WithEnv(token, s.id) }

// mode is the only setting that the stage takes from the caller: whether files are exported by FUSE.
const mode = "NVMECR_FUSE="

// Environ returns the environment of the stage's processes: the caller's with mode, but without other settings of
// nvmecr and without a preload, and with directories of the stage.
func (s *Stage) Environ() []string {
	var env []string
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, mode) || !strings.HasPrefix(kv, "NVMECR_") && !strings.HasPrefix(kv, "LD_PRELOAD=") {
			env = append(env, kv)
		}
	}
	env = append(env,
		token+"="+s.id,
		"XDG_STATE_HOME="+filepath.Join(s.Dir, "state"),
		"XDG_RUNTIME_DIR="+filepath.Join(s.Dir, "run"),
		"TMPDIR="+filepath.Join(s.Dir, "tmp"),
		"OMP_NUM_THREADS=1",
	)
	if s.View != "" {
		env = append(env, "NVMECR_VIEW="+string(s.View))
	}
	env = append(env, s.Env...)
	if s.shm != "" {
		env = append(env, "OMPI_MCA_btl_vader_backing_directory="+s.shm)
	}
	return env
}

// A Job is a command line that was started on a stage.
type Job struct {
	Started time.Time
	// Stdout collects what it prints; it may be read while it runs.
	Stdout *Output
	// Stderr does the same for its standard error.
	Stderr *Output

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended, err is then set
	err  error
}

// Start starts argv with the stage's environment and extra variables.
func (s *Stage) Start(argv []string, extra ...string) (*Job, error) {
	j := &Job{Started: time.Now(), Stdout: &Output{}, Stderr: &Output{}, done: make(chan struct{})}
	j.cmd = exec.Command(argv[0], argv[1:]...)
	j.cmd.Env = append(s.Environ(), extra...)
	j.cmd.Dir = s.Dir
	j.cmd.Stdout, j.cmd.Stderr = j.Stdout, j.Stderr
	// Signals of the terminal are for this process, which then ends the stage.
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Wait must not wait for a grandchild that outlives the command.
	j.cmd.WaitDelay = 5 * time.Second
	if err := j.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		j.err = j.cmd.Wait()
		close(j.done)
	}()
	return j, nil
}

// Wait waits for the job. The error of a failed job includes the end of its output.
func (j *Job) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-j.done:
	}
	if j.err != nil {
		return fmt.Errorf("%s: %w\n%s%s", strings.Join(j.cmd.Args, " "), j.err, j.Stdout.Tail(10), j.Stderr.Tail(20))
	}
	return nil
}

// Kill sends SIGKILL to the process that was started, not to those below it.
func (j *Job) Kill() { _ = j.cmd.Process.Kill() } // may have ended

// Interrupt sends it SIGINT.
func (j *Job) Interrupt() { _ = j.cmd.Process.Signal(os.Interrupt) } // may have ended

// PID returns the process id.
func (j *Job) PID() int { return j.cmd.Process.Pid }

// Ended reports whether the job has ended.
func (j *Job) Ended() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

// MPIRun returns a command line that runs argv on n ranks of this host, more
// than it has cores if need be. launcher is "mpirun.mpich" or OpenMPI's, which
// Debian calls "mpirun.openmpi".
func MPIRun(launcher string, n int, argv ...string) []string {
	line := []string{launcher}
	if !strings.HasSuffix(launcher, ".mpich") {
		line = append(line, "--oversubscribe")
		if os.Getuid() == 0 {
			line = append(line, "--allow-run-as-root")
		}
	}
	return append(append(line, "-n", strconv.Itoa(n)), argv...)
}

// RunFlags returns the start of a command line that runs the rest of it under
// nvmecr, in the store name.
func (s *Stage) RunFlags(name string, flags ...string) []string {
	return append(append([]string{s.Nvmecr, "run", "--name", name}, flags...), "--")
}

// Config is the configuration by which the store name is read from outside.
func (s *Stage) Config(name string) (*config.Config, error) {
	c := config.Default()
	if s.View != "" {
		c.View = s.View
	}
	return c, errors.Join(c.Set("name", name), c.Set("target", "file:"+s.Image(name)))
}

// Image returns the backing file of the embedded target of the store.
func (s *Stage) Image(name string) string {
	return filepath.Join(s.Dir, "state", "nvmecr", name, "namespace.img")
}
