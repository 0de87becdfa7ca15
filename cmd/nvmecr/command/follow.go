package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/drain"
	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/nvmf"
)

// How often a follower looks: its looks take at most a hundredth of a core, and are no more often than this.
const (
	minLook   = 2 * time.Second
	lookShare = 100
)

// minQuiet is how long nothing of a checkpoint must have changed before it is taken for complete while the job runs:
// its next file may not be there yet. A checkpoint that took longer to write is waited for as long as it took.
const minQuiet = 5 * time.Second

// A follower copies checkpoints of a job that runs to other targets and to the second level, and removes old ones.
type follower struct {
	*drainOptions
	cmd     *cobra.Command
	pattern string
	limit   nvmf.Bytes
	every   pace
	kept    keeper // in the store

	series map[string]*following // by pattern
	looked time.Duration         // how long the last look took, without what was copied then
	lost   lostFiles             // with a target that was replaced before the run
	told   string                // the last error
	said   map[string]bool       // what the last round has said

	damaged map[string]bool // checkpoints that the store cannot be read of
	// tooLarge are checkpoints, by name, for which copy areas had no space, as they were last changed: the job does not pay for another try.
	tooLarge map[string]time.Time

	noAreas map[string]bool // errors about targets without a copy area that were told
}

// following is what a follower knows of a series.
type following struct {
	seen  map[string]bool // complete checkpoints, by name and time
	since int             // how many of them since the last one was copied
	last  time.Time       // when that was
}

// A pace says which checkpoints are copied: each so many, or one in so much time.
type pace struct {
	count int
	time  time.Duration
}

func parsePace(text string) (i pace, err error) {
	if i.count, err = strconv.Atoi(text); err == nil && i.count > 0 {
		return i, nil
	}
	if i.time, err = time.ParseDuration(text); err == nil && i.time > 0 {
		return pace{time: i.time}, nil
	}
	return i, fmt.Errorf("%q is neither a number of checkpoints, such as 10, nor a time, such as 30m", text)
}

// follow copies checkpoints until the process is told to end, or its standard input ends; then the newest ones. Each byte
// of that has it copy the newest ones at once.
func (o *drainOptions) follow(cmd *cobra.Command, pattern string, limit nvmf.Bytes) error {
	every, err := parsePace(o.every)
	if err != nil {
		return cli.UsageError{Err: fmt.Errorf("--every: %w", err)}
	}
	kept, err := parseKeep(o.keepStored)
	if err == nil {
		err = o.cfg.Resolve()
	}
	if err != nil {
		return cli.UsageError{Err: err}
	}
	if kept == (keeper{}) {
		if err := o.anyLevelNeeded(); err != nil {
			return err
		}
	}
	f := &follower{drainOptions: o, cmd: cmd, pattern: pattern, limit: limit, every: every, kept: kept, series: map[string]*following{}, noAreas: map[string]bool{}, damaged: map[string]bool{}, tooLarge: map[string]time.Time{}}
	ended, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hurry := make(chan struct{}, 1)
	go func() {
		for one := make([]byte, 1); ; {
			if _, err := os.Stdin.Read(one); err != nil { // the process that started this one has ended
				stop()
				return
			}
			select {
			case hurry <- struct{}{}:
			default: // it is about to look anyway
			}
		}
	}()
	for {
		f.calmly(ended, hurry)
		select {
		case <-ended.Done():
			f.told, f.said = "", nil // what is told now is the last word
			return f.round(cmd.Context(), last)
		case <-hurry:
			_ = f.round(cmd.Context(), newest) // which tells
		case <-time.After(max(minLook, lookShare*f.looked)):
		}
	}
}

// calmly looks once, and leaves off when there is no more time for that: what it has copied by then the next round goes on from.
func (f *follower) calmly(ended context.Context, hurry chan struct{}) {
	ctx, stop := context.WithCancel(ended)
	defer stop()
	go func() {
		select {
		case <-hurry:
			stop()
			select {
			case hurry <- struct{}{}: // the caller has to see it
			default:
			}
		case <-ctx.Done():
		}
	}()
	_ = f.round(ctx, now) // which tells
}

// A round is a look at the checkpoints.
type round int

const (
	now    round = iota // what is due is copied
	newest              // what is complete is copied, due or not, though the job may still write to it
	last                // and the job has ended
)

// A roundWriter drops what is written after the end of a context: what a round that is broken off cannot do is no fault. It drops what the round before has said, too.
type roundWriter struct {
	ctx context.Context
	io.Writer
	before, said map[string]bool
}

func (w roundWriter) Write(b []byte) (int, error) {
	if w.ctx.Err() != nil {
		return len(b), nil
	}
	if w.said[string(b)] = true; w.before[string(b)] {
		return len(b), nil
	}
	return w.Writer.Write(b)
}

// round looks once.
func (f *follower) round(ctx context.Context, r round) error {
	before := f.cmd.Context()
	f.cmd.SetContext(ctx)
	defer f.cmd.SetContext(before)
	look := *f.drainOptions
	cfg := *f.cfg
	out := roundWriter{ctx, f.cmd.ErrOrStderr(), f.said, map[string]bool{}}
	look.cfg, look.stderr, f.said = &cfg, out, out.said
	defer look.close()
	err := f.look(&look, r)
	if err != nil && ctx.Err() == nil && !errors.As(err, new(cli.Status)) && err.Error() != f.told {
		f.told = err.Error()
		fmt.Fprintln(f.cmd.ErrOrStderr(), cli.OneLine(fmt.Errorf("checkpoints: %w", err)))
	}
	return err
}

func (f *follower) look(o *drainOptions, r round) error {
	begin := time.Now()
	if r == last { // a target may be there again
		clear(f.damaged)
	}
	if r != last { // then what has been copied back since does not count as lost
		o.lost = f.lost
	}
	list, err := o.allLevels(f.cmd, f.pattern) // also where the second level cannot be reached
	if err != nil && list == nil {
		return err
	}
	f.looked, f.lost = time.Since(begin), o.lost
	if r == now {
		o.behind = drain.StepBack
	}
	if o.copies != nil {
		err = errors.Join(err, f.protect(o, list, r))
	}
	if o.level != nil {
		err = errors.Join(err, f.copy(o, list, r))
	}
	for i := range list {
		err = errors.Join(err, f.kept.tidy(&list[i], r == last))
	}
	return err
}

// copy copies what is due.
func (f *follower) copy(o *drainOptions, list []drain.Series, r round) error {
	src := newStoreSource(f.cmd.Context(), &o.reader)
	defer src.Close()
	var err error
	for i := range list {
		s := &list[i]
		drained := func(c *drain.Checkpoint) bool { return c.Drained != nil }
		if f.candidate(s, r, drained) == nil || r == now && !f.due(s) {
			continue
		}
		err = errors.Join(err, f.newestReadable(s, r, drained, func(c *drain.Checkpoint) error {
			how := f.gently(s, c, r, f.every)
			if r != last { // then the other hosts may be gone
				how.Peers = os.Getenv(config.RunVariable)
			}
			if err := o.one(f.cmd, src, s.Pattern, c, how); err != nil {
				return err
			}
			f.of(s).since, f.of(s).last = 0, time.Now()
			if o.keep == 0 {
				return nil
			}
			return o.retain(o.level, s.Pattern)
		}))
	}
	return err
}

// newestReadable has the newest checkpoint copied that is due. If the store cannot be read there, as where a sector is damaged, that is told once, and the one before is copied.
func (f *follower) newestReadable(s *drain.Series, r round, copied func(*drain.Checkpoint) bool, copyOne func(*drain.Checkpoint) error) error {
	for {
		c := f.candidate(s, r, copied)
		if c == nil {
			return nil
		}
		err := copyOne(c)
		if err != nil {
			err = fmt.Errorf("%s: %w", c.Name, err)
		}
		if !errors.Is(err, errUnreadable) || f.cmd.Context().Err() != nil {
			return err
		}
		f.damaged[damagedKey(s, c)] = true
		fmt.Fprintln(f.cmd.ErrOrStderr(), cli.OneLine(fmt.Errorf("checkpoints: %w; the newest one that can be read is copied", err)))
	}
}

// damagedKey is a checkpoint as it was written last.
func damagedKey(s *drain.Series, c *drain.Checkpoint) string {
	return fmt.Sprintf("%q %q %d", s.Pattern, c.Name, c.Ended().UnixNano())
}

// The job is not to feel that a checkpoint is copied: that takes at most this part of the rate at which the job has written it, if only as much is left
// of links and targets, and no less than leastRate.
const (
	shareOfRate = 20
	leastRate   = 16 << 20
)

// gently returns how to copy while the job runs: behind all else on the host, and slowly, but so that it is done before the next one is due, by every. A job that
// has ended, or is about to, is not spared.
func (f *follower) gently(s *drain.Series, c *drain.Checkpoint, r round, every pace) drain.Options {
	if r != now {
		return drain.Options{Limit: int64(f.limit)}
	}
	rate := int64(f.limit)
	if rate == 0 {
		rate = max(leastRate, perSecond(c.Size(), c.Ended().Sub(c.Begun()))/shareOfRate, perSecond(4*c.Size(), untilNext(s, c, every)))
	}
	return drain.Options{Limit: rate, Background: true}
}

// untilNext is how long it takes from a checkpoint to the next one that is due, as far as that is known: 0 if it is not.
func untilNext(s *drain.Series, c *drain.Checkpoint, every pace) time.Duration {
	if every.time > 0 {
		return every.time
	}
	stored := s.Stored()
	i := slices.Index(stored, c)
	if i < 1 {
		return 0
	}
	return time.Duration(every.count) * c.Ended().Sub(stored[i-1].Ended())
}

// perSecond is a rate in bytes; 0 if the time is not known.
func perSecond(bytes int64, in time.Duration) int64 {
	if in <= 0 {
		return 0
	}
	return int64(float64(bytes) / in.Seconds())
}

// quiet says whether nothing of a checkpoint has changed for so long that it is not still being written.
func quiet(c *drain.Checkpoint) bool {
	return time.Since(c.Ended()) >= max(minQuiet, c.Ended().Sub(c.Begun()))
}

// candidate returns the newest complete checkpoint of the store that can be read, if nothing changes it any more and it has not been copied.
func (f *follower) candidate(s *drain.Series, r round, copied func(*drain.Checkpoint) bool) *drain.Checkpoint {
	for i := len(s.Checkpoints) - 1; i >= 0; i-- {
		c := &s.Checkpoints[i]
		if !c.Stored || !c.Complete() || f.damaged[damagedKey(s, c)] || r == now && !quiet(c) {
			continue
		}
		if copied(c) {
			return nil
		}
		return c
	}
	return nil
}

// due says whether so many have become complete, or so much time has passed, that the newest is to be copied.
func (f *follower) due(s *drain.Series) bool {
	seen := f.of(s)
	for i := range s.Checkpoints {
		c := &s.Checkpoints[i]
		if key := c.Name + " " + c.Ended().String(); c.Stored && c.Complete() && !seen.seen[key] {
			seen.seen[key] = true
			seen.since++
		}
	}
	if f.every.time > 0 {
		return time.Since(seen.last) >= f.every.time
	}
	return seen.since >= f.every.count
}

func (f *follower) of(s *drain.Series) *following {
	if f.series[s.Pattern] == nil {
		f.series[s.Pattern] = &following{seen: map[string]bool{}}
	}
	return f.series[s.Pattern]
}
