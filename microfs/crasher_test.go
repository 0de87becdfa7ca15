package microfs

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/blocktest/crash"
)

// crasher runs workloads on one file system, and mounts the contents that a crash during a workload may
// leave on the device.
type crasher struct {
	t    testing.TB
	cfg  crashConfig
	seg  Segment
	opts Options

	live  *crash.Disk // runs the workloads; each starts from the base
	dead  *crash.Disk // holds the images of crashes; goes back to the base, too
	start *model      // the state of the base

	images crash.Options
	// again bounds the number of images of crashes during recovery: it is their ratio to the images
	// of crashes in a workload.
	again float64
	n     crashCounts
	cov   coverage
	canon canonizer
	r     *rand.Rand
}

// crashConfig is the configuration of the file system of a crasher.
type crashConfig struct {
	name   string
	lba    nvmf.Bytes
	cache  bool
	noSums bool
	setup  setup
	behind bool // with write-behind
}

// crashCounts counts what was tried.
type crashCounts struct {
	workloads, points, images, torn, again, goneOn, checked int
	sampled                                                 int // points with too many combinations
	undetermined                                            int // the most LBAs at one point
}

func (n *crashCounts) add(o crashCounts) {
	n.workloads += o.workloads
	n.points += o.points
	n.images += o.images
	n.torn += o.torn
	n.again += o.again
	n.goneOn += o.goneOn
	n.checked += o.checked
	n.sampled += o.sampled
	n.undetermined = max(n.undetermined, o.undetermined)
}

func (n *crashCounts) all() int { return n.images + n.again + n.goneOn }

func (n *crashCounts) String() string {
	return fmt.Sprintf("%d workloads, %d crash points (%d sampled, up to %d LBAs undetermined), %d images (%d torn inside an LBA), "+
		"%d of crashes in the recovery, %d after going on: %d states mounted; fsck %d times",
		n.workloads, n.points, n.sampled, n.undetermined, n.images, n.torn, n.again, n.goneOn, n.all(), n.checked)
}

// newCrasher formats and prepares the smallest file system with as many hugeblocks as the setup needs.
// The device holds remains of earlier data.
func newCrasher(t testing.TB, cfg crashConfig, seed uint64) *crasher {
	f := FormatOptions{Generation: 7, Hugeblock: MinHugeblock, LogPages: minLogPages, NoDataCRC: cfg.noSums, Ranges: cfg.setup.ranges}
	c := &crasher{
		t: t, cfg: cfg, opts: Options{Generation: 7, WriteBehind: cfg.behind, behindSize: 5 * nvmf.KiB}, r: rand.New(rand.NewPCG(seed, 5)),
		seg: Segment{Start: blockSize}, cov: coverage{},
	}
	id := nvmf.Identity{LBASize: cfg.lba, Blocks: 1 << 30}
	for n := nvmf.Bytes(64 * nvmf.KiB); ; n += blockSize {
		c.seg.Length = n
		if g, err := newGeometry(&id, c.seg, &f); err == nil && g.blocks >= cfg.setup.blocks {
			break
		}
	}
	size := c.seg.Start + c.seg.Length + blockSize
	c.live, c.dead = crash.NewDisk(size, cfg.lba, cfg.cache), crash.NewDisk(size, cfg.lba, cfg.cache)
	remains(c.live.Bytes())
	require.NoError(t, Format(context.Background(), c.live, c.seg, f))
	c.start = newModel()
	c.start.ranges = cfg.setup.ranges
	fs := c.mount(c.live)
	for _, o := range startOps(c.start) {
		require.NoError(t, o.fs(fs), o.name)
	}
	if cfg.setup.prepare != nil {
		cfg.setup.prepare(c, fs)
	}
	require.NoError(t, fs.sync())
	c.live.Keep()
	copy(c.dead.Bytes(), c.live.Bytes())
	c.images.Random = c.r
	return c
}

// remains fills memory with data of an earlier job: some bytes at both ends of every 4 KiB. The rest is
// zeros, so that few LBAs change when zeros are written.
func remains(b []byte) {
	for i := 0; i+blockSize <= len(b); i += blockSize {
		copy(b[i:], "remains of an earlier job")
		copy(b[i+blockSize-16:], "until here.....!")
	}
}

// mount mounts without the background goroutine: the steps of that goroutine are operations of the
// alphabet here.
func (c *crasher) mount(d *crash.Disk) *FS {
	fs, err := c.tryMount(d)
	require.NoError(c.t, err)
	return fs
}

func (c *crasher) tryMount(d *crash.Disk) (*FS, error) {
	q, err := d.OpenQueue(context.Background(), defaultQueueDepth)
	if err != nil {
		return nil, err
	}
	fs := &FS{dev: d, opts: c.opts, q: q}
	return fs, fs.recover(c.seg)
}

// crashRun is a run of operations, with the states that a crash during the run may leave.
type crashRun struct {
	names []string
	trace *blocktest.Trace
	marks []crashMark // after the mount, then after each operation
	from  int         // number of events before the last operation
}

// crashMark is the state when the trace has that many events.
type crashMark struct {
	events  int
	state   string
	durable int        // index of the oldest mark whose state a loss of power may leave
	owner   []blockUse // of the hugeblocks
	waits   waiting
}

// waiting says which acknowledged changes are not on the device yet: a write in the buffer for
// write-behind, which begins at start, and deferred log records. It also has the indexes of the marks
// since which they wait.
type waiting struct {
	behind, deferred           bool
	start                      nvmf.Bytes
	behindSince, deferredSince int
}

// after returns the waiting changes after the operation that follows mark last.
func (w waiting) after(fs *FS, last int) waiting {
	now := waiting{fs.behind.n > 0, fs.log.Deferred(), fs.behind.start, last, last}
	if w.behind && w.start == now.start {
		now.behindSince = w.behindSince
	}
	if w.deferred {
		now.deferredSince = w.deferredSince
	}
	return now
}

// kept returns the index of the oldest mark whose state a crash may leave, at most last.
func (w waiting) kept(last int) int {
	if w.behind {
		last = min(last, w.behindSince)
	}
	if w.deferred {
		last = min(last, w.deferredSince)
	}
	return last
}

// record runs a workload. It returns nil if a letter is not possible.
func (c *crasher) record(letters []letter) *crashRun {
	c.live.Rollback(0)
	c.live.Record()
	w, m := &crashRun{}, c.start.clone()
	fs := c.mount(c.live)
	w.marks = []crashMark{{c.live.Events(), m.canon(), 0, blockUses(fs), waiting{}}}
	if c.cfg.setup.live != nil {
		for _, o := range c.cfg.setup.live(m) {
			require.True(c.t, c.do(w, m, fs, o))
		}
	}
	for i, l := range letters {
		o, ok := l.op(m)
		if !ok {
			c.live.Stop()
			return nil
		}
		if i == len(letters)-1 {
			w.from = c.live.Events()
		}
		if !c.do(w, m, fs, o) && i < len(letters)-1 {
			c.live.Stop()
			return nil
		}
	}
	w.trace = c.live.Stop()
	c.n.workloads++
	return w
}

// do runs one operation and adds a mark for the state after it. It returns false if there was no space
// for the operation. Then the model cannot be used any more, because a write may have had a part of its
// effect.
func (c *crasher) do(w *crashRun, m *model, fs *FS, o op) bool {
	c.cov.remember(fs)
	err := o.fs(fs)
	last := w.marks[len(w.marks)-1]
	waits := last.waits.after(fs, len(w.marks)-1)
	durable := last.durable
	if (err == nil && o.durable) || !c.cfg.cache || !fs.log.Unflushed() {
		durable = waits.kept(len(w.marks))
	}
	w.names = append(w.names, o.name)
	if err == nil {
		o.model(m)
		w.marks = append(w.marks, crashMark{c.live.Events(), m.canon(), durable, blockUses(fs), waits})
		return true
	}
	require.True(c.t, outOfSpace(err), "%v: %v", w.names, err)
	events := c.live.Events()
	state, err := c.canon.canon(fs)
	require.NoError(c.t, err)
	w.marks = append(w.marks, crashMark{events, string(state), durable, blockUses(fs), waits})
	return false
}

// crash mounts every image of a crash during the last operation of a workload, and after the operation.
//
// As long as no command is submitted, a crash before a completion may leave everything that a crash
// after that completion may leave. So it is enough to crash before the first completion after a
// submission, and at the end.
func (c *crasher) crash(w *crashRun) {
	h := crash.NewHistory(c.dead.Bytes(), c.cfg.lba, c.cfg.cache)
	for i, e := range w.trace.Events {
		if i > w.from && e.Completed && !w.trace.Events[i-1].Completed {
			c.point(w, h, i)
		}
		h.Step(e)
	}
	c.point(w, h, len(w.trace.Events))
	h.Restore()
}

// point mounts every image of a crash after k events.
func (c *crasher) point(w *crashRun, h *crash.History, k int) {
	acked := 0
	for acked+1 < len(w.marks) && w.marks[acked+1].events <= k {
		acked++
	}
	high := acked
	if acked+1 < len(w.marks) && w.marks[acked].events < k {
		high++
	}
	c.n.points++
	seen := c.cov.classify(c, w.marks[acked].owner, h)
	o := c.images
	for _, o.Kept = range []bool{true, false} {
		low := acked
		if !c.cfg.cache && o.Kept {
			continue // without a volatile cache both loops try the same images
		}
		if !o.Kept || c.cfg.behind {
			low = w.marks[acked].durable
		}
		sampled := 0
		for im := range h.Images(o) {
			c.n.images++
			c.cov.count(seen)
			c.n.undetermined = max(c.n.undetermined, im.Undetermined)
			if im.Torn {
				c.n.torn++
			}
			if !im.Exhaustive {
				sampled = 1
			}
			c.image(func() string { return w.describe(k, low, high, o.Kept) }, w.marks[low:high+1])
		}
		c.n.sampled += sampled
	}
}

func (w *crashRun) describe(k, low, high int, kept bool) string {
	s := fmt.Sprintf("workload %s, crash at event %d, device lives on %v: not a state after %d to %d operations",
		strings.Join(w.names, ", "), k, kept, low, high)
	for i, e := range w.trace.Events[:k] {
		if i >= w.marks[max(0, low-1)].events {
			s += "\n" + e.String()
		}
	}
	return s
}

// image mounts the content of the dead disk, checks that the state is one of allowed, and puts the disk
// back as it was.
func (c *crasher) image(what func() string, allowed []crashMark) {
	mark := c.dead.Mark()
	again := float64(c.n.again) < c.again*float64(c.n.images)
	var newest *logImage
	if again {
		c.fsck(what, Note)
		newest = newestImage(c.ring())
		c.dead.Record()
	}
	fs, err := c.tryMount(c.dead)
	if err != nil {
		require.NoError(c.t, err, what())
	}
	got, err := c.canon.canon(fs)
	if err != nil {
		require.NoError(c.t, err, what())
	}
	if !isState(allowed, got) {
		require.Fail(c.t, what(), "%v", snapshotFS(c.t, fs))
	}
	if !again {
		c.dead.Rollback(mark)
		return
	}
	trace := c.dead.Stop()
	state := string(got)
	fell := newest.dropped(fs)
	c.fsck(what, Note)
	c.goOn(what, fs, state)
	c.dead.Rollback(mark)
	c.crashAgain(what, trace, allowed, state, fell)
}

// fsck checks the dead disk, and requires that no finding is worse than limit.
func (c *crasher) fsck(what func() string, limit Severity) {
	q, err := c.dead.OpenQueue(context.Background(), defaultQueueDepth)
	require.NoError(c.t, err)
	r, err := look(q, c.dead, c.seg, CheckOptions{Generation: 7})
	require.NoError(c.t, err)
	if r.Worst() > limit {
		require.Fail(c.t, what(), "%v", r.Findings)
	}
	c.n.checked++
}

// goOn writes a new file on a recovered file system. It checks that the other files stay as they are,
// and that another mount finds the same state.
func (c *crasher) goOn(what func() string, fs *FS, state string) {
	require.NoError(c.t, createOp("/~goes on", 0o600).fs(fs), what())
	if err := writeOp("/~goes on", 0, stamp(5000, 99)).fs(fs); !outOfSpace(err) {
		require.NoError(c.t, err, what())
	}
	got, err := c.canon.canon(fs)
	require.NoError(c.t, err, what())
	before := string(got)
	require.True(c.t, strings.HasPrefix(before, state[:len(state)-3]), "going on changes other files: %s", what())
	fs = c.mount(c.dead)
	got, err = c.canon.canon(fs)
	require.NoError(c.t, err, what())
	require.Equal(c.t, before, string(got), what())
	c.n.goneOn++
}

// crashAgain crashes during the recovery of an image. Each such crash must recover to a state that is
// allowed without it. Without a volatile cache, or after the end of the recovery, it must recover to
// the same state as without the crash. fell says that the recovery rejected a log image.
func (c *crasher) crashAgain(what func() string, tr *blocktest.Trace, allowed []crashMark, state string, fell bool) {
	same := []crashMark{{state: state}}
	if c.cfg.cache {
		same = allowed
	}
	h := crash.NewHistory(c.dead.Bytes(), c.cfg.lba, c.cfg.cache)
	o := c.images
	o.MaxImages, o.NoPairs, o.Samples, o.Tears = min(o.MaxImages, 32), true, min(o.Samples, 2), 1
	for i := range len(tr.Events) + 1 {
		end := i == len(tr.Events)
		if end {
			same = []crashMark{{state: state}}
		}
		if end || i > 0 && tr.Events[i].Completed && !tr.Events[i-1].Completed {
			for range h.Images(o) {
				c.recovered(func() string { return fmt.Sprintf("crash at event %d of the recovery after %s", i, what()) }, same)
				if fell {
					c.cov["a crash after a fall-back"]++
				}
			}
		}
		if !end {
			h.Step(tr.Events[i])
		}
	}
	h.Restore()
}

// recovered mounts an image of a crash during recovery, and checks that the state is one of allowed.
func (c *crasher) recovered(what func() string, allowed []crashMark) {
	mark := c.dead.Mark()
	fs, err := c.tryMount(c.dead)
	if err != nil {
		require.NoError(c.t, err, what())
	}
	got, err := c.canon.canon(fs)
	if err != nil || !isState(allowed, got) {
		require.NoError(c.t, err, what())
		require.Fail(c.t, what(), "%v", snapshotFS(c.t, fs))
	}
	c.dead.Rollback(mark)
	c.n.again++
	c.cov["a second crash during recovery"]++
}

func isState(allowed []crashMark, got []byte) bool {
	for i := range allowed {
		if allowed[i].state == string(got) {
			return true
		}
	}
	return false
}

// ring returns the log of the dead disk.
func (c *crasher) ring() []byte {
	return c.dead.Bytes()[c.seg.Start+logOffset:][:minLogPages*2*blockSize]
}

func (m *model) clone() *model {
	links := map[*mnode]*mnode{}
	var deep func(n *mnode) *mnode
	deep = func(n *mnode) *mnode {
		if links[n] == nil {
			d := *n
			d.data, d.places, d.written = bytes.Clone(n.data), slices.Clone(n.places), false // as after another mount
			if n.dir != nil {
				d.dir = map[string]*mnode{}
				for name, c := range n.dir {
					d.dir[name] = deep(c)
				}
			}
			links[n] = &d
		}
		return links[n]
	}
	return &model{root: deep(m.root), writes: m.writes, ranges: m.ranges}
}
