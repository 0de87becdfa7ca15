package command

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/checkpoint"
	"nvmecr/checkpoint/interval"
	"nvmecr/internal/cli"
	"nvmecr/nvmf"
)

type adviseOptions struct {
	levelReader
	json    bool
	mtbf    durationFlag
	mtbf2   durationFlag
	restart durationFlag
}

// defaultRestart is the time from a failure until the job continues, unless a flag gives it.
const defaultRestart = time.Minute

func newAdvise() *cobra.Command {
	o := &adviseOptions{restart: durationFlag(defaultRestart)}
	cmd := &cobra.Command{
		Use:   "advise --mtbf TIME [flags] [PATTERN]",
		Short: "Suggest how often to write checkpoints",
		Long: `Suggests the checkpoint interval at which a job loses the least time to checkpoints and to work
repeated after failures (Young, Daly), and prints what the present interval costs. The cost of a
checkpoint and the present interval are measured from those in the store: a checkpoint takes the time from
when its first file was created until its last one was changed, the median of all.

With --mtbf2, the mean time between failures that the store does not survive, it also suggests how
often to copy a checkpoint to the second level (--level2-every).`,
		Example: `  nvmecr advise --name melt --mtbf 24h
  nvmecr advise --name melt --mtbf 24h --mtbf2 30d 'melt.{step}.*'`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			defer o.close()
			if o.mtbf <= 0 {
				return cli.UsageError{Err: errors.New("--mtbf: how long the job runs between two failures, on average, such as 24h or 7d")}
			}
			a, err := o.advise(cmd, optionalArg(args))
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), a)
			}
			return a.print(cmd.OutOrStdout())
		},
	}
	o.bindSets(cmd, "level2", "copies")
	cmd.Flags().Var(&o.mtbf, "mtbf", "mean `TIME` between failures of the job, such as 24h or 7d [NVMECR_MTBF]")
	cmd.Flags().Var(&o.mtbf2, "mtbf2", "mean `TIME` between failures after which the store is lost, too [NVMECR_MTBF2]")
	cmd.Flags().Var(&o.restart, "restart", "`TIME` it takes from a failure until the job goes on [NVMECR_RESTART]")
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON, times in seconds [NVMECR_JSON]")
	return cmd
}

// An advice is the result of nvmecr advise. Times are in seconds.
type advice struct {
	Pattern     string  `json:"pattern"`
	Checkpoints int     `json:"checkpoints"` // number of complete ones
	Size        int64   `json:"size"`        // of the newest, in bytes
	Cost        float64 `json:"cost"`
	Interval    float64 `json:"interval,omitempty"` // the present one; 0 if there is only one checkpoint
	Lost        float64 `json:"lost,omitempty"`     // fraction of the time lost at the present interval
	Best        float64 `json:"best"`
	LostAtBest  float64 `json:"lostAtBest"`
	Every       int     `json:"level2Every,omitempty"`
}

func (o *adviseOptions) advise(cmd *cobra.Command, pattern string) (*advice, error) {
	list, err := o.allLevels(cmd, pattern)
	if err != nil {
		return nil, err
	}
	s, err := choose(list, "advise --mtbf "+o.mtbf.String())
	if err != nil {
		return nil, err
	}
	var sets []*checkpoint.Set
	copied := 0
	for _, c := range s.Stored() {
		if copiedBack(&c.Set) {
			copied++
		} else {
			sets = append(sets, &c.Set)
		}
	}
	if len(sets) == 0 && copied > 0 {
		return nil, fmt.Errorf("store %q: the checkpoints of %s were copied there with the times that they had: there is nothing to measure until the job has written one", o.cfg.Name, s.Pattern)
	}
	if len(sets) == 0 {
		return nil, fmt.Errorf("store %q: no complete checkpoint matches %s: there is nothing to measure yet", o.cfg.Name, s.Pattern)
	}
	a := &advice{Pattern: s.Pattern}
	level := a.measure(sets, time.Duration(o.mtbf), time.Duration(o.restart))
	if len(sets) > 1 && a.overlap() {
		return nil, fmt.Errorf("checkpoints of %s take %s, and one is complete each %s: some ranks write one while others still write the one before, so files do not say what a checkpoint costs",
			s.Pattern, shortTime(a.Cost), shortTime(a.Interval))
	}
	if o.mtbf2 > 0 {
		a.Every = interval.Every(level, interval.Level{Cost: level.Cost, MTBF: time.Duration(o.mtbf2)})
	}
	return a, nil
}

// copiedBack reports whether files of a checkpoint were created after the last change: they were copied there, so their times do not tell how
// long the application wrote.
func copiedBack(s *checkpoint.Set) bool {
	return slices.ContainsFunc(s.Files, func(f checkpoint.File) bool { return f.Created.After(s.Ended()) })
}

// measure sets the cost and the interval of a from complete checkpoints, oldest first. With a mean time between
// failures it also sets what is lost at the present interval, and the best interval.
func (a *advice) measure(sets []*checkpoint.Set, mtbf, restart time.Duration) interval.Level {
	var costs, gaps []time.Duration
	for i, c := range sets {
		costs = append(costs, max(c.Ended().Sub(c.Begun()), time.Microsecond))
		if i > 0 {
			gaps = append(gaps, c.Ended().Sub(sets[i-1].Ended()))
		}
	}
	level := interval.Level{Cost: median(costs), Restart: restart, MTBF: mtbf}
	a.Checkpoints, a.Size, a.Cost = len(sets), sets[len(sets)-1].Size(), level.Cost.Seconds()
	if mtbf > 0 {
		a.Best, a.LostAtBest = level.Best().Seconds(), level.Lost(level.Best())
	}
	if len(gaps) > 0 {
		now := median(gaps)
		a.Interval = now.Seconds()
		if mtbf > 0 {
			a.Lost = level.Lost(now)
		}
	}
	return level
}

// overlap reports whether some ranks write the next checkpoint while others still write the current one. The duration
// of a checkpoint is not its cost then.
func (a *advice) overlap() bool { return a.Cost >= a.Interval }

// inSummary returns the line about the checkpoints of a run for its summary.
func (a *advice) inSummary(mtbf time.Duration) string {
	line := fmt.Sprintf("nvmecr: a checkpoint of %s takes %s, one in %s: %.2f%% of the time", printable(a.Pattern), shortTime(a.Cost), shortTime(a.Interval), 100*a.Cost/a.Interval)
	if mtbf > 0 {
		line += fmt.Sprintf("; with failures %.2f%% is lost, with one in %s it would be %.2f%%", 100*a.Lost, shortTime(a.Best), 100*a.LostAtBest)
	}
	return line
}

// shortTime formats a time in seconds for people, rounded.
func shortTime(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d > time.Minute:
		return d.Round(time.Second).String()
	case d > time.Second:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}

func (a *advice) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: a checkpoint of %s takes %s (median of %d)\n", printable(a.Pattern), size(nvmf.Bytes(a.Size)), shortTime(a.Cost), a.Checkpoints)
	if a.Interval > 0 {
		fmt.Fprintf(&b, "at present one in %s: %.2f%% of the time is lost to checkpoints and failures\n", shortTime(a.Interval), 100*a.Lost)
	}
	fmt.Fprintf(&b, "best one in %s: %.2f%% is lost\n", shortTime(a.Best), 100*a.LostAtBest)
	if a.Every > 0 {
		fmt.Fprintf(&b, "to the second level each %s: --level2-every %d\n", ordinal(a.Every), a.Every)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// ordinal formats a number as "1st", "12th".
func ordinal(n int) string {
	end := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			end = "st"
		case 2:
			end = "nd"
		case 3:
			end = "rd"
		}
	}
	return strconv.Itoa(n) + end
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}

// A durationFlag is a duration flag that also accepts days: 7d.
type durationFlag time.Duration

// String returns the value in a form that Set accepts; "" for zero.
func (s *durationFlag) String() string {
	if *s == 0 {
		return ""
	}
	return time.Duration(*s).String()
}

// Set parses a duration such as 24h, or days such as 7d.
func (s *durationFlag) Set(text string) error {
	d, err := parseSpan(text)
	*s = durationFlag(d)
	return err
}

func parseSpan(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseFloat(days, 64); err == nil && n > 0 && n < 1e5 {
			return time.Duration(n * float64(24*time.Hour)), nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a time such as 24h or 7d", text)
	}
	return d, nil
}

// Type is the name of the value in help texts.
func (s *durationFlag) Type() string { return "time" }
