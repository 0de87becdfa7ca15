package bench

import (
	"context"
	"strings"
	"time"

	"nvmecr/bench/result"
	"nvmecr/nvmf"
)

// All runs the experiments one after another, as thoroughly as the time allows, and
// calls done after each. The result of an experiment that fails, or that has no time
// left, has the reason. All returns an error only if ctx ends. Before that it has
// called done for all earlier experiments.
func (e *Env) All(ctx context.Context, experiments []Experiment, within time.Duration, done func(*result.Result)) error {
	end := time.Now().Add(within)
	outer := e.Progress
	for i := range experiments {
		x := &experiments[i]
		if err := context.Cause(ctx); err != nil {
			return err
		}
		sized, ok := e.sizedFor(time.Until(end), experiments[i:])
		if !ok {
			done(x.without(timeOver))
			continue
		}
		if outer != nil {
			sized.Progress = func(what string, part float64) {
				outer(x.Name+": "+what, (float64(i)+part)/float64(len(experiments)))
			}
		}
		sized.until = time.Now().Add(2 * shareOf(x, time.Until(end), experiments[i:]))
		r, err := x.Measure(ctx, sized)
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx) // the end of ctx has caused err
		case err != nil:
			r = x.without(strings.TrimPrefix(err.Error(), "bench "+x.Name+": "))
		}
		done(r)
	}
	return nil
}

// timeOver is the reason why the last experiments are not measured.
const timeOver = "the time stated was over; --time sets it"

// without returns the result of an experiment that was not measured.
func (x *Experiment) without(why string) *result.Result {
	r := &result.Result{Name: x.Name, Title: x.Title, Shows: x.Paper, Began: time.Now()}
	r.NotMeasured(x.Name, "%s", why)
	return r
}

// shareOf returns the part of the remaining time that an experiment gets.
func shareOf(x *Experiment, left time.Duration, experiments []Experiment) time.Duration {
	all := time.Duration(0)
	for _, x := range experiments {
		all += expected(x.Name)
	}
	return time.Duration(float64(left) * float64(expected(x.Name)) / float64(all))
}

// expected returns the usual duration of an experiment.
func expected(name string) time.Duration { return max(usually[name], 5*time.Second) }

// usually has the durations of the experiments on a machine with few cores, with
// usualRounds.
var usually = map[string]time.Duration{
	"goals": 7 * time.Minute, "checkpoint": 3 * time.Minute, "recovery": 20 * time.Second, "hugeblock": 2 * time.Minute,
	"drilldown": 3 * time.Minute, "create": 30 * time.Second, "overhead": 5 * time.Second, "multilevel": 2 * time.Minute, "raw": 70 * time.Second,
	"background": time.Minute, "replay": time.Minute, "imbalance": 5 * time.Second, "metadata": 20 * time.Second, "scale": 30 * time.Second,
	"startup": 6 * time.Second, "view": 20 * time.Second, "tree": 90 * time.Second,
}

// If the remaining time is less than these parts of the usual time, an experiment is
// short. An experiment with a figure of the paper keeps its axes and its peers longer
// than others; its data is reduced first.
const (
	shortBelow      = 0.5
	paperShortBelow = 0.1
)

// whenShort is the part of its usual time that an experiment without a figure of the
// paper gets when time is short. So experiments with a figure get theirs.
const whenShort = 0.1

// partOfUsual returns the remaining time as a part of the usual time of the
// experiments. For experiments without a figure of the paper, only the part others of
// their usual time counts.
func partOfUsual(left time.Duration, experiments []Experiment, others float64) float64 {
	usual := 0.0
	for _, x := range experiments {
		if x.Paper == "" {
			usual += others * float64(expected(x.Name))
		} else {
			usual += float64(expected(x.Name))
		}
	}
	return float64(left) / usual
}

// sizedFor returns an environment for the first of the experiments, such that all of
// them take about the remaining time. It sets the number of rounds, and shortens
// experiments if there is little time. ok is false if no time is left.
func (e *Env) sizedFor(left time.Duration, experiments []Experiment) (sized *Env, ok bool) {
	if left <= 0 {
		return nil, false
	}
	o := *e
	if o.Fixed {
		return &o, true
	}
	share := partOfUsual(left, experiments, 1)
	if share < shortBelow && experiments[0].Paper != "" {
		share = min(shortBelow, partOfUsual(left, experiments, whenShort))
	}
	o.Rounds = min(max(int(usualRounds*share), 3), 3*usualRounds) | 1 // odd, so that the median is one of the rounds
	if experiments[0].Paper == "" {
		o.Quick = o.Quick || share < shortBelow
		return &o, true
	}
	o.Quick = o.Quick || share < paperShortBelow
	if share < shortBelow && o.Transfer > 0 {
		o.Size = max(whole(nvmf.Bytes(float64(o.Size)*share/shortBelow), o.Transfer), min(o.Size, 16*o.Transfer))
	}
	return &o, true
}
