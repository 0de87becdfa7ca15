package tree

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

var (
	seeds = flag.Int("seeds", 40, "of TestRandom, how many")
	seed  = flag.Uint64("seed", 0, "of TestRandom; 0: another one each time")
)

// TestRandom compares jobs, whose processes make random calls on a few files, with the model.
func TestRandom(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	for i := range uint64(*seeds) {
		ok := t.Run(fmt.Sprint(first+i), func(t *testing.T) { newJob(t, first+i).run() })
		if !ok {
			t.Fatalf("go test ./tree -run TestRandom -seeds 1 -seed %d", first+i)
		}
	}
}

// A job has processes in a rig, and the model of their files.
type job struct {
	*rig
	t         *testing.T
	r         *rand.Rand
	processes []*process
	names     map[string]*modelFile
	value     byte
	trace     []string
}

func newJob(t *testing.T, seed uint64) *job {
	r := rand.New(rand.NewPCG(seed, 0))
	j := &job{t: t, r: r, names: map[string]*modelFile{}}
	j.rig = newRig(t, 4)
	j.cache, j.behind, j.shares, j.lost = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0, r.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			for _, line := range j.trace {
				t.Log(line)
			}
		}
	})
	return j
}

func (j *job) logf(format string, args ...any) {
	j.trace = append(j.trace, fmt.Sprintf(format, args...))
}

// run runs several jobs one after the other, with different numbers of ranks.
func (j *job) run() {
	for range 1 + j.r.IntN(4) {
		j.begin()
		for range 120 {
			j.step()
		}
		j.end()
		j.verify()
	}
	j.clear()
}

// begin starts ranks, and sometimes a process that is not a rank.
func (j *job) begin() {
	ranks := 1 + min(j.r.IntN(len(j.disks)), j.r.IntN(len(j.disks)))
	j.logf("%d ranks, volatile cache %v, write-behind %v, memory shared with the index %v", ranks, j.cache, j.behind, j.shares)
	for place := range uint32(ranks) {
		j.enter(place)
	}
	if j.r.IntN(2) == 0 {
		j.enter(wire.NoPartition)
	}
}

func (j *job) enter(place uint32) *process {
	p := &process{
		rank: j.join(place), name: fmt.Sprintf("rank %d", place),
		seen: map[*modelFile]int{}, reach: map[*modelFile]int{}, drafts: map[*modelFile]*draft{},
	}
	if place == wire.NoPartition {
		p.name = "script"
	}
	j.redial(p.rank)
	p.FS.opts.Logf = func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !strings.Contains(text, "which was open when the index") {
			p.logf("%s", text)
		}
	}
	j.processes = append(j.processes, p)
	return p
}

// end ends all processes in order, or kills them, or the index with them.
func (j *job) end() {
	switch j.r.IntN(5) {
	case 0:
		j.logf("the index dies")
		dead := slices.Clone(j.processes)
		for _, p := range dead {
			p.kill()
			j.forget(p)
		}
		j.stop()
		j.start()
		for place := range j.disks {
			j.index.Adopt(uint32(place))
		}
		j.collapse(dead, false)
	case 1:
		for len(j.processes) > 0 {
			j.die(j.processes[0])
		}
	default:
		for len(j.processes) > 0 {
			j.leave(j.processes[0])
		}
	}
}

// leave ends a process in order, with files open or not.
func (j *job) leave(p *process) {
	j.logf("%s leaves", p.name)
	for len(p.handles) > 0 && j.r.IntN(8) > 0 {
		j.close(p, p.handles[0])
	}
	for f := range p.drafts {
		p.publish(f)
	}
	p.rank.leave()
	j.forget(p)
}

// reconnect makes a process reconnect if the index has been replaced.
func (j *job) reconnect(p *process) {
	_, err := p.Stat(root, "/", true)
	require.NoError(j.t, err)
}

// lastCalls makes writes and syncs, which may succeed or be done in part.
func (j *job) lastCalls(p *process, h *handle) {
	j.value = j.value%250 + 1
	n, off := length(j.r), offset(j.r)
	n = min(n, maxSize-off)
	_, err := h.WriteAt([][]byte{bytes.Repeat([]byte{j.value}, n)}, int64(off))
	j.logf("%s writes %d at %d to %d of %s: %v", p.name, j.value, off, off+n, h.of.name, err)
	p.write(h.of, off, n, j.value)
	if err != nil {
		return
	}
	if err = h.Sync(); err == nil {
		p.publish(h.of)
	}
	j.logf("%s syncs %s: %v", p.name, h.of.name, err)
}

func (j *job) forget(p *process) {
	for _, h := range p.handles {
		h.of.unlock(p)
	}
	j.processes = slices.DeleteFunc(j.processes, func(q *process) bool { return p == q })
}

// die kills a process, sometimes in the middle of a write or a sync.
func (j *job) die(p *process) {
	j.logf("%s dies", p.name)
	j.reconnect(p)                                                               // so that its data is adopted before the next kill of the index
	writes := func(h *handle) bool { return h.writable && j.nameOf(h.of) != "" } // data of unlinked files is not adopted
	if i := slices.IndexFunc(p.handles, writes); i >= 0 && p.dev != nil && j.r.IntN(2) == 0 {
		p.dev.CutAt(1+j.r.IntN(6), j.r.IntN(4096))
		j.lastCalls(p, p.handles[i])
	}
	p.kill()
	j.forget(p)
	j.collapse([]*process{p}, false)
}

// replaceIndex kills the index and starts a successor. All processes continue, except with files that had no name.
func (j *job) replaceIndex() {
	j.logf("the index is killed")
	j.hangUp()
	j.homeDev.Kill()
	_ = j.fs.Unmount() // ends its goroutines, which would write a state checkpoint later on
	j.serve()
	for place := range j.disks {
		j.index.Adopt(uint32(place))
	}
	for _, p := range j.processes {
		for _, h := range slices.Clone(p.handles) {
			if j.nameOf(h.of) == "" {
				require.ErrorIs(j.t, h.Close(), syscall.EIO, "%s", h.of.name)
				p.handles = slices.DeleteFunc(p.handles, func(o *handle) bool { return o == h })
				delete(p.drafts, h.of)
				h.of.unlock(p)
			}
		}
	}
	j.collapse(j.processes, true)
	for _, p := range j.processes { // data of living processes that the successor has adopted may be lost with a device cache while they write on
		if p.own != nil {
			require.NoError(j.t, p.own.Sync())
		}
	}
	for _, f := range j.names {
		for _, w := range f.pending {
			w.late = true
		}
	}
	j.checkLocks()
}

// checkLocks checks that a new index has the locks of all processes.
func (j *job) checkLocks() {
	j.reconnectAll()
	for _, p := range j.processes {
		for _, h := range p.handles {
			for _, whole := range []bool{true, false} {
				found, by, err := h.File.(vfs.Locker).Conflict(whole, vfs.Held{End: lockParts << 20, Write: true})
				require.NoError(j.t, err)
				require.Equal(j.t, h.of.conflict(p, whole, 0, lockParts, true), by != 0, "%s, whole %v: %+v", h.of.name, whole, found)
			}
		}
	}
}

// reconnectAll makes all processes reconnect, so that the index knows their open files and locks.
func (j *job) reconnectAll() {
	for _, p := range j.processes {
		j.reconnect(p)
	}
}

// nameOf returns a name of a file, or "".
func (j *job) nameOf(f *modelFile) string {
	for _, name := range j.sorted() {
		if j.names[name] == f {
			return name
		}
	}
	return ""
}

// collapse reads all files after a death.
func (j *job) collapse(dead []*process, live bool) {
	p := j.join(wire.NoPartition)
	for _, name := range j.sorted() {
		if f := j.names[name]; name == j.nameOf(f) {
			f.collapse(j.t, dead, live, []byte(p.read(name)))
		}
	}
	p.leave()
}

// verify compares the views of all processes while no process writes.
func (j *job) verify() {
	p := j.enter(wire.NoPartition)
	list := j.list(p)
	require.Equal(j.t, j.sorted(), list)
	for _, name := range list {
		now := j.names[name].now()
		require.Equal(j.t, now.data[:now.size], []byte(p.read(name)), name)
	}
	j.leave(p)
}

// clear removes all files. Then no partition has a shard.
func (j *job) clear() {
	p := j.enter(wire.NoPartition)
	for _, name := range j.sorted() {
		require.NoError(j.t, p.Unlink(root, name))
	}
	j.leave(p)
	for place := range j.disks {
		p := j.join(uint32(place))
		require.NoError(j.t, p.Sync()) // receives the remaining releases
		require.Empty(j.t, p.shards(), "shards of files that are gone in partition %d", place)
		p.leave()
		j.check(j.disks[place])
	}
	j.stop()
	j.check(j.home)
	j.start()
}

func (j *job) check(d *disk) {
	report, err := microfs.Check(ctx, d.dev, d.seg, microfs.CheckOptions{})
	require.NoError(j.t, err)
	require.True(j.t, report.Clean(), "%+v", report.Findings)
}

func (j *job) sorted() []string {
	list := []string{}
	for name := range j.names {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

func (j *job) list(p *process) []string {
	d := p.open("/", unix.O_RDONLY|unix.O_DIRECTORY)
	entries, err := d.ReadDir("", 0)
	require.NoError(j.t, err)
	require.NoError(j.t, d.Close())
	list := []string{}
	for _, e := range entries {
		list = append(list, "/"+e.Name)
	}
	return list
}

func (j *job) name() string { return []string{"/a", "/a", "/a", "/b", "/c"}[j.r.IntN(5)] }
