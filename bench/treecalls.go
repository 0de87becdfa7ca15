package bench

import (
	"context"
	"fmt"
	"path"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/tree/wire"
)

// treeCalls is the number of calls in a round.
const treeCalls = 200

// A treeCall is a call on a name that a single rank makes repeatedly.
type treeCall struct {
	what  string
	limit float64 // goal for the additional round trips; 0 means none
	// run makes the calls in a directory and returns the seconds of each.
	run func(ctx context.Context, a *application, dir string) (float64, error)
}

// named returns a function run for a call of nvmecr-bench-rank on a name.
func named(call, name string) func(context.Context, *application, string) (float64, error) {
	return func(ctx context.Context, a *application, dir string) (float64, error) {
		took, err := first(ctx, a, fmt.Sprintf("call %s %d 0 %s", call, treeCalls, path.Join(dir, name)), "body")
		return took / treeCalls, err
	}
}

// many has rank 0 create or remove files, and returns the seconds of the median call.
func many(command string) func(context.Context, *application, string) (float64, error) {
	return func(ctx context.Context, a *application, dir string) (float64, error) {
		return first(ctx, a, fmt.Sprintf("%s %d %s", command, treeCalls, path.Join(dir, "many.")), "p50")
	}
}

// first has rank 0 execute a command, and returns one of its times in seconds.
func first(ctx context.Context, a *application, command, part string) (float64, error) {
	done, err := a.group.Do(ctx, func(rank int) string {
		if rank > 0 {
			return ""
		}
		return command
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", command, err)
	}
	return done[0].Time(part).Seconds(), nil
}

// treeCallList is in an order in which each call finds the files that it needs.
var treeCallList = []treeCall{
	{"open and close for writing", 2, named("open-write", "file")},
	{"open and close for reading", 2, named("open", "file")},
	{"stat", 0, named("stat", "file")},
	{"fsync without anything new", 0, named("fsync", "file")},
	{"mkdir", 1, named("mkdir", "dir.")},
	{"rmdir", 1, named("rmdir", "dir.")},
	{"creating and closing a file", 2, many("create")},
	{"unlink", 1, many("remove")},
}

// calls measures how much longer single calls take than with --view=rank, in round
// trips to the index.
func (r *treeRanks) calls(ctx context.Context) error {
	index, err := r.job.dialIndex(wire.NoPartition)
	if err != nil {
		return err
	}
	defer index.Close()
	job, rank := make([]stats.Sample, len(treeCallList)), make([]stats.Sample, len(treeCallList))
	var trips stats.Sample
	for round := range r.Warm + r.Rounds {
		r.progress("single calls", round, r.Warm+r.Rounds)
		trip, err := index.each(treeCalls, index.nothing)
		if err != nil {
			return err
		}
		var took [2][]float64
		for i := range 2 {
			which := (i + round) % 2
			if took[which], err = callEach(ctx, []*application{r.job, r.rank}[which]); err != nil {
				return err
			}
		}
		if round < r.Warm {
			continue
		}
		trips = append(trips, trip)
		for i := range treeCallList {
			job[i], rank[i] = append(job[i], took[0][i]), append(rank[i], took[1][i])
		}
	}
	r.callTable(job, rank, trips)
	return nil
}

// callEach makes all calls, and returns the seconds of each.
func callEach(ctx context.Context, a *application) ([]float64, error) {
	var took []float64
	for _, c := range treeCallList {
		seconds, err := c.run(ctx, a, a.cfg.Mount)
		if err != nil {
			return nil, err
		}
		took = append(took, seconds)
	}
	return took, nil
}

// callTable adds the results.
func (r *treeRanks) callTable(job, rank []stats.Sample, trips stats.Sample) {
	r.res.Goals = append(r.res.Goals, result.Goal{
		What: "an empty round trip to the index", Aside: true, Unit: result.Duration, Measured: result.Interval(trips),
	})
	for i, c := range treeCallList {
		r.res.Goals = append(r.res.Goals, result.Goal{
			What: c.what + ", beyond --view=rank, in round trips to the index", Limit: c.limit, AtMost: true, Aside: c.limit == 0, Unit: result.Plain,
			Measured: result.Interval(extra(job[i], rank[i], trips)),
			Beside:   fmt.Sprintf("%s and %s", result.Duration.Full(job[i].Median()), result.Duration.Full(rank[i].Median())),
		})
	}
}

// extra returns how much longer each round of one side took than that of the other
// side, in units of a third time.
func extra(ours, beside, unit stats.Sample) stats.Sample {
	more := make(stats.Sample, len(ours))
	for i := range ours {
		more[i] = (ours[i] - beside[i]) / unit[i]
	}
	return more
}
