package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"nvmecr/drain/s3"
	"nvmecr/internal/config"
)

// A drainer is `nvmecr drain --follow` as a process of its own, which copies checkpoints while the job runs.
type drainer struct {
	cmd      *exec.Cmd
	lifeline io.WriteCloser // each byte has it copy the newest checkpoints at once; it does so, and ends, when this closes
	stderr   io.Writer
	copies   bool // it makes some
}

// startDrainer starts it, unless the run has no second level, or is part of another one that has it. It has the settings of the
// run, and is told of signals that say that the job is about to end.
func (o *runOptions) startDrainer() (*drainer, error) {
	if o.cfg.Level2 == "" && o.cfg.Copies == config.CopiesNone && o.cfg.Keep == "" || o.joined || o.oneLevel {
		return nil, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	d := &drainer{cmd: exec.Command(self, "drain", "--follow", "--every", o.cfg.Level2Every), stderr: o.stderr, copies: o.cfg.Level2 != "" || o.cfg.Copies != config.CopiesNone}
	if o.cfg.Keep != "" {
		d.cmd.Args = append(d.cmd.Args, "--keep-stored", o.cfg.Keep)
		if k, _ := parseKeep(o.cfg.Keep); k.count > 0 {
			d.cmd.Args = append(d.cmd.Args, "--keep", strconv.Itoa(k.count))
		}
	}
	if o.cfg.Level2Pattern != "" {
		d.cmd.Args = append(d.cmd.Args, o.cfg.Level2Pattern)
	}
	d.cmd.Env = o.cfg.Environ(os.Environ())
	d.cmd.Stderr = o.stderr
	if o.cfg.Log != config.LogError {
		d.cmd.Stdout = o.stderr
	}
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what is typed is for the job
	if d.lifeline, err = d.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start nvmecr drain: %w", err)
	}
	return d, nil
}

// hurry has the drainer copy the newest checkpoints at once when a signal, of the scheduler for instance, says that the job is about to end. stop
// ends that.
func (d *drainer) hurry() (stop func()) {
	if d == nil {
		return func() {}
	}
	told := make(chan os.Signal, 4)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for range told {
			_, _ = d.lifeline.Write([]byte{0}) // it may have ended, and says why
		}
	}()
	return func() {
		signal.Stop(told)
		close(told)
	}
}

// finish has the drainer copy the newest checkpoints, and waits. After an interrupt nvmecr drain can continue.
func (d *drainer) finish() {
	if d == nil {
		return
	}
	_ = d.lifeline.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- d.cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = d.cmd.Process.Kill() // what is half copied does not count
		<-ended
		err = errors.New("interrupted")
	}
	if err != nil && d.copies {
		fmt.Fprintf(d.stderr, "nvmecr: the newest checkpoint may not be copied (%v): the next run copies it, or nvmecr drain does, to the second level\n", err)
	}
}

// checkLevel2 refuses a second level that is not there, to remove what only ranks can, and a time that is none.
func checkLevel2(cfg *config.Config) error {
	if _, err := parseKeep(cfg.Keep); err != nil {
		return fmt.Errorf("--keep: %w", err)
	}
	if cfg.MTBF != "" {
		if _, err := parseSpan(cfg.MTBF); err != nil {
			return fmt.Errorf("--mtbf: %w", err)
		}
	}
	if cfg.Keep != "" && cfg.View == config.ViewRank {
		return errors.New("--keep: with --view=rank only the rank itself can remove its files; use --view=job")
	}
	if cfg.Level2 == "" {
		return nil
	}
	if _, err := parsePace(cfg.Level2Every); err != nil {
		return fmt.Errorf("--level2-every: %w", err)
	}
	if cfg.Compress != "" && strings.HasPrefix(cfg.Level2, s3.Scheme) {
		return errors.New("--compress: files of a bucket are stored as they are; use a directory as second level, or leave it out")
	}
	level, err := openLevel2(cfg)
	if err != nil {
		return err
	}
	return errors.Join(checkIncremental(cfg, level), level.Close())
}
