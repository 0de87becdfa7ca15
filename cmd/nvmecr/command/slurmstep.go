package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/preload"
	"nvmecr/internal/store"
	"nvmecr/slurm"
)

// newSlurmStep is the command that the SPANK plugin starts on each node of a step, before its tasks.
func newSlurmStep(runtime *string) *cobra.Command {
	return &cobra.Command{
		Use:   "step JOB STEP",
		Short: "Hold a job's store open for the tasks of a step on this node",
		Long: `The SPANK plugin starts it on each node before the tasks of a step. It does for them what nvmecr run does for its command. It prints the
variables of their environment, and ends with its standard input. That is a socket, by which the first task passes its standard error.`,
		Example: `  #SBATCH --checkpoint=nvmf:2,capacity=40G    # starts nvmecr slurm step`,
		Hidden:  true,
		Args:    cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			// Signals that end the step also reach its tasks, which have to end first.
			signal.Ignore(syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE)
			s, err := newStep()
			if err != nil {
				return err
			}
			if err := s.holdStore(cmd.Context(), args[0], args[1], *runtime, os.Stdout); err != nil {
				os.Stdout.Close() // without the end marker the plugin does not start the tasks
				fmt.Fprintln(s, cli.OneLine(err))
				s.flush()
				return cli.Status(1)
			}
			return nil
		},
	}
}

// A step is the process that serves the tasks of a Slurm step on this node. As an io.Writer it writes to the standard
// error of the first task, and buffers until the task has passed that.
type step struct {
	outputSet chan struct{} // closed when the output is known, or when there will be none
	ended     chan struct{} // closed at the end of all tasks

	mu       sync.Mutex
	buffered bytes.Buffer // written before the output was known
	output   *os.File
}

// newStep expects the socket of the plugin at standard input.
func newStep() (*step, error) {
	conn, err := net.FileConn(os.Stdin)
	if err != nil {
		return nil, fmt.Errorf("standard input is not the socket of Slurm's plugin, which starts this: %w", err)
	}
	s := &step{outputSet: make(chan struct{}), ended: make(chan struct{})}
	plugin, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New("standard input is not the socket of Slurm's plugin, which starts this")
	}
	go s.receiveTasks(plugin)
	return s, nil
}

// receiveTasks receives the descriptors that tasks pass, until the tasks have ended.
func (s *step) receiveTasks(plugin *net.UnixConn) {
	defer close(s.ended)
	word, rights := make([]byte, 1), make([]byte, syscall.CmsgSpace(4))
	for {
		n, size, _, _, err := plugin.ReadMsgUnix(word, rights)
		if n == 0 || err != nil {
			s.setOutput(nil)
			return
		}
		for _, fd := range descriptors(rights[:size]) {
			s.setOutput(os.NewFile(uintptr(fd), "standard error of the first task"))
		}
	}
}

// descriptors returns the descriptors in a control message.
func descriptors(rights []byte) (fds []int) {
	messages, err := syscall.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	for i := range messages {
		if some, err := syscall.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, some...)
		}
	}
	return fds
}

// setOutput makes f the output, and writes what was buffered. nil means that there will be no output. Only the first
// call counts.
func (s *step) setOutput(f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.outputSet:
		return // already set
	default:
	}
	if f != nil {
		syscall.CloseOnExec(int(f.Fd()))
		s.output = f
		_, _ = s.buffered.WriteTo(f)
	}
	close(s.outputSet)
}

// flush waits until buffered text is written.
func (s *step) flush() { <-s.outputSet }

// Write never fails, since the reader may have ended.
func (s *step) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.output == nil {
		return s.buffered.Write(text)
	}
	_, _ = s.output.Write(text)
	return len(text), nil
}

// holdStore keeps the store of the job open until the tasks have ended. It prints their variables when the store is ready.
func (s *step) holdStore(ctx context.Context, job, name, runtime string, out io.WriteCloser) error {
	id, err := strconv.ParseUint(job, 10, 32)
	if err != nil {
		return cli.UsageError{Err: fmt.Errorf("JOB: %w", err)}
	}
	env, err := slurm.Environment(uint32(id), runtime)
	if err != nil {
		return fmt.Errorf("files that the Prolog of this node writes for job %d: %w", id, err)
	}
	before := os.Environ()
	for _, line := range append(env, config.JobVariable+"=") { // present values are those of the environment in which the job was submitted
		name, value, _ := strings.Cut(line, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	o := &runOptions{cfg: config.Default(), stderr: s, step: true}
	if err := o.cfg.Resolve(); err != nil {
		return err
	}
	if o.cfg.Job, err = slurm.Step(uint32(id), name, runtime); err != nil {
		return err
	}
	library, err := preload.Library()
	if err != nil {
		return err
	}
	dir, err := store.OpenStateDir(o.cfg.Name)
	if err != nil {
		return err
	}
	_, err = o.withStore(ctx, dir, nil, func() (int, error) { return 0, s.drained(o, before, library, out) })
	return err
}

// drained is runDrained for tasks that Slurm starts.
func (s *step) drained(o *runOptions, before []string, library string, out io.WriteCloser) error {
	_, env := preload.Propagate(o.cfg, []string{"srun"}, preload.Environ(o.cfg, os.Environ(), library))
	if err := o.stage(env, surroundings{}); err != nil {
		return err
	}
	d, err := o.startDrainer()
	if err != nil {
		return err
	}
	defer d.finish()
	env = append(env, "NVMECR_JOB_ID="+o.cfg.Job) // by which nvmecr run joins this run
	if err := printChanges(out, before, env); err != nil {
		return err
	}
	<-s.ended
	return nil
}

// ready is the end marker of the variables.
const ready = "ready"

// printChanges prints the differences between two environments for the plugin: NAME=VALUE for a variable to set, NAME
// for one to remove, each followed by a NUL.
func printChanges(out io.WriteCloser, before, after []string) error {
	var text strings.Builder
	has := make(map[string]bool)
	for _, line := range after {
		name, _, _ := strings.Cut(line, "=")
		if has[name] = true; !slices.Contains(before, line) {
			text.WriteString(line + "\x00")
		}
	}
	for _, line := range before {
		if name, _, _ := strings.Cut(line, "="); !has[name] {
			text.WriteString(name + "\x00")
		}
	}
	_, err := io.WriteString(out, text.String()+ready+"\x00")
	return errors.Join(err, out.Close())
}
