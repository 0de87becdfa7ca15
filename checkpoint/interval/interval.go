// Package interval says how often a job should write checkpoints, from what one costs and how often
// the job fails.
//
// Too few checkpoints lose work at each failure, too many lose the time they take. Young (CACM 1974) and Daly (FGCS
// 2006) give the interval at which the sum is least. With a second level, which survives failures that the first does not,
// each level has an optimum of its own, as Moody et al. (SC 2010) and Di et al. (IPDPS 2014) show; to first order the
// two do not depend on each other.
//
// The functions keep nothing and may be called from any goroutine.
package interval

import (
	"math"
	"time"
)

// A Level is a place where checkpoints are kept.
type Level struct {
	Cost    time.Duration // time that a checkpoint takes from the job; positive
	Restart time.Duration // time until the job continues from a checkpoint
	MTBF    time.Duration // mean time between failures that are recovered from this level; positive
}

// Best returns the optimal time between the ends of two checkpoints: Daly's equation 37. If failures are more
// frequent than a checkpoint takes, it is the mean time between failures.
func (l Level) Best() time.Duration {
	cost, mtbf := l.Cost.Seconds(), l.MTBF.Seconds()
	if cost >= 2*mtbf {
		return l.MTBF
	}
	half := cost / (2 * mtbf)
	work := math.Sqrt(2*cost*mtbf)*(1+math.Sqrt(half)/3+half/9) - cost
	return seconds(max(work, cost) + cost)
}

// Young returns the interval of Young's formula, the first order of Best, as the time of work between two checkpoints.
func (l Level) Young() time.Duration {
	return seconds(math.Sqrt(2 * l.Cost.Seconds() * l.MTBF.Seconds()))
}

// Lost returns the fraction of time that is lost to checkpoints, repeated work and restarts, by Daly's equation 20.
// It is 1 if the interval leaves no time to work.
func (l Level) Lost(interval time.Duration) float64 {
	work := (interval - l.Cost).Seconds()
	if work <= 0 {
		return 1
	}
	mtbf := l.MTBF.Seconds()
	wall := mtbf * math.Exp(l.Restart.Seconds()/mtbf) * math.Expm1(interval.Seconds()/mtbf) / work // per second of work
	return 1 - 1/wall
}

// Every returns n such that every n-th checkpoint should go to the second level; at least 1.
func Every(first, second Level) int {
	return max(1, int(math.Round(second.Best().Seconds()/first.Best().Seconds())))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
