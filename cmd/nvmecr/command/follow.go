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

// A follower lists the checkpoints at intervals of at least minRound, and so long that the listings take at most
// 1/listShare of a core.
const (
	minRound  = 2 * time.Second
	listShare = 100
)

// minSettled is how long a checkpoint must be unchanged before it counts as complete while the job runs: its next
// file may not exist yet. A checkpoint that took longer to write must be unchanged for as long as it took.
const minSettled = 5 * time.Second

// A follower copies checkpoints of a running job to other targets and to the second level, and removes old ones.
type follower struct {
	*drainOptions
	cmd       *cobra.Command
	pattern   string
	limit     nvmf.Bytes
	every     pace
	retention retention // which checkpoints stay in the store

	series    map[string]*seriesState // by pattern
	listTime  time.Duration           // how long the last listing took, without copying
	lost      lostFiles               // files lost with a target that was replaced before the run
	lastError string                  // the last error printed
	said      map[string]bool         // lines printed in the last round

	damaged map[string]bool // checkpoints that cannot be read from the store
	// tooLarge has the names of checkpoints for which the copy areas had no space, with the time of their last change. Until a checkpoint
	// changes the follower does not try again, since each try costs the job time.
	tooLarge map[string]time.Time

	removable map[string]bool // patterns of which old checkpoints are removed
	spared    map[string]bool // other patterns, already printed; see checkpoint.Stem

	noAreas map[string]bool // errors, already printed, about targets without a copy area
}

// seriesState is what a follower remembers of a series between rounds.
type seriesState struct {
	seen  map[string]bool // keys of complete checkpoints: name and time
	since int             // how many became complete since the last copy
	last  time.Time       // time of the last copy
}

// A pace says which checkpoints are copied: each count-th, or one in each period of time.
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

// follow copies checkpoints until the process is interrupted or its standard input ends, and then the newest ones.
// Each byte of standard input requests a copy of the newest ones at once.
func (o *drainOptions) follow(cmd *cobra.Command, pattern string, limit nvmf.Bytes) error {
	every, err := parsePace(o.every)
	if err != nil {
		return cli.UsageError{Err: fmt.Errorf("--every: %w", err)}
	}
	kept, err := parseRetention(o.keepStored)
	if err == nil {
		err = o.cfg.Resolve()
	}
	if err != nil {
		return cli.UsageError{Err: err}
	}
	if kept == (retention{}) {
		if err := o.requireAnyLevel(); err != nil {
			return err
		}
	}
	f := &follower{drainOptions: o, cmd: cmd, pattern: pattern, limit: limit, every: every, retention: kept, series: map[string]*seriesState{}, noAreas: map[string]bool{}, damaged: map[string]bool{}, tooLarge: map[string]time.Time{}, spared: map[string]bool{}}
	ended, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hurry := make(chan struct{}, 1)
	go func() {
		for one := make([]byte, 1); ; {
			if _, err := os.Stdin.Read(one); err != nil { // the parent process has ended
				stop()
				return
			}
			select {
			case hurry <- struct{}{}:
			default: // a request is pending already
			}
		}
	}()
	for {
		f.interruptibleRound(ended, hurry)
		select {
		case <-ended.Done():
			f.lastError, f.said = "", nil // print an error or a message again if it occurs in the last round
			return f.round(cmd.Context(), roundLast)
		case <-hurry:
			_ = f.round(cmd.Context(), roundNewest) // which prints its errors
		case <-time.After(max(minRound, listShare*f.listTime)):
		}
	}
}

// interruptibleRound does a round of copies that are due, and cancels it on a request to copy at once or to end. The
// next round continues a copy that was canceled.
func (f *follower) interruptibleRound(ended context.Context, hurry chan struct{}) {
	ctx, stop := context.WithCancel(ended)
	defer stop()
	go func() {
		select {
		case <-hurry:
			stop()
			select {
			case hurry <- struct{}{}: // leave the request for the caller
			default:
			}
		case <-ctx.Done():
		}
	}()
	_ = f.round(ctx, roundDue) // which prints its errors
}

// A round says which checkpoints are copied.
type round int

const (
	roundDue    round = iota // those that are due
	roundNewest              // complete ones, due or not; the job may still write others
	roundLast                // complete ones, after the end of the job
)

// A roundWriter drops messages after the end of a context: errors that result from canceling a round are no faults. It drops messages of
// the previous round, too.
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

// round lists the checkpoints and copies those that r selects.
func (f *follower) round(ctx context.Context, r round) error {
	before := f.cmd.Context()
	f.cmd.SetContext(ctx)
	defer f.cmd.SetContext(before)
	look := *f.drainOptions
	cfg := *f.cfg
	out := roundWriter{ctx, f.cmd.ErrOrStderr(), f.said, map[string]bool{}}
	look.cfg, look.stderr, f.said = &cfg, out, out.said
	defer look.close()
	err := f.runRound(&look, r)
	if err != nil && ctx.Err() == nil && !errors.As(err, new(cli.Status)) && err.Error() != f.lastError {
		f.lastError = err.Error()
		fmt.Fprintln(f.cmd.ErrOrStderr(), cli.OneLine(fmt.Errorf("checkpoints: %w", err)))
	}
	return err
}

func (f *follower) runRound(o *drainOptions, r round) error {
	begin := time.Now()
	if r == roundLast { // a target may have returned
		clear(f.damaged)
	}
	if r != roundLast { // what has been restored since then is no longer lost
		o.lost = f.lost
	}
	list, err := o.allLevels(f.cmd, f.pattern) // the list is valid even if the second level cannot be reached
	if err != nil && list == nil {
		return err
	}
	f.listTime, f.lost = time.Since(begin), o.lost
	f.findRemovable(list)
	if r == roundDue {
		o.lowerPriority = drain.LowerPriority
	}
	if o.copies != nil {
		err = errors.Join(err, f.copyToTargets(o, list, r))
	}
	if o.level != nil {
		err = errors.Join(err, f.copy(o, list, r))
	}
	for i := range list {
		err = errors.Join(err, f.retention.apply(&list[i], r == roundLast, f.mayRemove))
	}
	if err == nil && r == roundLast && o.unlisted { // the newest checkpoint is unknown, and may be on no other level
		return o.end()
	}
	return err
}

// copy copies checkpoints to the second level.
func (f *follower) copy(o *drainOptions, list []drain.Series, r round) error {
	src := newStoreSource(f.cmd.Context(), &o.reader)
	defer src.Close()
	var err error
	for i := range list {
		s := &list[i]
		drained := func(c *drain.Checkpoint) bool { return c.Drained != nil }
		if f.candidate(s, r, drained) == nil || r == roundDue && !f.due(s) {
			continue
		}
		err = errors.Join(err, f.newestReadable(s, r, drained, func(c *drain.Checkpoint) error {
			how := f.throttled(s, c, r, f.every)
			if r != roundLast { // after the job other hosts may no longer run peers
				how.Peers = os.Getenv(config.RunVariable)
			}
			how.Replace = o.keep > 0 && f.removable[s.Pattern]
			put, err := o.copySet(f.cmd, src, s.Pattern, c, how)
			if err != nil {
				return err
			}
			f.state(s).since, f.state(s).last = 0, time.Now()
			return f.retain(o.level, s.Pattern, put)
		}))
	}
	return err
}

// newestReadable copies the newest checkpoint that is due. If that cannot be read from the store, for instance because a sector is damaged,
// newestReadable prints the error once and copies the previous checkpoint.
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

// damagedKey identifies a checkpoint and its last change.
func damagedKey(s *drain.Series, c *drain.Checkpoint) string {
	return fmt.Sprintf("%q %q %d", s.Pattern, c.Name, c.Ended().UnixNano())
}

// Copying must not slow the job down: it takes at most 1/shareOfRate of the rate at which the job wrote the
// checkpoint, in case links and targets have only so much left, but at least leastRate.
const (
	shareOfRate = 20
	leastRate   = 16 << 20
)

// throttled returns the options of a copy. While the job runs, a copy has a low priority and a limited rate, which is
// high enough for the copy to end before the next one is due. After the job, or when it is about to end, a copy has
// no limit but --limit.
func (f *follower) throttled(s *drain.Series, c *drain.Checkpoint, r round, every pace) drain.Options {
	if r != roundDue {
		return drain.Options{Limit: int64(f.limit)}
	}
	rate := int64(f.limit)
	if rate == 0 {
		rate = max(leastRate, perSecond(c.Size(), c.Ended().Sub(c.Begun()))/shareOfRate, perSecond(4*c.Size(), untilNext(s, c, every)))
	}
	return drain.Options{Limit: rate, Background: true}
}

// untilNext estimates the time from a checkpoint to the next one that is due; 0 if unknown.
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

// perSecond returns a rate in bytes per second; 0 if the time is unknown.
func perSecond(bytes int64, in time.Duration) int64 {
	if in <= 0 {
		return 0
	}
	return int64(float64(bytes) / in.Seconds())
}

// settled reports whether a checkpoint has been unchanged for so long that it is no longer being written.
func settled(c *drain.Checkpoint) bool {
	return time.Since(c.Ended()) >= max(minSettled, c.Ended().Sub(c.Begun()))
}

// candidate returns the newest complete checkpoint of the store that can be read and is no longer being written, or nil if that one
// has been copied.
func (f *follower) candidate(s *drain.Series, r round, copied func(*drain.Checkpoint) bool) *drain.Checkpoint {
	for i := len(s.Checkpoints) - 1; i >= 0; i-- {
		c := &s.Checkpoints[i]
		if !c.Stored || !c.Complete() || f.damaged[damagedKey(s, c)] || r == roundDue && !settled(c) {
			continue
		}
		if copied(c) {
			return nil
		}
		return c
	}
	return nil
}

// due reports whether enough checkpoints have become complete, or enough time has passed, to copy the newest.
func (f *follower) due(s *drain.Series) bool {
	seen := f.state(s)
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

func (f *follower) state(s *drain.Series) *seriesState {
	if f.series[s.Pattern] == nil {
		f.series[s.Pattern] = &seriesState{seen: map[string]bool{}}
	}
	return f.series[s.Pattern]
}
