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
	"sync"
	"syscall"
	"time"

	"nvmecr/drain/s3"
	"nvmecr/internal/config"
)

// A drainer is a child process `nvmecr drain --follow`, which copies checkpoints while the job runs. A drainer that is killed is started
// again.
type drainer struct {
	path      string
	args, env []string
	stdout    io.Writer // may be nil
	stderr    io.Writer
	copies    bool       // it copies, and does not only remove old checkpoints
	ended     chan error // the error of the last process

	mu       sync.Mutex // guards the fields below
	cmd      *exec.Cmd
	lifeline io.WriteCloser // a byte requests a copy of the newest checkpoints; closing requests that and the end
	finished bool           // lifeline is closed
	stopped  bool           // the drainer was killed, since there was no time for another copy
}

// startDrainer starts the drainer with the settings of the run. It returns nil if nothing is to be copied or removed,
// or if another run of the job has a drainer.
func (o *runOptions) startDrainer() (*drainer, error) {
	if o.cfg.Level2 == "" && o.cfg.Copies == config.CopiesNone && o.cfg.Keep == "" || o.joined || o.oneLevel {
		return nil, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	d := &drainer{
		path: self, args: []string{"drain", "--follow", "--every", o.cfg.Level2Every}, env: o.cfg.Environ(os.Environ()),
		stderr: o.stderr, copies: o.cfg.Level2 != "" || o.cfg.Copies != config.CopiesNone, ended: make(chan error, 1),
	}
	if o.cfg.Keep != "" {
		d.args = append(d.args, "--keep-stored", o.cfg.Keep)
		if k, _ := parseRetention(o.cfg.Keep); k.count > 0 {
			d.args = append(d.args, "--keep", strconv.Itoa(k.count))
		}
	}
	if o.cfg.Level2Pattern != "" {
		d.args = append(d.args, o.cfg.Level2Pattern)
	}
	if o.cfg.Log != config.LogError {
		d.stdout = o.stderr
	}
	if err := d.begin(); err != nil {
		return nil, fmt.Errorf("cannot start nvmecr drain: %w", err)
	}
	go d.watch()
	return d, nil
}

// begin starts the process. The caller holds mu.
func (d *drainer) begin() (err error) {
	cmd := exec.Command(d.path, d.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = d.env, d.stdout, d.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals of the terminal are for the job
	lifeline, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		d.cmd, d.lifeline = cmd, lifeline
	}
	return err
}

// drainPause is the time before a drainer is started again.
const drainPause = time.Second

// watch waits for the end of the process. If the process was killed, watch starts another one in its place.
func (d *drainer) watch() {
	for {
		err := d.cmd.Wait() // no other goroutine changes cmd
		if again, e := d.again(err); !again {
			d.ended <- errors.Join(err, e)
			return
		}
	}
}

// again starts the next process if the last one was killed before its work was done. last is the error of the last process.
func (d *drainer) again(last error) (bool, error) {
	d.mu.Lock()
	finished := d.finished
	d.mu.Unlock()
	status, ok := d.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case finished:
		return false, nil
	case !ok || !status.Signaled():
		fmt.Fprintf(d.stderr, "nvmecr: nvmecr drain has ended (%v): what the job writes from now on is not copied while it runs\n", last)
		return false, nil
	}
	fmt.Fprintf(d.stderr, "nvmecr: nvmecr drain was killed (%v), and is started again\n", status.Signal())
	time.Sleep(drainPause)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return false, nil
	}
	if err := d.begin(); err != nil {
		return false, fmt.Errorf("nvmecr drain could not be started again: %w", err)
	}
	if d.finished {
		_ = d.lifeline.Close()
	}
	return true, nil
}

// copyOnSignal has the drainer copy the newest checkpoints at once on a signal by which a scheduler announces the end
// of the job. stop ends that.
func (d *drainer) copyOnSignal() (stop func()) {
	if d == nil {
		return func() {}
	}
	told := make(chan os.Signal, 4)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for range told {
			d.mu.Lock()
			_, _ = d.lifeline.Write([]byte{0}) // fails if the drainer has ended, which reports why itself
			d.mu.Unlock()
		}
	}()
	return func() {
		signal.Stop(told)
		close(told)
	}
}

// finish has the drainer copy the newest checkpoints, and waits for its end. An interrupt ends it; nvmecr drain can
// continue an interrupted copy.
func (d *drainer) finish() {
	if d == nil {
		return
	}
	d.mu.Lock()
	d.finished = true
	_ = d.lifeline.Close()
	d.mu.Unlock()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	select {
	case err = <-d.ended:
	case <-ctx.Done():
		d.mu.Lock()
		d.stopped = true
		_ = d.cmd.Process.Kill() // partial copies do not count
		d.mu.Unlock()
		<-d.ended
		err = errors.New("interrupted")
	}
	if err != nil && d.copies {
		fmt.Fprintf(d.stderr, "nvmecr: the newest checkpoint may not be copied (%v): the next run copies it, or nvmecr drain does, to the second level\n", err)
	}
}

// checkLevel2 validates --keep, --mtbf and the settings of the second level, and opens that level.
func checkLevel2(cfg *config.Config) error {
	if _, err := parseRetention(cfg.Keep); err != nil {
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
		return errors.New("--compress: files in a bucket are not compressed; use a directory as second level, or leave it out")
	}
	level, err := openLevel2(cfg)
	if err != nil {
		return err
	}
	return errors.Join(checkIncremental(cfg, level), level.Close())
}
