package bench

import (
	"context"
	"strings"
	"time"

	"nvmecr/bench/result"
	"nvmecr/nvmf"
)

// All runs the experiments one after the other, as thoroughly as the time
// allows, and calls done after each. One that fails is a result too, which says
// why there is none; one for which there was no time left says that. The error
// is the context's: what has been found until then was given to done.
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
			return context.Cause(ctx) // what else went wrong is its consequence
		case err != nil:
			r = x.without(strings.TrimPrefix(err.Error(), "bench "+x.Name+": "))
		}
		done(r)
	}
	return nil
}

// timeOver is why what comes last is not measured.
const timeOver = "the time stated was over; --time sets it"

// without is the result of an experiment that has none.
func (x *Experiment) without(why string) *result.Result {
	r := &result.Result{Name: x.Name, Title: x.Title, Shows: x.Paper, Began: time.Now()}
	r.NotMeasured(x.Name, "%s", why)
	return r
}

// shareOf is what the experiment has of the time that is left for all of them.
func shareOf(x *Experiment, left time.Duration, experiments []Experiment) time.Duration {
	all := time.Duration(0)
	for _, x := range experiments {
		all += expected(x.Name)
	}
	return time.Duration(float64(left) * float64(expected(x.Name)) / float64(all))
}

// expected is how long an experiment takes, as far as is known.
func expected(name string) time.Duration { return max(usually[name], 5*time.Second) }

// usually is how long the experiments take on a machine of few cores, with
// usualRounds.
var usually = map[string]time.Duration{
	"goals": 7 * time.Minute, "checkpoint": 3 * time.Minute, "recovery": 20 * time.Second, "hugeblock": 2 * time.Minute,
	"drilldown": 3 * time.Minute, "create": 30 * time.Second, "overhead": 5 * time.Second, "multilevel": 2 * time.Minute, "raw": 70 * time.Second,
	"background": time.Minute, "replay": time.Minute, "imbalance": 5 * time.Second, "metadata": 20 * time.Second, "scale": 30 * time.Second,
	"startup": 6 * time.Second, "view": 20 * time.Second, "tree": 90 * time.Second,
}

// Shares of the usual time below which an experiment is short. One that shows a figure of the paper keeps its axes and its
// peers longer than others do: it moves less data before.
const (
	shortBelow      = 0.5
	paperShortBelow = 0.1
)

// sizedFor returns an environment for the first of the experiments such that all
// of them take about the time that is left: fewer rounds, or more, and the
// short forms if there is little time. ok is false if nothing is left.
func (e *Env) sizedFor(left time.Duration, experiments []Experiment) (sized *Env, ok bool) {
	if left <= 0 {
		return nil, false
	}
	o := *e
	if o.Fixed {
		return &o, true
	}
	usual := time.Duration(0)
	for _, x := range experiments {
		usual += expected(x.Name)
	}
	share := float64(left) / float64(usual)
	o.Rounds = min(max(int(usualRounds*share), 3), 3*usualRounds) | 1 // odd: one is in the middle
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
