package microfs

import (
	"flag"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
)

var crashImages = flag.Int("crash-images", 3000, "how many images TestCrashLong mounts at least")

// TestCrashLong crashes into long random workloads at random events, and mounts random images of these
// crashes. `make fuzz` runs it with a million images.
func TestCrashLong(t *testing.T) {
	skipRace(t)
	seed := newSeed(t)
	began := time.Now()
	var mu sync.Mutex // guards total and cov
	total, cov := crashCounts{}, coverage{}
	t.Run("threads", func(t *testing.T) {
		threads := runtime.GOMAXPROCS(0)
		for i := range threads {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				n, seen := crashLong(t, seed+uint64(i), *crashImages/threads)
				mu.Lock()
				defer mu.Unlock()
				total.add(n)
				cov.add(seen)
			})
		}
	})
	took := time.Since(began)
	t.Logf("%s in %v, %.0f a second\n%s", &total, took, float64(total.all())/took.Seconds(), cov)
	if *crashImages >= 100000 {
		cov.require(t, mustCover...)
	}
}

func crashLong(t *testing.T, seed uint64, images int) (total crashCounts, cov coverage) {
	configs := everyConfig(setups)
	cov = coverage{}
	for n := uint64(0); total.images < images; n++ {
		r := rand.New(rand.NewPCG(seed, n))
		c := newCrasher(t, configs[r.IntN(len(configs))], r.Uint64())
		c.again = 0.3
		c.images.OnlySamples, c.images.Samples = true, 4
		for range 4 {
			if run := c.record(randomLetters(r, 5+r.IntN(60))); run != nil {
				run.from = 0
				c.crash(run)
			}
		}
		total.add(c.n)
		cov.add(c.cov)
	}
	return total, cov
}

// randomLetters returns n random letters. A letter that is not possible in a state becomes an operation
// that does nothing.
func randomLetters(r *rand.Rand, n int) []letter {
	var list []letter
	for range n {
		l := alphabet[r.IntN(len(alphabet))]
		if r.IntN(2) == 0 {
			l = alphabet[r.IntN(3)] // writes
		}
		list = append(list, letter{l.name, func(m *model) (op, bool) {
			o, ok := l.op(m)
			if !ok {
				o = op{name: "nothing", fs: func(*FS) error { return nil }, model: func(*model) {}}
			}
			return o, true
		}})
	}
	return list
}
