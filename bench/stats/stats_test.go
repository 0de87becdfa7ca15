package stats

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSample checks the statistics of small samples.
func TestSample(t *testing.T) {
	tests := []struct {
		name                           string
		sample                         Sample
		median, low, high, mean, devia float64
	}{
		{"one", Sample{7}, 7, 7, 7, 7, 0},
		{"two", Sample{3, 1}, 2, 1.5, 2.5, 2, 1},
		{"odd, in no order", Sample{9, 1, 5, 3, 7}, 5, 3, 7, 5, math.Sqrt(8)},
		{"even", Sample{1, 2, 3, 4}, 2.5, 1.75, 3.25, 2.5, math.Sqrt(1.25)},
		{"an outlier moves only the mean", Sample{1, 2, 3, 4, 1000}, 3, 2, 4, 202, 399.0015},
		{"a textbook's deviation", Sample{2, 4, 4, 4, 5, 5, 7, 9}, 4.5, 4, 5.5, 5, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := append(Sample(nil), tt.sample...)
			low, high := tt.sample.Quartiles()
			assert.InDelta(t, tt.median, tt.sample.Median(), 1e-9)
			assert.InDelta(t, tt.low, low, 1e-9)
			assert.InDelta(t, tt.high, high, 1e-9)
			assert.InDelta(t, tt.mean, tt.sample.Mean(), 1e-9)
			assert.InDelta(t, tt.devia, tt.sample.Deviation(), 1e-3)
			assert.InDelta(t, tt.devia/tt.mean, tt.sample.Variation(), 1e-4)
			assert.Equal(t, before, tt.sample, "left as it was")
		})
	}
}

// TestQuantileEnds checks quantiles at the ends of their range and outside of it.
func TestQuantileEnds(t *testing.T) {
	s := Sample{4, 2, 8}
	assert.Equal(t, 2.0, s.Quantile(0))
	assert.Equal(t, 8.0, s.Quantile(1))
	assert.Equal(t, 8.0, s.Quantile(2))
	assert.Equal(t, 2.0, s.Quantile(-1))
}

// TestNothing checks that statistics without a value are NaN.
func TestNothing(t *testing.T) {
	var s Sample
	i := s.MedianInterval()
	for _, v := range []float64{s.Median(), s.Mean(), s.Deviation(), s.Variation(), i.Low, i.High, Sample{-1, 1}.Variation()} {
		assert.True(t, math.IsNaN(v))
	}
}

// TestMedianInterval compares intervals with the tables of the sign test.
func TestMedianInterval(t *testing.T) {
	for _, tt := range []struct {
		n, low, high int // ranks, from 1
		confidence   float64
	}{
		{1, 1, 1, 0}, {2, 1, 2, 0.5}, {5, 1, 5, 0.9375}, {6, 1, 6, 0.96875}, {8, 1, 8, 0.9922}, {9, 2, 8, 0.9609},
		{10, 2, 9, 0.9785}, {12, 3, 10, 0.9614}, {20, 6, 15, 0.9586}, {25, 8, 18, 0.9567}, {40, 14, 27, 0.9615}, {100, 40, 61, 0.9648},
	} {
		s := make(Sample, tt.n)
		for i := range s {
			s[i] = float64(i + 1)
		}
		rand.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
		got := s.MedianInterval()
		assert.Equal(t, [2]float64{float64(tt.low), float64(tt.high)}, [2]float64{got.Low, got.High}, "%d values", tt.n)
		assert.InDelta(t, tt.confidence, got.Confidence, 1e-4, "%d values", tt.n)
		assert.True(t, got.Contains(s.Median()))
	}
}

// TestIntervalHoldsWhatItSays draws many samples from a skewed distribution. The fraction of
// intervals that contain the true median must be their confidence.
func TestIntervalHoldsWhatItSays(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	const runs = 4000
	held := 0
	for range runs {
		s := make(Sample, 20)
		for i := range s {
			s[i] = r.ExpFloat64() // median ln 2
		}
		if s.MedianInterval().Contains(math.Ln2) {
			held++
		}
	}
	assert.InDelta(t, 0.9586, float64(held)/runs, 0.02)
}

// TestRatios checks the ratios of two samples, and the errors for invalid samples.
func TestRatios(t *testing.T) {
	got, err := Ratios(Sample{2, 9}, Sample{1, 3})
	require.NoError(t, err)
	assert.Equal(t, Sample{2, 3}, got)
	for _, bad := range [][2]Sample{{{1}, {1, 2}}, {{}, {}}, {{1}, {0}}, {{1}, {-1}}, {{1}, {math.NaN()}}} {
		_, err := Ratios(bad[0], bad[1])
		assert.Error(t, err, "%v", bad)
	}
}
