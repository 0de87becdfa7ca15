package microfs

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf/blocktest/crash"
)

// threadCall is one operation of a thread. When the trace had begin events the operation had not begun,
// or had just begun. When the trace had end events the operation had returned.
type threadCall struct {
	begin, end int
	fsync      bool
}

// thread is one of several threads that use a file system concurrently. Each thread has its own file.
type thread struct {
	name   string
	ino    Ino
	calls  []threadCall
	states []string // of its file, before the first call and after each
}

// TestCrashGroup crashes while several threads are in the middle of calls. The calls take turns under
// one lock, but share log pages, so that an image in flight has records of several threads. The test
// checks two things. The file of each thread has the effects of all acknowledged operations of that
// thread, and of at most one more. If an operation is there, then all operations of other threads that
// were acknowledged before it began are there, too.
func TestCrashGroup(t *testing.T) {
	seed := newSeed(t)
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	total, cov := crashCounts{}, coverage{}
	for n := range uint64(rounds) {
		cfg := everyConfig(setups[:1])[n%8]
		c := newCrasher(t, cfg, seed+n)
		c.images.OnlySamples, c.images.Samples = true, 5
		c.runThreads(seed + n)
		total.add(c.n)
		cov.add(c.cov)
	}
	t.Logf("%s\n%s", &total, cov)
	cov.require(t, "a group of threads", "a coalesced image in flight", "a crash between calls of threads")
}

func (c *crasher) runThreads(seed uint64) {
	const threads, calls = 4, 12
	c.live.Pause = runtime.Gosched // lets the other threads run until they wait for the lock
	c.live.Record()
	fs := c.mount(c.live)
	list := make([]*thread, threads)
	var wg sync.WaitGroup
	for i := range list {
		th := &thread{name: fmt.Sprintf("/t%d", i)}
		list[i] = th
		f, err := fs.Open(RootIno, th.name, unix.O_CREAT|unix.O_RDWR, 0o600)
		require.NoError(c.t, err)
		th.ino = f.Ino()
	}
	require.NoError(c.t, fs.Sync())
	from := c.live.Events()
	for i, th := range list {
		wg.Go(func() { th.run(c, fs, rand.New(rand.NewPCG(seed, uint64(i))), calls) })
	}
	wg.Wait()
	trace := c.live.Stop()
	c.live.Pause = nil
	h := crash.NewHistory(c.dead.Bytes(), c.cfg.lba, c.cfg.cache)
	for k, e := range trace.Events {
		if k > from && e.Completed && !trace.Events[k-1].Completed {
			c.groupPoint(h, list, k)
		}
		h.Step(e)
	}
	h.Restore()
	c.n.workloads++
}

// run makes appends, overwrites, truncations and fsyncs, and records the state of the file after each.
func (th *thread) run(c *crasher, fs *FS, r *rand.Rand, calls int) {
	m := &model{root: &mnode{dir: map[string]*mnode{}}, writes: int(th.ino) * 1000}
	createOp(th.name, 0o600).model(m)
	th.states = append(th.states, m.canon())
	for range calls {
		var o op
		switch size := m.size(th.name); r.IntN(6) {
		case 0:
			o, _ = m.writeAt(th.name, 0, 30)
		case 1:
			o = truncateOp(th.name, max(1, size-7))
		case 2:
			o = syncOp
		default:
			o, _ = m.writeAt(th.name, min(size, 3000), 60)
		}
		begin := c.live.Events()
		if err := o.fs(fs); err != nil {
			c.t.Errorf("%s: %v", o.name, err)
			return
		}
		o.model(m)
		th.calls = append(th.calls, threadCall{begin, c.live.Events(), o.durable})
		th.states = append(th.states, m.canon())
	}
}

// groupPoint mounts images of a crash after k events.
func (c *crasher) groupPoint(h *crash.History, list []*thread, k int) {
	c.n.points++
	seen := c.cov.classify(c, make([]blockUse, 1000), h)
	calling, inos := 0, map[Ino]bool{}
	for _, th := range list {
		for _, x := range th.calls {
			if x.begin < k && x.end > k {
				calling++
			}
		}
	}
	for _, e := range h.InFlight() {
		if im := parseImage(e.Data); im != nil {
			for _, r := range im.list() {
				inos[r.ino] = true
			}
		}
	}
	shared := 0
	for _, th := range list {
		if inos[th.ino] {
			shared++
		}
	}
	if calling > 1 {
		seen = append(seen, "a crash between calls of threads")
		if shared > 1 {
			seen = append(seen, "a group of threads")
		}
	}
	o := c.images
	for _, o.Kept = range []bool{true, false} {
		for range h.Images(o) {
			mark := c.dead.Mark()
			fs, err := c.tryMount(c.dead)
			require.NoError(c.t, err, "event %d", k)
			c.checkThreads(fs, list, k, c.cfg.cache && !o.Kept)
			c.dead.Rollback(mark)
			c.n.images++
			c.cov.count(seen)
		}
	}
}

// checkThreads compares the file of each thread with the operations of the thread that had returned.
func (c *crasher) checkThreads(fs *FS, list []*thread, k int, lost bool) {
	low, at := make([]int, len(list)), make([]int, len(list))
	for i, th := range list {
		for _, x := range th.calls {
			if x.end <= k {
				low[i]++
			}
		}
	}
	if lost { // only operations that had returned before the last completed fsync began are certain
		synced := 0
		for _, th := range list {
			for _, x := range th.calls {
				if x.fsync && x.end <= k {
					synced = max(synced, x.begin)
				}
			}
		}
		for i, th := range list {
			low[i] = 0
			for _, x := range th.calls {
				if x.end <= synced {
					low[i]++
				}
			}
		}
	}
	got, err := c.canon.canon(fs)
	require.NoError(c.t, err)
	found := string(got)
	for i, th := range list {
		high := low[i]
		for high < len(th.calls) && th.calls[high].begin < k {
			high++
		}
		at[i] = -1
		for j := high; j >= low[i] && at[i] < 0; j-- {
			// A state is the head of the root, the file, the end of the root.
			s := th.states[j]
			if strings.Contains(found, s[rootHead:len(s)-3]) {
				at[i] = j
			}
		}
		require.GreaterOrEqual(c.t, at[i], 0, "crash at event %d: %s is in none of its states %d to %d", k, th.name, low[i], high)
	}
	for i, th := range list {
		for j, other := range list {
			if at[i] == 0 {
				continue
			}
			began := th.calls[at[i]-1].begin
			for n, x := range other.calls {
				if x.end <= began && !x.fsync && th.states[at[i]] != th.states[at[i]-1] {
					require.Greater(c.t, at[j], n, "%s has call %d, but %s not call %d that had returned before", th.name, at[i]-1, other.name, n)
				}
			}
		}
	}
}

// rootHead is the length of the root's name and head in a canonical form.
const rootHead = 1 + 4 + 8 + 8 + 1
