package command

import (
	"context"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/drain"
	"nvmecr/internal/cli"
	"nvmecr/internal/config"
)

// peerEnd is how long `nvmecr drain --peer` may take to end. Then it is killed, which loses nothing.
const peerEnd = 5 * time.Second

// startPeer starts `nvmecr drain --peer` on a host without the run's drainer, if the second level is a directory. The
// peer ends with this process, or by end. Its messages are discarded: the drainer copies what a peer failed to copy,
// and reports errors.
func startPeer(cfg *config.Config) (end func()) {
	none := func() {}
	self, err := os.Executable()
	if err != nil || !cfg.Level2IsDirectory() {
		return none
	}
	cmd := exec.Command(self, "drain", "--peer")
	cmd.Env = cfg.Environ(os.Environ())
	cmd.Dir = "/"
	lifeline, err := cmd.StdinPipe()
	if err != nil || cmd.Start() != nil {
		return none
	}
	return sync.OnceFunc(func() {
		_ = lifeline.Close()
		kill := time.AfterFunc(peerEnd, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = cmd.Wait() // the exit status does not matter
	})
}

// copyAsPeer copies a share of each checkpoint that the drainer of the run copies, until standard input ends.
func (o *drainOptions) copyAsPeer(cmd *cobra.Command) error {
	if err := o.cfg.Resolve(); err != nil {
		return cli.UsageError{Err: err}
	}
	if err := o.requireLevel2(); err != nil {
		return err
	}
	level, err := drain.Open(o.cfg.Level2, o.cfg.Name)
	if err != nil {
		return err
	}
	defer level.Close()
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, cmd.InOrStdin())
		stop()
	}()
	cmd.SetContext(ctx)
	o.stderr = cmd.ErrOrStderr()
	open := func(ctx context.Context, background bool) (drain.ClosingSource, error) {
		look := *o
		cfg := *o.cfg
		look.cfg = &cfg
		if background {
			look.lowerPriority = drain.LowerPriority
		}
		if err := look.open(cmd); err != nil {
			return nil, err
		}
		return newStoreSource(ctx, &look.reader), nil
	}
	for {
		err := level.Join(ctx, os.Getenv(config.RunVariable), drain.Options{Incremental: o.cfg.Incremental}, open)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		o.warn(err)
		select {
		case <-ctx.Done():
		case <-time.After(minRound): // try again: the cause may be temporary
		}
	}
}
