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

// newSlurmStep is what the SPANK plugin starts on each node of a step, before its tasks.
func newSlurmStep(runtime *string) *cobra.Command {
	return &cobra.Command{
		Use:   "step JOB STEP",
		Short: "Hold a job's store open for the tasks of a step on this node",
		Long: `What the SPANK plugin starts on each node before the tasks of a step. It is to them what nvmecr run is to its command. It prints the
variables that they are to have, and ends with its standard input. That is a socket, by which the first task gives its standard error.`,
		Example: `  #SBATCH --checkpoint=nvmf:2,capacity=40G    # starts nvmecr slurm step`,
		Hidden:  true,
		Args:    cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			// What ends the step comes to its tasks, too, and they end first.
			signal.Ignore(syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE)
			s, err := newStep()
			if err != nil {
				return err
			}
			if err := s.hold(cmd.Context(), args[0], args[1], *runtime, os.Stdout); err != nil {
				os.Stdout.Close() // without the last word: the tasks do not start
				fmt.Fprintln(s, cli.OneLine(err))
				s.tell()
				return cli.Status(1)
			}
			return nil
		},
	}
}

// A step is one of Slurm's on this node, seen from the process that serves its tasks. It is what that writes to: the standard error of the
// first task, once there is one.
type step struct {
	shown chan struct{} // closed when there is one, or none will be
	ended chan struct{} // closed when all tasks have ended

	mu   sync.Mutex
	kept bytes.Buffer // until there is one
	to   *os.File
}

// newStep has the plugin at its standard input.
func newStep() (*step, error) {
	conn, err := net.FileConn(os.Stdin)
	if err != nil {
		return nil, fmt.Errorf("standard input is not the socket of Slurm's plugin, which starts this: %w", err)
	}
	s := &step{shown: make(chan struct{}), ended: make(chan struct{})}
	plugin, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New("standard input is not the socket of Slurm's plugin, which starts this")
	}
	go s.receiveTasks(plugin)
	return s, nil
}

// receiveTasks takes what the tasks give, until they have ended.
func (s *step) receiveTasks(plugin *net.UnixConn) {
	defer close(s.ended)
	word, rights := make([]byte, 1), make([]byte, syscall.CmsgSpace(4))
	for {
		n, size, _, _, err := plugin.ReadMsgUnix(word, rights)
		if n == 0 || err != nil {
			s.show(nil)
			return
		}
		for _, fd := range descriptors(rights[:size]) {
			s.show(os.NewFile(uintptr(fd), "standard error of the first task"))
		}
	}
}

// descriptors are those that a message came with.
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

// show has f be what is written to from now on; nil: nothing will be any more, if nothing is yet.
func (s *step) show(f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.shown:
		return // there is one
	default:
	}
	if f != nil {
		syscall.CloseOnExec(int(f.Fd()))
		s.to = f
		_, _ = s.kept.WriteTo(f)
	}
	close(s.shown)
}

// tell waits until what was written is told.
func (s *step) tell() { <-s.shown }

// Write never fails: the reader may have ended.
func (s *step) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to == nil {
		return s.kept.Write(text)
	}
	_, _ = s.to.Write(text)
	return len(text), nil
}

// hold holds the store of the job open until the tasks have ended, after it has printed their variables.
func (s *step) hold(ctx context.Context, job, name, runtime string, out io.WriteCloser) error {
	id, err := strconv.ParseUint(job, 10, 32)
	if err != nil {
		return cli.UsageError{Err: fmt.Errorf("JOB: %w", err)}
	}
	env, err := slurm.Environment(uint32(id), runtime)
	if err != nil {
		return fmt.Errorf("what the Prolog of this node has made for job %d: %w", id, err)
	}
	before := os.Environ()
	for _, line := range append(env, config.JobVariable+"=") { // what may be there is of the run that the job was submitted in
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
	_, err = o.around(ctx, dir, nil, func() (int, error) { return 0, s.drained(o, before, library, out) })
	return err
}

// drained is runDrained for tasks that the step starts.
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
	env = append(env, "NVMECR_JOB_ID="+o.cfg.Job) // so nvmecr run joins
	if err := printChanges(out, before, env); err != nil {
		return err
	}
	<-s.ended
	return nil
}

// ready is the plugin's sign that all variables have come.
const ready = "ready"

// printChanges prints what makes one environment the other, as the plugin reads it: NAME=VALUE or, for what is to go, NAME, and a NUL behind each.
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
