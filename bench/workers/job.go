package workers

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"nvmecr/internal/proc"
)

// A job is a set of started processes.
type job interface {
	// ended returns a channel that is closed when all processes have ended, or when one
	// has ended too soon.
	ended() <-chan struct{}
	// status returns the reason of the end, or nil if all processes have succeeded.
	status() error
	// end waits until all processes have ended. It kills processes that do not end in
	// time.
	end(patience time.Duration) error
	// kill ends all processes at once.
	kill()
}

// start starts the ranks that the options describe.
func (o *Options) start(output io.Writer) (job, error) {
	if o.Agents != nil {
		return o.Agents.start(o.Argv, o.Env)
	}
	if len(o.Launch) > 0 {
		return startProcesses([]*exec.Cmd{Command(o.Launch, o.Argv, o.Env)}, output)
	}
	var cmds []*exec.Cmd
	for r := range o.Ranks {
		cmds = append(cmds, command(o.Argv, append(Without(o.Env), "PMI_RANK="+strconv.Itoa(r), "PMI_SIZE="+strconv.Itoa(o.Ranks))))
	}
	return startProcesses(cmds, output)
}

// Command returns a command in which a launcher starts argv with env on all hosts. argv
// is a rank, or another program for the hosts of the ranks.
func Command(launch, argv, env []string) *exec.Cmd {
	return command(carried(append(slices.Clone(launch), argv...), env))
}

func command(argv, env []string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = env
	// Signals of the terminal go to the coordinator only, which ends the processes.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A grandchild that outlives the command must not make Wait block.
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// carryList names the variables that Open MPI's mpirun passes to other hosts. A name without a
// value takes the value of mpirun's environment. MPICH's Hydra and srun pass all variables.
const carryList = "OMPI_MCA_mca_base_env_list"

// carried makes Open MPI pass the variables of env that this process does not have. mpirun refuses
// the variable together with options -x.
func carried(argv, env []string) ([]string, []string) {
	ours := environ()
	var names []string
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if old, ok := ours[name]; name != carryList && (!ok || old != value) {
			names = append(names, name)
		}
	}
	if slices.Contains(argv, "-x") {
		with := argv[:1:1]
		for _, n := range names {
			with = append(with, "-x", n)
		}
		return append(with, argv[1:]...), env
	}
	if old := ours[carryList]; old != "" {
		names = append(names, old)
	}
	return argv, append(env[:len(env):len(env)], carryList+"="+strings.Join(names, ";"))
}

// processes are children of this process.
type processes struct {
	cmds []*exec.Cmd
	over chan struct{} // closed when a process has failed, or all have ended
	all  chan struct{} // closed when all have ended; err is then set
	err  error
}

func startProcesses(cmds []*exec.Cmd, output io.Writer) (*processes, error) {
	p := &processes{over: make(chan struct{}), all: make(chan struct{})}
	results := make(chan error, len(cmds))
	var failed error
	for _, cmd := range cmds {
		cmd.Stdout, cmd.Stderr = output, output
		if failed = cmd.Start(); failed != nil {
			failed = fmt.Errorf("cannot start %s: %w", cmd.Args[0], failed)
			break
		}
		p.cmds = append(p.cmds, cmd)
		go func() { results <- cmd.Wait() }()
	}
	go p.await(results, len(p.cmds))
	if failed != nil {
		p.kill()
		return nil, failed
	}
	return p, nil
}

func (p *processes) await(results <-chan error, n int) {
	told := false
	for range n {
		if err := <-results; err != nil {
			p.err = errors.Join(p.err, err)
			if !told {
				close(p.over)
				told = true
			}
		}
	}
	if !told {
		close(p.over)
	}
	close(p.all)
}

func (p *processes) ended() <-chan struct{} { return p.over }

func (p *processes) status() error {
	select {
	case <-p.all:
		if p.err != nil {
			return p.err
		}
		return errors.New("exit status 0")
	case <-time.After(time.Second):
		return errors.New("one of them failed")
	}
}

func (p *processes) end(patience time.Duration) error {
	select {
	case <-p.all:
		return p.err
	case <-time.After(patience):
		p.kill()
		return fmt.Errorf("the ranks did not end within %s and were killed", patience)
	}
}

func (p *processes) kill() {
	for _, cmd := range p.cmds {
		proc.KillTree(cmd.Process.Pid)
	}
	<-p.all
}
