package bench

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/bench/result"
	"nvmecr/nvmf"
)

// TestSizedFor checks the number of rounds and the size of an experiment for different times.
func TestSizedFor(t *testing.T) {
	x := []Experiment{{Name: "checkpoint"}, {Name: "no such"}}
	usual := usually["checkpoint"] + 5*time.Second
	for _, tt := range []struct {
		left   time.Duration
		rounds int
		quick  bool
	}{{usual, 9, false}, {2 * usual, 19, false}, {100 * usual, 27, false}, {usual / 4, 3, true}, {time.Second, 3, true}} {
		e, ok := (&Env{}).sizedFor(tt.left, x)
		require.True(t, ok)
		assert.Equal(t, tt.rounds, e.Rounds, "%s", tt.left)
		assert.Equal(t, tt.quick, e.Quick, "%s", tt.left)
	}
	x[0].Paper = "Figure 7(c)"
	for _, tt := range []struct {
		left  time.Duration
		size  nvmf.Bytes
		quick bool
	}{{usual, 128 * nvmf.MiB, false}, {usual / 4, 65 * nvmf.MiB, false}, {usual / 9, 29 * nvmf.MiB, false}, {usual / 20, 16 * nvmf.MiB, true}} {
		e, ok := (&Env{Size: 128 * nvmf.MiB, Transfer: nvmf.MiB}).sizedFor(tt.left, x)
		require.True(t, ok)
		assert.Equal(t, tt.size, e.Size, "%s: a figure of the paper keeps its axes, with less data", tt.left)
		assert.Equal(t, tt.quick, e.Quick, "%s", tt.left)
	}
	_, ok := (&Env{}).sizedFor(0, x)
	assert.False(t, ok)
	e, ok := (&Env{Fixed: true, Rounds: 5}).sizedFor(time.Second, x)
	assert.True(t, ok)
	assert.Equal(t, 5, e.Rounds)
	assert.False(t, e.Quick)
}

// TestPaperFirst checks that the figures of the paper keep their axes and peers in a report of
// three minutes, even if a busy machine makes the first one take almost half of that time. With
// time for all experiments, none may be shortened.
func TestPaperFirst(t *testing.T) {
	e := &Env{Size: 128 * nvmf.MiB, Transfer: nvmf.MiB}
	for i, left := range []time.Duration{180 * time.Second, 100 * time.Second, 95 * time.Second} {
		sized, ok := e.sizedFor(left, Experiments[i:])
		require.True(t, ok)
		assert.False(t, sized.Quick, Experiments[i].Name)
	}
	left := time.Duration(0)
	for i := len(Experiments) - 1; i >= 0; i-- {
		left += expected(Experiments[i].Name)
		sized, ok := e.sizedFor(left, Experiments[i:])
		require.True(t, ok)
		assert.False(t, sized.Quick, Experiments[i].Name)
	}
}

// TestAll checks the results and the progress of a run, including those of an experiment that fails
// and of experiments without time.
func TestAll(t *testing.T) {
	var got []*result.Result
	var parts []float64
	experiments := []Experiment{
		{Name: "one", Run: func(_ context.Context, e *Env) (*result.Result, error) {
			e.progress("half", 1, 2)
			return &result.Result{Finding: "found"}, nil
		}},
		{Name: "two", Run: func(context.Context, *Env) (*result.Result, error) { return nil, errors.New("a disk is full") }},
	}
	e := &Env{Progress: func(what string, part float64) {
		assert.Equal(t, "one: half", what)
		parts = append(parts, part)
	}}
	take := func(r *result.Result) { got = append(got, r) }
	require.NoError(t, e.All(t.Context(), experiments, time.Hour, take))
	require.Len(t, got, 2)
	assert.Equal(t, "found", got[0].Finding)
	assert.Equal(t, []float64{0.25}, parts)
	require.Len(t, got[1].Missing, 1)
	assert.Contains(t, got[1].Missing[0].Why, "a disk is full")

	got = nil
	require.NoError(t, e.All(t.Context(), experiments, 0, take))
	require.Len(t, got, 2)
	assert.Contains(t, got[0].Missing[0].Why, "--time")
}

// TestAllStops checks that the end of the context ends the run.
func TestAllStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	experiments := []Experiment{
		{Name: "one", Run: func(context.Context, *Env) (*result.Result, error) {
			cancel()
			return nil, errors.New("killed")
		}},
		{Name: "two", Run: func(context.Context, *Env) (*result.Result, error) {
			assert.Fail(t, "an experiment runs after the context was canceled")
			return nil, nil
		}},
	}
	err := (&Env{}).All(ctx, experiments, time.Hour, func(*result.Result) { assert.Fail(t, "there is no result") })
	assert.ErrorIs(t, err, context.Canceled)
}

// TestGoalsEnd checks that the goals end when their part of a report's time is over.
func TestGoalsEnd(t *testing.T) {
	r, err := goals(t.Context(), &Env{until: time.Now().Add(-time.Second)})
	require.NoError(t, err)
	assert.Empty(t, r.Goals)
	require.Len(t, r.Missing, len(goalParts))
	assert.Equal(t, timeOver, r.Missing[0].Why)
}

// TestShareOf checks the part of the remaining time that an experiment gets.
func TestShareOf(t *testing.T) {
	x := []Experiment{{Name: "overhead"}, {Name: "no such"}}
	assert.Equal(t, time.Minute, shareOf(&x[0], 2*time.Minute, x))
	assert.Equal(t, time.Minute, shareOf(&x[1], time.Minute, x[1:]))
}
