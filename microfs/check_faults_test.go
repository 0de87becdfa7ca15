package microfs

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
	"nvmecr/oplog"
)

// tapped is a device whose reads can be changed or refused.
type tapped struct {
	nvmf.Device
	read func(c *nvmf.Command) error
}

type tappedQueue struct {
	nvmf.Queue
	t *tapped
}

func (t *tapped) OpenQueue(ctx context.Context, depth int) (nvmf.Queue, error) {
	q, err := t.Device.OpenQueue(ctx, depth)
	return &tappedQueue{q, t}, err
}

func (q *tappedQueue) Submit(cmds []*nvmf.Command) {
	q.Queue.Submit(cmds)
	for _, c := range cmds {
		if err := q.Wait([]*nvmf.Command{c}); err == nil && c.Opcode == nvmf.Read {
			c.Err = q.t.read(c)
		}
	}
}

// holds reports whether the blocks of a command include the byte at an offset.
func holds(c *nvmf.Command, lba, at nvmf.Bytes) bool {
	start := nvmf.Bytes(c.LBA) * lba
	return at >= start && at < start+nvmf.Bytes(c.Blocks)*lba
}

// TestCheckUnreadable has the device refuse to read one block, and checks the finding.
func TestCheckUnreadable(t *testing.T) {
	r := populated(t, variants[0])
	prior := r.fs.ckpt.header.prior.Page
	h := r.fs.ckpt.header
	slot := func(page, slot uint64) nvmf.Bytes {
		return logOffset + nvmf.Bytes(page%r.fs.g.logPages*2+slot)*oplog.PageSize
	}
	tests := []struct {
		name  string
		at    nvmf.Bytes
		kind  FindingKind
		worst Severity
	}{
		{"first superblock", 0, FoundSuperblockCopy, Repairable},
		{"last superblock", r.seg.Length - blockSize, FoundSuperblockCopy, Repairable},
		{"state header written first", headerAt(int(h.sequence % 2)), FoundHeaderCopy, Note},
		{"state header written last", headerAt(1 - int(h.sequence%2)), FoundHeaderCopy, Note},
		{"claim", claimAt(int(r.fs.claim.Sequence % 2)), FoundClaim, Note},
		{"state", r.fs.g.state[h.area], FoundStateBlock, Repairable},
		{"log page", slot(prior+2, 0), FoundLogSlot, Note},
		{"other slot of it", slot(prior+2, 1), FoundLogSlot, Note},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r.t = t
			dev := &tapped{r.dev, func(c *nvmf.Command) error {
				if holds(c, r.v.lba, r.seg.Start+tc.at) {
					return mediaError
				}
				return nil
			}}
			got, err := Check(context.Background(), dev, r.seg, CheckOptions{Generation: 7})
			require.NoError(t, err)
			require.Equal(t, []FindingKind{tc.kind}, kinds(got, Note), "%+v", got.Findings)
			require.Equal(t, tc.worst, got.Worst())
			require.Equal(t, int64(tc.at), got.Findings[0].Offset)
		})
	}
}

// TestCheckRefused checks that Check fails if the device refuses a read for another reason than a media
// error, instead of reporting damage, and that a lost connection makes no difference.
func TestCheckRefused(t *testing.T) {
	r := populated(t, variants[0])
	busy := &nvmf.StatusError{Opcode: nvmf.Read, SCT: 0, SC: 0x82}
	for n := 1; n < 8; n++ {
		r.dev.FailAt(nvmf.Read, n, busy)
		_, err := Check(context.Background(), r.dev, r.seg, CheckOptions{Generation: 7})
		require.ErrorIs(t, err, busy, "read %d", n)
	}
	for n := 1; n < 8; n++ {
		r.dev.DisconnectAt(nvmf.Read, n)
		require.Empty(t, r.checked().Findings, "read %d", n)
	}
}

// TestCheckMoving checks media on which each look finds damage at another place, as if a writer changed
// it meanwhile. Check must report no damage, and FoundBusy if no look is without such damage.
func TestCheckMoving(t *testing.T) {
	r := populated(t, variants[0])
	places := [2]nvmf.Bytes{0, r.seg.Length - blockSize}
	for _, quietAfter := range []int{3, 1000} {
		looks := 0
		dev := &tapped{r.dev, func(c *nvmf.Command) error {
			if holds(c, r.v.lba, r.seg.Start) {
				looks++
			}
			if looks <= quietAfter && holds(c, r.v.lba, r.seg.Start+places[looks%2]) {
				clear(c.Data[0])
			}
			return nil
		}}
		got, err := Check(context.Background(), dev, r.seg, CheckOptions{Generation: 7, Looks: 6})
		require.NoError(t, err)
		require.True(t, got.InUse)
		if quietAfter == 3 {
			require.Empty(t, got.Findings)
			continue
		}
		require.Equal(t, []FindingKind{FoundBusy}, kinds(got, Note), "%+v", got.Findings)
		require.False(t, got.Clean())
	}
	// Damage that every look finds is reported, together with FoundBusy.
	clear(r.block(claimAt(0)))
	clear(r.block(claimAt(1))[100:])
	r.block(claimAt(0))[5] = 1
	looks := 0
	dev := &tapped{r.dev, func(c *nvmf.Command) error {
		if holds(c, r.v.lba, r.seg.Start) {
			looks++
		}
		if at := r.seg.Start + places[0]; looks%2 == 0 && holds(c, r.v.lba, at) {
			clear(c.Data[0])
		}
		return nil
	}}
	got, err := Check(context.Background(), dev, r.seg, CheckOptions{Generation: 7, Looks: 6})
	require.NoError(t, err)
	require.Equal(t, []FindingKind{FoundClaim, FoundBusy}, kinds(got, Note), "%+v", got.Findings)
}

// TestCheckBesideWriter runs Check many times while a writer changes the file system. It checks that no
// damage is reported, and that most checks find a quiet moment.
func TestCheckBesideWriter(t *testing.T) {
	if raceEnabled {
		t.Skip("the two share memory as two hosts share a namespace: without a lock")
	}
	dev := memory(t, 64*nvmf.MiB, 4096)
	ctx := context.Background()
	seg := Segment{Length: 64 * nvmf.MiB}
	require.NoError(t, Format(ctx, dev, seg, FormatOptions{}))
	fs, err := Mount(ctx, dev, seg, Options{})
	require.NoError(t, err)
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- rewrite(fs, stop) }()
	busy := 0
	for range 20 {
		r, err := Check(ctx, dev, seg, CheckOptions{})
		require.NoError(t, err)
		if !r.Clean() {
			require.Equal(t, []FindingKind{FoundBusy}, kinds(r, Repairable), "%+v", r.Findings)
			busy++
		}
	}
	close(stop)
	require.NoError(t, <-done)
	require.NoError(t, fs.Unmount())
	t.Logf("%d of 20 checks found no quiet moment", busy)
	require.Less(t, busy, 15)
}

// TestCheckCrash runs Check on contents that a device may have after a crash, and after a crash during
// recovery. It checks that there are no findings worse than notes.
func TestCheckCrash(t *testing.T) {
	skipRace(t)
	crashes := 20
	if testing.Short() {
		crashes = 5
	}
	for _, v := range variants {
		for _, faults := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, faults %v", v.name, faults), func(t *testing.T) {
				t.Parallel()
				seed := newSeed(t)
				mem, err := memdev.New(traceSize, v.lba, memdev.Options{VolatileWriteCache: v.cache})
				require.NoError(t, err)
				defer mem.Close()
				rec := record(t, v, seed, 60, faults)
				r := rand.New(rand.NewPCG(seed, 99))
				notes := 0
				for i := range crashes {
					k := 1 + r.IntN(len(rec.trace.Events))
					what := fmt.Sprintf("image %d, crash at event %d of %d", i, k, len(rec.trace.Events))
					copy(mem.Bytes(), rec.base)
					crashMedia(r, mem.Bytes(), rec.trace, k, int(v.lba), v.cache)
					if r.IntN(2) == 0 {
						rec.crashRecovery(t, r, mem, what)
						what += ", and in the recovery"
					}
					got, err := Check(context.Background(), mem, traceSegment, CheckOptions{Generation: 7})
					require.NoError(t, err, what)
					require.Empty(t, problems(got), what)
					notes += len(got.Findings)
				}
				t.Logf("%d images checked, %d notes", crashes, notes)
			})
		}
	}
}

// metadata returns the bytes of the partition in front of its data area.
func (r *logRig) metadata() []byte { return r.mem.Bytes()[r.seg.Start : r.seg.Start+r.fs.g.data] }

// reseal writes the right checksum to a changed structure of 4 KiB.
func reseal(b []byte) { binary.LittleEndian.PutUint64(b[sbCRC:], checksum(b[:sbCRC])) }

// TestCheckHostile changes random bytes of the metadata, with valid and with invalid checksums. It
// checks that Check ends without an error, and that the media can be mounted if Check finds no damage.
func TestCheckHostile(t *testing.T) {
	watch(t)
	seed := newSeed(t)
	rnd := rand.New(rand.NewPCG(seed, 0))
	r := populated(t, variants[4])
	good := slices.Clone(r.metadata())
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	refused := 0
	for i := range rounds {
		copy(r.metadata(), good)
		for range 1 + rnd.IntN(6) {
			at := rnd.IntN(len(good) / blockSize)
			if rnd.IntN(2) == 0 {
				at = rnd.IntN(25) // superblock, headers, claims, log
			}
			b := r.metadata()[at*blockSize:][:blockSize]
			for range 1 + rnd.IntN(4) {
				putInteresting(rnd, b)
			}
			if rnd.IntN(2) == 0 {
				reseal(b)
			}
		}
		got, err := Check(context.Background(), r.dev, r.seg, CheckOptions{Generation: 7})
		require.NoError(t, err, "round %d", i)
		require.LessOrEqual(t, len(got.Findings), maxFindings)
		if !got.Clean() {
			refused++
		}
		// Media that Check finds clean can be mounted.
		if fs, err := r.mount(); err == nil {
			require.NoError(t, fs.q.Close())
			fs.ckpt.stop()
		} else {
			require.False(t, got.Clean() && !got.Unformatted, "round %d mounts not: %v", i, err)
		}
	}
	t.Logf("%d of %d were not clean", refused, rounds)
}

// putInteresting changes one number of b, to a value that is likely to meet a special case.
func putInteresting(rnd *rand.Rand, b []byte) {
	at := 8 * rnd.IntN(len(b)/8)
	switch rnd.IntN(4) {
	case 0:
		b[at+rnd.IntN(8)]++
	case 1:
		binary.LittleEndian.PutUint64(b[at:], rnd.Uint64())
	case 2:
		binary.LittleEndian.PutUint64(b[at:], ^uint64(0)>>rnd.IntN(64))
	default:
		binary.LittleEndian.PutUint32(b[at:], uint32(rnd.IntN(8)))
	}
}

// FuzzCheckState checks arbitrary states with valid checksums.
func FuzzCheckState(f *testing.F) {
	g := goldenGeometry(f)
	f.Add(goldenTree(f, g).encode(nil))
	f.Add(newTree(g).encode(nil))
	f.Fuzz(func(t *testing.T, state []byte) {
		c := &checker{FS: &FS{g: g}, r: &CheckReport{}}
		require.NoError(t, c.explainState(state, "state", 0, ErrCorrupt))
		require.NotEmpty(t, problems(c.r), "it is refused: somebody says why")
		tr, err := decodeTree(g, state)
		if err != nil {
			return
		}
		// A state that Mount accepts has only findings that Mount repairs or does not look for.
		for _, f := range problems(c.r) {
			require.Contains(t, []FindingKind{FoundState, FoundExtent, FoundShared, FoundInode, FoundPool, FoundUnreachable}, f.Kind, "%v: %v", &f, tr.inodes.count)
		}
	})
}
