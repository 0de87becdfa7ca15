package model

import (
	"math"
	"reflect"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/balancer"
	"nvmecr/bench/stats"
	"nvmecr/internal/parttable"
)

func variation(loads []uint64) float64 {
	s := make(stats.Sample, len(loads))
	for i, l := range loads {
		s[i] = float64(l)
	}
	return s.Variation()
}

func place(t *testing.T, name string) Placement {
	for _, p := range Placements {
		if p.Name == name {
			return p
		}
	}
	require.Fail(t, "no placement "+name)
	return Placement{}
}

// TestPlacementsPlaceEverything checks that the loads of a placement have the size of all files,
// and that a placement is deterministic.
func TestPlacementsPlaceEverything(t *testing.T) {
	for _, p := range Placements {
		for _, ranks := range []int{0, 1, 7, 8, 28, 448, 5000} {
			for _, targets := range []int{1, 3, 8, 64} {
				for _, size := range []uint64{0, 1, 65536, 1<<20 + 3, 156 << 20} {
					loads := p.Place(ranks, targets, size, 3)
					sum := uint64(0)
					for _, l := range loads {
						sum += l
					}
					assert.Len(t, loads, targets)
					assert.Equal(t, uint64(ranks)*size, sum, "%s: %d ranks on %d targets, %d bytes", p.Name, ranks, targets, size)
					assert.GreaterOrEqual(t, Slowest(loads), 1.0)
					assert.Equal(t, loads, p.Place(ranks, targets, size, 3))
				}
			}
		}
	}
}

// TestRoundRobinIsEven checks that loads of round robin are equal, or differ by one rank.
func TestRoundRobinIsEven(t *testing.T) {
	for _, ranks := range []int{8, 56, 112, 448, 1 << 20} {
		assert.Zero(t, variation(roundRobin(ranks, 8, 1000, 0)))
	}
	loads := roundRobin(28, 8, 1, 0)
	assert.Equal(t, []uint64{4, 4, 4, 4, 3, 3, 3, 3}, loads, "28 ranks on 8 targets differ by one")
	assert.InDelta(t, 4/3.5, Slowest(loads), 1e-9)
}

// TestHashesSpreadLikeDice checks the deviation of hashes that spread evenly. It is that of throws
// of a die with T sides: for N ranks on T targets sqrt((T-1)/N) of the mean.
func TestHashesSpreadLikeDice(t *testing.T) {
	for _, name := range []string{"hash ranges", "jump hash"} {
		p := place(t, name)
		for _, ranks := range []int{28, 448, 20000} {
			var v stats.Sample
			for trial := range uint64(60) {
				v = append(v, variation(p.Place(ranks, 8, 1, trial)))
			}
			want := math.Sqrt(7 / float64(ranks))
			assert.InEpsilon(t, want, v.Mean(), 0.12, "%s, %d ranks", name, ranks)
		}
	}
	// The targets' shares of a hash ring differ, for any number of ranks.
	assert.Greater(t, variation(hashRing(100_000, 8, 1, 0)), 0.03)
	// Striping gives nearly equal loads for large files.
	assert.Less(t, variation(striping(28, 8, 156<<20+1000, 0)), 0.001)
}

// TestTrialsDiffer checks that placements by names differ between trials.
func TestTrialsDiffer(t *testing.T) {
	for _, name := range []string{"hash ranges", "jump hash", "hash ring"} {
		p := place(t, name)
		assert.NotEqual(t, p.Place(448, 8, 1, 1), p.Place(448, 8, 1, 2), name)
	}
}

// TestJump checks that an additional bucket gets keys from the others, and that no key moves
// between these.
func TestJump(t *testing.T) {
	assert.Equal(t, 0, Jump(12345, 1))
	for key := range uint64(2000) {
		key = mix(key)
		for n := 1; n < 20; n++ {
			before, after := Jump(key, n), Jump(key, n+1)
			assert.True(t, before >= 0 && before < n)
			if before != after {
				assert.Equal(t, n, after, "keys move only into the new bucket")
			}
		}
	}
}

var costs = Costs{RankMessages: 60, RankBytes: 9000, FormatMessages: 300, MountOne: 3 * time.Millisecond, MountEach: 100 * time.Microsecond,
	FormatBase: 2 * time.Millisecond, Format: time.Microsecond, Poll: 20 * time.Millisecond, Home: 10 * time.Nanosecond, Efficiency: 0.95}

// TestPredict compares a prediction with values that were computed by hand.
func TestPredict(t *testing.T) {
	o := Job{448, 156 << 20}.Predict(PaperFabric, costs)
	assert.Equal(t, 4, o.Targets)
	assert.Equal(t, 112, o.Fullest)
	assert.Equal(t, 18, o.Depth) // 2 collectives of 9 steps
	assert.Equal(t, uint64(448*18), o.Collectives)
	assert.Equal(t, uint64(448*60+4*300), o.Messages)
	assert.Equal(t, 36*time.Microsecond+3*time.Millisecond+111*100*time.Microsecond, o.Restart)
	assert.Equal(t, o.Restart+22*time.Millisecond+112*time.Microsecond, o.Start)
	assert.InEpsilon(t, 112*156*1048576/(2.5e9*0.95), o.Checkpoint.Seconds(), 1e-6)
	assert.Equal(t, "the media", o.Limit)
}

// TestPredictOne checks the prediction for a single rank.
func TestPredictOne(t *testing.T) {
	o := Job{1, 1 << 20}.Predict(PaperFabric, costs)
	assert.Equal(t, 1, o.Targets)
	assert.Equal(t, 1, o.Fullest)
	assert.Zero(t, o.Depth)
	assert.Zero(t, o.Collectives)
	assert.Equal(t, o.Restart+2*time.Millisecond+time.Microsecond, o.Start, "a single rank waits for no other rank")
}

// TestPredictScales checks that the load of a target does not grow beyond a number of ranks, and
// that the start grows only with the depth of MPI's collectives.
func TestPredictScales(t *testing.T) {
	var last Prediction
	for n := 1; n <= 1_000_000; n *= 10 {
		o := Job{n, 156 << 20}.Predict(PaperFabric, costs)
		assert.LessOrEqual(t, o.Fullest, PaperFabric.RanksPerTarget)
		assert.GreaterOrEqual(t, o.Targets*o.Fullest, n)
		assert.GreaterOrEqual(t, o.Messages, last.Messages)
		assert.GreaterOrEqual(t, o.Restart, last.Restart-time.Duration(last.Fullest)*costs.MountEach)
		assert.Greater(t, o.Start, o.Restart)
		if n > 1000 {
			grown := o.Restart - last.Restart
			assert.Less(t, grown, time.Millisecond, "%d ranks", n)
			assert.Equal(t, last.TableBytes, o.TableBytes)
			assert.InEpsilon(t, last.Checkpoint.Seconds(), o.Checkpoint.Seconds(), 0.02)
		}
		last = o
	}
	assert.Equal(t, 2*20, last.Depth)
}

// TestLimits checks which part of the hardware is named as the bottleneck.
func TestLimits(t *testing.T) {
	slowLink := PaperFabric
	slowLink.TargetLink = 1e9
	assert.Equal(t, "the targets' network", Job{448, 1 << 20}.Predict(slowLink, costs).Limit)
	fast := PaperFabric
	fast.Target, fast.TargetLink = 1e12, 1e12
	assert.Equal(t, "the ranks' network", Job{448, 1 << 20}.Predict(fast, costs).Limit)
}

// TestSizes compares the sizes of structures in the model with those in the code.
func TestSizes(t *testing.T) {
	mapping, err := balancer.RoundRobin(2, 1)
	require.NoError(t, err)
	assert.EqualValues(t, mappingBytes, unsafe.Sizeof(mapping)+reflect.TypeOf(mapping).Size())
	assert.EqualValues(t, sharerBytes, unsafe.Sizeof(int(0)))
	assert.EqualValues(t, (uint64(parttable.HeadSize/2-parttable.RunRecordSize)-headerBytes)/entryBytes, parttable.MaxEntries)
	assert.EqualValues(t, 2*(4096+4096), tableBytes(112))
}

// TestParseFabric checks which descriptions of a fabric are accepted.
func TestParseFabric(t *testing.T) {
	f, err := ParseFabric(FabricSyntax)
	require.NoError(t, err)
	assert.Equal(t, FabricSyntax, f.Name)
	f.Name = PaperFabric.Name
	assert.Equal(t, PaperFabric, f)
	f, err = ParseFabric(" ")
	require.NoError(t, err)
	assert.Equal(t, PaperFabric, f)
	f, err = ParseFabric("target=300M latency=30us")
	require.NoError(t, err)
	assert.Equal(t, 3e8, f.Target)
	assert.Equal(t, 30*time.Microsecond, f.Latency)
	assert.Equal(t, 28, f.RanksPerNode)
	for _, bad := range []string{"target", "target=0", "target=-1", "target=x", "target=1KK", "target=1e300", "link=NaN", "ranks-per-node=0", "ranks-per-target=-1", "latency=2", "latency=-2us", "speed=1", "="} {
		_, err := ParseFabric(bad)
		assert.ErrorContains(t, err, strconv.Quote(bad))
	}
}

// TestTree checks that the costs of one index, which answers one request after another, and the
// number of indexes that would be needed grow with the number of ranks.
func TestTree(t *testing.T) {
	c := IndexCosts{Trip: 20 * time.Microsecond, Open: 50 * time.Microsecond, Create: 100 * time.Microsecond, Publish: 100 * time.Microsecond,
		Hello: 50 * time.Microsecond, Look: 10 * time.Microsecond, MountName: time.Microsecond, Name: 400}
	for _, tt := range []struct {
		ranks           int
		create, restart time.Duration
		indexes         int
	}{
		{1, 240 * time.Microsecond, time.Second + 170*time.Microsecond, 1},
		{10_000, 2*time.Second + 40*time.Microsecond, time.Second + 1700*time.Millisecond, 3},
	} {
		p := Prediction{Ranks: tt.ranks, Restart: time.Second, Checkpoint: 10 * time.Second}.Tree(c, 10)
		assert.Equal(t, tt.create, p.Create)
		assert.Equal(t, tt.restart, p.Restart)
		assert.Equal(t, tt.indexes, p.Indexes)
		assert.Equal(t, float64(tt.ranks)*4000, p.Memory)
	}
}
