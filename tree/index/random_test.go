package index

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// An owner says where a byte is: nowhere, in the index, or in a shard.
type owner uint64

const ownIndex owner = 1

func ownRank(place, cut uint32) owner { return owner(place+2)<<32 | owner(cut) }

// modelFile is a file as readers see it. A byte is that of the last publication, or what its owner has written in
// place since.
type modelFile struct {
	attr  wire.Attr // number and birth
	cut   uint32
	data  []byte
	owner []owner
	names int
}

func (f *modelFile) resize(n int) {
	if n < len(f.data) {
		f.cut++
	}
	f.data, f.owner = f.data[:min(n, len(f.data))], f.owner[:min(n, len(f.owner))]
	f.grow(n)
}

func (f *modelFile) grow(n int) {
	for len(f.data) < n {
		f.data, f.owner = append(f.data, 0), append(f.owner, 0)
	}
}

func (f *modelFile) put(off int, b []byte, by owner) {
	f.grow(off + len(b))
	copy(f.data[off:], b)
	for i := range b {
		f.owner[off+i] = by
	}
}

// A modelShard has the data that a rank has written to a shard.
type modelShard struct{ data []byte }

func (s *modelShard) put(off int, b []byte) {
	s.data = append(s.data, make([]byte, max(0, off+len(b)-len(s.data)))...)
	copy(s.data[off:], b)
}

type modelKey struct {
	place uint32
	shard wire.Shard
}

// A modelSession is a file that a rank has open.
type modelSession struct {
	file    *modelFile
	attr    wire.Attr // its cut is that of the shard
	readers int
	writers int
	dirty   []wire.Range
	locks   [2][lockedParts]byte // by kind, for each part: 0, 1 for reading, 2 for writing
}

// lockedParts is the number of parts of a file that can be locked.
const lockedParts = 2

// A modelRank is a client.
type modelRank struct {
	*user
	sessions []*modelSession
}

// A world is an index with clients, and the expected state.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	r      *rig
	ranks  []*modelRank
	none   *user // client for reading
	names  map[string]*modelFile
	shards map[modelKey]*modelShard
	log    []string
}

const randomRanks = 3

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 0)), r: newRig(t), names: map[string]*modelFile{}, shards: map[modelKey]*modelShard{}}
	w.connectAll()
	return w
}

func (w *world) connectAll() {
	w.ranks = nil
	for i := range uint32(randomRanks) {
		w.ranks = append(w.ranks, w.connect(i))
	}
	w.none = w.r.connect(wire.NoPartition)
}

// connect starts a rank, which reports its shards.
func (w *world) connect(place uint32) *modelRank {
	k := &modelRank{user: w.r.connect(place)}
	k.ok(wire.OpShards, &wire.Shards{List: k.shards()}, nil)
	w.collect(k)
	return k
}

// shards lists the shards in the partition.
func (u *user) shards() (list []wire.Shard) {
	root, err := u.partition.OpenIno(microfs.RootIno, unix.O_RDONLY)
	require.NoError(u.r.t, err)
	defer root.Close()
	names, err := root.ReadDir("", 0)
	require.NoError(u.r.t, err)
	for _, n := range names {
		s, ok := wire.ParseShard(n.Name)
		require.True(u.r.t, ok, n.Name)
		list = append(list, s)
	}
	return list
}

// collect removes released shards, which the rank must not have open.
func (w *world) collect(k *modelRank) {
	for _, s := range k.collect() {
		for _, o := range k.sessions {
			require.False(w.t, o.writers > 0 && o.attr.Ino == s.Ino && o.attr.Birth == s.Birth && o.attr.Cut == s.Cut, "%v is in use", s)
		}
		delete(w.shards, modelKey{k.place, s})
	}
}

func (w *world) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) name() string { return string(rune('a' + w.rng.IntN(4))) }

// pick returns a session of a rank, with write one for writing; nil if there is none.
func (k *modelRank) pick(rng *rand.Rand, write bool) *modelSession {
	var list []*modelSession
	for _, s := range k.sessions {
		if !write || s.writers > 0 {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[rng.IntN(len(list))]
}

func (w *world) open(k *modelRank) {
	name, flags := w.name(), []int{unix.O_RDONLY, unix.O_RDWR | unix.O_CREAT, unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC}[w.rng.IntN(3)]
	f := w.names[name]
	if f == nil && flags == unix.O_RDONLY {
		return
	}
	if flags&unix.O_CREAT != 0 && w.rng.IntN(4) == 0 {
		flags |= unix.O_EXCL
	}
	if f != nil && flags&unix.O_EXCL != 0 {
		w.note("%d cannot create %s", k.place, name)
		require.Equal(w.t, syscall.EEXIST, k.conn.Call(wire.OpOpen, &wire.Open{Name: at(name), Flags: uint32(flags), Mode: 0o644}, new(wire.File)))
		return
	}
	a := k.user.open(name, flags)
	if f == nil {
		f = &modelFile{attr: a, names: 1}
		w.names[name] = f
	} else if flags&unix.O_TRUNC != 0 {
		f.resize(0)
	}
	require.Equal(w.t, f.cut, a.Cut, "cut")
	i := slices.IndexFunc(k.sessions, func(s *modelSession) bool { return s.file == f })
	if i < 0 {
		i = len(k.sessions)
		k.sessions = append(k.sessions, &modelSession{file: f, attr: a})
	}
	s := k.sessions[i]
	if len(s.dirty) == 0 {
		s.attr = a // a new shard
	}
	if flags == unix.O_RDONLY {
		s.readers++
	} else {
		s.writers++
	}
	w.note("%d opens %s, inode %d, flags %o, cut %d", k.place, name, a.Ino, flags, a.Cut)
}

func (w *world) bytes(n int) []byte {
	b := make([]byte, n)
	v := byte(1 + w.rng.IntN(255))
	for i := range b {
		b[i] = v
	}
	return b
}

func (w *world) write(k *modelRank, s *modelSession, off int) {
	b := w.bytes(1 + w.rng.IntN(6000))
	if off < 0 { // an append
		off = int(k.space(s.attr, int64(len(b))))
		require.GreaterOrEqual(w.t, off, len(s.file.data))
	}
	w.note("%d writes inode %d, cut %d, %d+%d: %x", k.place, s.attr.Ino, s.attr.Cut, off, len(b), b[0])
	k.user.write(s.attr, int64(off), string(b))
	w.shard(k.place, s).put(off, b)
	for i, by := range s.file.owner { // bytes in its shard change at once
		if i >= off && i < off+len(b) && by == ownRank(k.place, s.attr.Cut) {
			s.file.data[i] = b[0]
		}
	}
	s.dirty = append(s.dirty, wire.Range{Off: int64(off), Len: int64(len(b))})
}

func (w *world) shard(place uint32, s *modelSession) *modelShard {
	key := modelKey{place, wire.Shard{Ino: s.attr.Ino, Birth: s.attr.Birth, Cut: s.attr.Cut}}
	if w.shards[key] == nil {
		w.shards[key] = &modelShard{}
	}
	return w.shards[key]
}

// published publishes all data of s in the model, and returns the request.
func (w *world) published(k *modelRank, s *modelSession) wire.Publication {
	p := publication(s.attr, s.dirty...)
	for _, r := range s.dirty {
		s.file.put(int(r.Off), w.shard(k.place, s).data[r.Off:][:r.Len], ownRank(k.place, s.attr.Cut))
	}
	w.note("%d publishes inode %d, cut %d: %v", k.place, p.Ino, p.Cut, p.Ranges)
	s.dirty = nil
	return p
}

func (w *world) publish(k *modelRank, s *modelSession) {
	var a wire.AttrAnswer
	p := w.published(k, s)
	k.ok(wire.OpPublish, &p, &a)
	s.attr = a.Attr
}

func (w *world) closeOne(k *modelRank, s *modelSession) {
	writer := s.writers > 0 && (s.readers == 0 || w.rng.IntN(2) == 0)
	c := wire.Close{Writer: writer, Publication: wire.Publication{Ino: s.attr.Ino}}
	switch {
	case writer && s.writers == 1 && w.rng.IntN(8) > 0:
		c.Publication = w.published(k, s)
	case writer && s.writers == 1:
		s.dirty = nil // its data could not be published
	}
	w.note("%d closes inode %d, writer %v", k.place, s.attr.Ino, writer)
	k.ok(wire.OpClose, &c, nil)
	if writer {
		s.writers--
	} else {
		s.readers--
	}
	if s.writers+s.readers == 0 {
		k.sessions = slices.DeleteFunc(k.sessions, func(o *modelSession) bool { return o == s })
	}
}

func (w *world) truncate(k *modelRank, s *modelSession) {
	w.publish(k, s)
	size := w.rng.IntN(10000)
	w.note("%d truncates inode %d to %d", k.place, s.attr.Ino, size)
	var a wire.AttrAnswer
	k.ok(wire.OpTruncate, &wire.Truncate{Name: wire.Name{Dir: s.attr.Ino}, Size: int64(size)}, &a)
	s.file.resize(size)
	s.attr = a.Attr
	require.Equal(w.t, s.file.cut, a.Attr.Cut)
}

func (w *world) punch(k *modelRank, s *modelSession) {
	w.publish(k, s)
	off, n := w.rng.IntN(10000), 1+w.rng.IntN(5000)
	w.note("%d punches inode %d, %d+%d", k.place, s.attr.Ino, off, n)
	var a wire.AttrAnswer
	k.ok(wire.OpAllocate, &wire.Allocate{Ino: s.attr.Ino, Mode: wire.Punch, Off: int64(off), Len: int64(n)}, &a)
	for i := off; i < min(off+n, len(s.file.data)); i++ {
		s.file.data[i], s.file.owner[i] = 0, 0
	}
	s.file.cut, s.attr = a.Attr.Cut, a.Attr
}

func (w *world) rename(k *modelRank) {
	from, to := w.name(), w.name()
	if w.names[from] == nil || from == to {
		return
	}
	w.note("%d renames %s to %s", k.place, from, to)
	k.ok(wire.OpRename, &wire.Rename{From: at(from), To: at(to)}, nil)
	if w.names[to] == w.names[from] { // two names of one file: nothing changes
		return
	}
	w.lose(to)
	w.names[to] = w.names[from]
	delete(w.names, from)
}

// link gives a file another name.
func (w *world) link(k *modelRank) {
	from, to := w.name(), w.name()
	f := w.names[from]
	if f == nil {
		return
	}
	w.note("%d links %s to %s", k.place, from, to)
	err := k.conn.Call(wire.OpLink, &wire.Link{From: at(from), To: at(to)}, nil)
	if w.names[to] != nil {
		require.Equal(w.t, syscall.EEXIST, err)
		return
	}
	require.NoError(w.t, err)
	w.names[to] = f
	f.names++
	require.EqualValues(w.t, f.names, w.none.stat(to).Nlink, "links")
}

// lock locks or unlocks parts of a file.
func (w *world) lock(k *modelRank, s *modelSession) {
	kind, first := wire.LockKind(w.rng.IntN(2)), w.rng.IntN(lockedParts)
	last, want := first+1+w.rng.IntN(lockedParts-first), []byte{0, 1, 2, 2}[w.rng.IntN(4)]
	var hold []wire.Locked
	if want > 0 {
		hold = append(hold, wire.Locked{Start: int64(first), End: int64(last), Write: want == 2})
	}
	free := true
	for _, other := range w.ranks {
		for _, o := range other.sessions {
			for _, has := range o.locks[kind][first:last] {
				if other != k && o.file == s.file && want > 0 && has > 0 && has+want > 2 {
					free = false
				}
			}
		}
	}
	err := k.hold(s.attr.Ino, kind, int64(first), int64(last), hold...)
	w.note("%d locks inode %d, kind %d, %d to %d: %d, %v", k.place, s.attr.Ino, kind, first, last, want, err)
	if !free {
		require.Equal(w.t, syscall.EAGAIN, err)
		return
	}
	require.NoError(w.t, err)
	for i := first; i < last; i++ {
		s.locks[kind][i] = want
	}
}

func (w *world) lose(name string) {
	if f := w.names[name]; f != nil {
		f.names--
		delete(w.names, name)
	}
}

func (w *world) unlink(k *modelRank) {
	name := w.name()
	if w.names[name] == nil {
		return
	}
	w.note("%d unlinks %s", k.place, name)
	k.ok(wire.OpUnlink, &wire.Unlink{Name: at(name)}, nil)
	w.lose(name)
}

// writeOwn writes through the index.
func (w *world) writeOwn() {
	name := w.name()
	f := w.names[name]
	if f == nil {
		return
	}
	a := w.none.open(name, unix.O_RDWR)
	off, b := w.rng.IntN(10000), w.bytes(1+w.rng.IntN(3000))
	w.note("the index writes inode %d, %d+%d: %x", a.Ino, off, len(b), b[0])
	w.none.ok(wire.OpWrite, &wire.Write{Ino: a.Ino, Off: int64(off), Limit: math.MaxInt64, Data: b}, &wire.Written{})
	f.put(off, b, ownIndex)
	w.none.close(a, true)
}

// kill kills a rank and starts it again. Its unpublished data is in the file where nothing was.
func (w *world) kill(i int) {
	k := w.ranks[i]
	w.note("%d is killed", k.place)
	k.kill()
	for _, s := range k.sessions {
		if s.writers > 0 && s.file.names > 0 {
			w.adopted(s.file, k.place)
		}
	}
	w.ranks[i] = w.connect(k.place)
}

// adopted checks that a file has data from shards of some partitions where it had nothing, and updates the model.
func (w *world) adopted(f *modelFile, places ...uint32) {
	var o wire.File
	w.none.ok(wire.OpOpenIno, &wire.OpenIno{Ino: f.attr.Ino}, &o)
	a, segments := w.none.segments(f.attr.Ino)
	w.none.close(o.Attr, false)
	require.GreaterOrEqual(w.t, int(a.Size), len(f.data))
	f.grow(int(a.Size))
	for _, s := range segments {
		for i := int(s.Off); i < int(s.Off+s.Len); i++ {
			if f.owner[i] != 0 {
				continue
			}
			switch s.Kind {
			case wire.Own: // zeros next to data that the index has written
				f.owner[i] = ownIndex
				continue
			case wire.Hole:
				for _, p := range places {
					if w.wrote(f, p, i) != 0 {
						require.Failf(w.t, "missing byte", "byte %d of inode %d is not adopted from partition %d", i, f.attr.Ino, p)
					}
				}
				continue
			}
			if s.Cut != f.cut || !slices.Contains(places, s.Partition) {
				require.Failf(w.t, "unexpected segment", "%+v of inode %d", s, f.attr.Ino)
			}
			f.put(i, []byte{w.wrote(f, s.Partition, i)}, ownRank(s.Partition, s.Cut))
		}
	}
}

// wrote returns a byte of a partition's shard of the newest cut; 0 if there is none.
func (w *world) wrote(f *modelFile, place uint32, i int) byte {
	s := w.shards[modelKey{place, wire.Shard{Ino: f.attr.Ino, Birth: f.attr.Birth, Cut: f.cut}}]
	if s == nil || i >= len(s.data) {
		return 0
	}
	return s.data[i]
}

// awaitAdoptions waits until the adoptions have ended. A late one would also find what a new client has written and not published.
func (w *world) awaitAdoptions() {
	for ended := false; !ended; time.Sleep(time.Millisecond) {
		w.r.x.mu.Lock()
		ended = len(w.r.x.adoptions) == 0
		w.r.x.mu.Unlock()
	}
}

// crash kills all processes and the index, and starts the index again.
func (w *world) crash() {
	w.note("all are killed")
	w.r.x.Close()
	w.r.start()
	for i := range uint32(randomRanks) {
		w.r.x.Adopt(i)
	}
	w.connectAll()
	for name, f := range w.names {
		if !w.none.stat(name).Closed { // complete files are not changed
			w.adopted(f, 0, 1, 2)
		}
	}
	w.awaitAdoptions()
}

func (w *world) step() {
	i := w.rng.IntN(randomRanks)
	k := w.ranks[i]
	any, writing := k.pick(w.rng, false), k.pick(w.rng, true)
	switch n := w.rng.IntN(112); {
	case n < 18:
		w.open(k)
	case n < 45 && writing != nil:
		w.write(k, writing, w.rng.IntN(10000))
	case n < 50 && writing != nil:
		w.write(k, writing, -1)
	case n < 62 && writing != nil:
		w.publish(k, writing)
	case n < 76 && any != nil:
		w.closeOne(k, any)
	case n < 80 && writing != nil:
		w.truncate(k, writing)
	case n < 83 && writing != nil:
		w.punch(k, writing)
	case n < 86:
		w.rename(k)
	case n < 89:
		w.unlink(k)
	case n < 91:
		w.link(k)
	case n < 101 && any != nil:
		w.lock(k, any)
	case n < 104:
		w.writeOwn()
	case n < 107:
		w.collect(k)
	case n < 109:
		w.kill(i)
	case n < 110:
		w.crash()
	}
}

// verify compares every file that a client can see.
func (w *world) verify() {
	for name, f := range w.names {
		w.same(f, w.none.read(name))
	}
	for _, k := range w.ranks {
		for _, s := range k.sessions {
			w.same(s.file, k.content(s.attr.Ino))
		}
	}
}

func (w *world) same(f *modelFile, got string) {
	require.Equal(w.t, len(f.data), len(got), "size of inode %d", f.attr.Ino)
	for i := range f.data {
		if f.data[i] != got[i] {
			require.Failf(w.t, "wrong byte", "byte %d of inode %d, of owner %x, is %x and not %x", i, f.attr.Ino, f.owner[i], got[i], f.data[i])
		}
	}
}

// end closes and removes all files, and checks that nothing is left.
func (w *world) end() {
	for _, k := range w.ranks {
		for len(k.sessions) > 0 {
			w.closeOne(k, k.sessions[0])
		}
	}
	w.verify()
	for name := range w.names {
		w.ranks[0].ok(wire.OpUnlink, &wire.Unlink{Name: at(name)}, nil)
	}
	for _, k := range w.ranks {
		w.collect(k)
		k.ok(wire.OpShards, &wire.Shards{List: k.shards()}, nil) // reports shards whose data was never published
		w.collect(k)
		assert.Empty(w.t, k.shards(), "partition %d", k.place)
	}
	w.r.x.mu.Lock()
	defer w.r.x.mu.Unlock()
	assert.Empty(w.t, w.r.x.files)
	assert.Empty(w.t, w.r.x.orphans)
}

var (
	worlds    = flag.Int("worlds", 30, "how many random histories TestRandom has")
	worldSeed = flag.Uint64("world-seed", 0, "of the first one; 0 is a random one")
)

func TestRandom(t *testing.T) {
	const steps = 150
	first := *worldSeed
	if first == 0 {
		first = rand.Uint64()
	}
	for i := range *worlds {
		runWorld(t, first+uint64(i), steps)
	}
}

func runWorld(t *testing.T, seed uint64, steps int) {
	t.Run(fmt.Sprint(seed), func(t *testing.T) {
		w := newWorld(t, seed)
		defer func() {
			if t.Failed() {
				t.Logf("seed %d", seed)
				for _, line := range w.log {
					t.Log(line)
				}
			}
		}()
		for range steps {
			w.step()
			if w.rng.IntN(4) == 0 {
				w.verify()
			}
		}
		w.end()
	})
}
