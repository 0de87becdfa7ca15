// Package stats has statistics for small numbers of repeated measurements.
//
// It makes no assumption about the distribution of the measurements, which has a long
// tail to one side on a machine with other users. So the centre is the median, the
// quartiles give the spread, and an interval for the median comes from order
// statistics. Of n values in ascending order, the k-th smallest and the k-th largest
// enclose the true median, unless fewer than k of the n values are on one side of it.
// The probability of that is the probability of fewer than k heads in n throws of a
// coin.
//
// All functions are pure, and do not change their arguments.
package stats

import (
	"fmt"
	"math"
	"slices"
)

// A Sample has the results of repeated measurements, in the order in which they were made.
type Sample []float64

// Median returns the middle value; for an even number of values, the mean of the two
// middle values; for an empty sample, NaN.
func (s Sample) Median() float64 { return s.Quantile(0.5) }

// Quantile returns the value below which the fraction p of the sample lies: the minimum
// for 0, the maximum for 1. It interpolates between values of the sample (like R's type
// 7). It returns NaN for an empty sample.
func (s Sample) Quantile(p float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	at := min(max(p, 0), 1) * float64(len(s)-1)
	below := int(at)
	if below == len(s)-1 {
		return sorted[below]
	}
	return sorted[below] + (at-float64(below))*(sorted[below+1]-sorted[below])
}

// Quartiles returns the ends of the middle half of the sample.
func (s Sample) Quartiles() (low, high float64) { return s.Quantile(0.25), s.Quantile(0.75) }

// Mean returns the arithmetic mean, or NaN for an empty sample.
func (s Sample) Mean() float64 {
	sum := 0.0
	for _, v := range s {
		sum += v
	}
	return sum / float64(len(s))
}

// Deviation returns the standard deviation of the population: the root of the mean square distance
// from the mean. NaN for an empty sample.
func (s Sample) Deviation() float64 {
	mean, sum := s.Mean(), 0.0
	for _, v := range s {
		sum += (v - mean) * (v - mean)
	}
	return math.Sqrt(sum / float64(len(s)))
}

// Variation returns the coefficient of variation: the deviation as a fraction of the mean. It is 0
// if all values are equal. NaN for an empty sample, or one with mean 0.
func (s Sample) Variation() float64 {
	if mean := s.Mean(); mean != 0 {
		return s.Deviation() / math.Abs(mean)
	}
	return math.NaN()
}

// An Interval encloses the true median with the given confidence.
type Interval struct {
	Low, High  float64
	Confidence float64 // at least 0.95 if the sample has 6 values or more
}

// Contains reports whether v is in the interval.
func (i Interval) Contains(v float64) bool { return i.Low <= v && v <= i.High }

// MedianInterval returns the narrowest interval with a confidence of at least 0.95.
// With fewer than 6 values no interval has this confidence: then the ends are the
// minimum and the maximum, with their confidence. A single value has no interval.
func (s Sample) MedianInterval() Interval {
	if len(s) == 0 {
		return Interval{Low: math.NaN(), High: math.NaN()}
	}
	sorted := slices.Sorted(slices.Values(s))
	// outside is the probability that fewer than k+1 values are on one side.
	k, outside := 0, coin(len(s), 0)
	for k+1 < len(s)/2 {
		next := outside + coin(len(s), k+1)
		if 2*next > 0.05 {
			break
		}
		k, outside = k+1, next
	}
	return Interval{sorted[k], sorted[len(s)-1-k], max(0, 1-2*outside)}
}

// coin returns the probability of k heads in n throws.
func coin(n, k int) float64 {
	all, _ := math.Lgamma(float64(n + 1))
	some, _ := math.Lgamma(float64(k + 1))
	rest, _ := math.Lgamma(float64(n - k + 1))
	return math.Exp(all - some - rest - float64(n)*math.Ln2)
}

// Ratios returns the ratio of each pair. The load of the machine changes over time, so only
// measurements that follow each other may be compared. It fails if the two samples have different
// lengths or are empty, or if a divisor is not above 0.
func Ratios(numerators, denominators Sample) (Sample, error) {
	if len(numerators) != len(denominators) || len(numerators) == 0 {
		return nil, fmt.Errorf("%d and %d measurements are not pairs", len(numerators), len(denominators))
	}
	ratios := make(Sample, len(numerators))
	for i, d := range denominators {
		if !(d > 0) {
			return nil, fmt.Errorf("measurement %d is %v: no ratio to that", i, d)
		}
		ratios[i] = numerators[i] / d
	}
	return ratios, nil
}
