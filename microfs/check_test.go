package microfs

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
	"nvmecr/oplog"
)

// checked returns the report of Check on the device of a rig.
func (c *crashRig) checked() *CheckReport {
	r, err := Check(context.Background(), c.dev, c.seg, CheckOptions{Generation: 7})
	require.NoError(c.t, err)
	return r
}

func kinds(r *CheckReport, worse Severity) (list []FindingKind) {
	for i := range r.Findings {
		if r.Findings[i].Severity >= worse && !slices.Contains(list, r.Findings[i].Kind) {
			list = append(list, r.Findings[i].Kind)
		}
	}
	return list
}

// populated returns a file system with the directories /d, /d/e and /x and the file /f of 50000 bytes.
// It has a state checkpoint and several log pages behind it. It is synced, and not unmounted.
func populated(t *testing.T, v variant) *logRig {
	r := newLogRig(t, v)
	for _, dir := range []string{"d", "d/e", "x"} {
		require.NoError(t, r.fs.Mkdir(RootIno, dir, 0o700))
	}
	f := openNew(t, r.fs, "f")
	_, err := f.WriteAt([][]byte{pattern(50000, 1)}, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, r.fs.Checkpoint())
	for _, name := range []string{"one", "two", "three", "four"} {
		r.fillPage(name)
	}
	require.NoError(t, r.fs.Sync())
	r.fs.ckpt.stop()
	return r
}

// block returns 4 KiB of the partition.
func (r *logRig) block(at nvmf.Bytes) []byte {
	at += r.seg.Start
	return r.mem.Bytes()[at : at+blockSize]
}

// logSlot returns a slot of a log page.
func (r *logRig) logSlot(page uint64, slot int) []byte {
	return r.block(logOffset + nvmf.Bytes(page%r.fs.g.logPages*2+uint64(slot))*oplog.PageSize)
}

// restate applies change to the tree and writes the tree as the current state, without log records
// behind it. If stored is not nil it returns the bytes that are written instead of the encoded tree.
func (r *logRig) restate(change func(*tree), stored func(*tree, []byte) []byte) {
	change(r.fs.tree)
	if stored != nil {
		require.NoError(r.t, r.fs.beginCheckpoint())
		r.fs.ckpt.state = stored(r.fs.tree, r.fs.ckpt.state)
	}
	require.NoError(r.t, r.fs.Checkpoint())
}

// TestCheck damages one structure. It checks that Check reports that damage, and that Repair mends it or
// refuses to.
func TestCheck(t *testing.T) {
	skipRace(t)
	scribble := func(b []byte) { copy(b, pattern(len(b), 9)) }
	tests := []struct {
		name     string
		damage   func(r *logRig)
		kinds    []FindingKind // worse than a note, or at least a note if notes is set
		notes    bool
		worst    Severity
		repaired bool // clean after Repair; else Repair fails and changes nothing
	}{
		{name: "nothing", damage: func(*logRig) {}, repaired: true},
		{name: "first superblock", damage: func(r *logRig) { r.block(0)[4000]++ },
			kinds: []FindingKind{FoundSuperblockCopy}, worst: Repairable, repaired: true},
		{name: "last superblock", damage: func(r *logRig) { clear(r.block(r.seg.Length - blockSize)) },
			kinds: []FindingKind{FoundSuperblockCopy}, worst: Repairable, repaired: true},
		{name: "both superblocks", damage: func(r *logRig) { scribble(r.block(0)); scribble(r.block(r.seg.Length - blockSize)) },
			kinds: []FindingKind{FoundSuperblock}, worst: Loss},
		{name: "superblocks differ", damage: func(r *logRig) {
			g := *r.fs.g
			g.created++
			g.encode(r.block(r.seg.Length - blockSize))
		}, kinds: []FindingKind{FoundSuperblockCopy}, worst: Repairable, repaired: true},
		{name: "generation", damage: func(r *logRig) {
			g := *r.fs.g
			g.generation = 3
			g.encode(r.block(0))
			g.encode(r.block(r.seg.Length - blockSize))
		}, kinds: []FindingKind{FoundGeneration}, worst: Loss},
		{name: "state header written first", damage: func(r *logRig) { scribble(r.block(headerAt(int(r.fs.ckpt.header.sequence % 2)))) },
			kinds: []FindingKind{FoundHeaderCopy}, notes: true, worst: Note, repaired: true},
		{name: "state header written last", damage: func(r *logRig) { scribble(r.block(headerAt(1 - int(r.fs.ckpt.header.sequence%2)))) },
			kinds: []FindingKind{FoundHeaderCopy}, notes: true, worst: Note, repaired: true},
		{name: "state headers differ", damage: func(r *logRig) {
			h := r.fs.ckpt.header
			h.prior.Generation++
			h.encode(r.block(headerAt(1-int(h.sequence%2))), r.fs.g.fs)
		}, kinds: []FindingKind{FoundHeaderCopy}, worst: Repairable, repaired: true},
		{name: "both state headers", damage: func(r *logRig) { scribble(r.block(headerAt(0))); scribble(r.block(headerAt(1))) },
			kinds: []FindingKind{FoundHeader}, worst: Loss},
		{name: "claim written first", damage: func(r *logRig) { scribble(r.block(claimAt(int(r.fs.claim.Sequence % 2)))) },
			kinds: []FindingKind{FoundClaim}, notes: true, worst: Note, repaired: true},
		{name: "claim written last", damage: func(r *logRig) { scribble(r.block(claimAt(1 - int(r.fs.claim.Sequence%2)))) },
			kinds: []FindingKind{FoundClaim}, notes: true, worst: Note, repaired: true},
		{name: "both claims", damage: func(r *logRig) { scribble(r.block(claimAt(0))); scribble(r.block(claimAt(1))) },
			kinds: []FindingKind{FoundClaim}, worst: Repairable, repaired: true},
		{name: "block of the state", damage: func(r *logRig) { scribble(r.block(r.fs.g.state[r.fs.ckpt.header.area])) },
			kinds: []FindingKind{FoundStateBlock}, worst: Repairable, repaired: true},
		{name: "parity of the state", damage: func(r *logRig) { scribble(r.block(r.fs.g.state[r.fs.ckpt.header.area] + blockSize)) },
			kinds: []FindingKind{FoundStateBlock}, worst: Repairable, repaired: true},
		{name: "state", damage: func(r *logRig) {
			at := r.fs.g.state[r.fs.ckpt.header.area]
			scribble(r.block(at))
			scribble(r.block(at + blockSize))
		}, kinds: []FindingKind{FoundState}, worst: Loss},
		{name: "state that is not current", damage: func(r *logRig) { scribble(r.block(r.fs.g.state[1-r.fs.ckpt.header.area])) }, repaired: true},
		{name: "one slot of a log page", damage: func(r *logRig) { scribble(r.logSlot(r.fs.ckpt.header.prior.Page+2, 1)) },
			kinds: []FindingKind{FoundLogSlot}, notes: true, worst: Note, repaired: true},
		{name: "both slots of a log page", damage: func(r *logRig) {
			scribble(r.logSlot(r.fs.ckpt.header.prior.Page+2, 0))
			scribble(r.logSlot(r.fs.ckpt.header.prior.Page+2, 1))
		}, kinds: []FindingKind{FoundLog, FoundLogSlot}, worst: Loss},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r := populated(t, variants[0])
			tc.damage(r)
			before := slices.Clone(r.mem.Bytes())
			got := r.checked()
			require.Equal(t, before, r.mem.Bytes(), "a check writes nothing")
			least := Repairable
			if tc.notes {
				least = Note
			}
			require.Equal(t, tc.kinds, kinds(got, least), "%+v", got.Findings)
			require.Equal(t, tc.worst, got.Worst())
			r.repaired(tc.repaired, before)
		})
	}
}

// repaired runs Repair. If ok, it expects no findings afterwards. Otherwise it expects that Repair fails
// and writes nothing except the claim.
func (r *logRig) repaired(ok bool, before []byte) {
	done, err := Repair(context.Background(), r.dev, r.seg, r.v.o)
	if !ok {
		require.Error(r.t, err)
		for slot := range 2 {
			at := r.seg.Start + claimAt(slot)
			copy(before[at:], r.block(claimAt(slot)))
		}
		require.Equal(r.t, before, r.mem.Bytes(), "nothing is written but the claim")
		return
	}
	require.NoError(r.t, err, "%v", done)
	got := r.checked()
	require.Empty(r.t, got.Findings)
	require.Positive(r.t, got.Generation)
	require.False(r.t, got.InUse)
}

// TestCheckTree writes states with valid checksums and invalid content. It checks the findings, and that
// Repair mends those that are repairable.
func TestCheckTree(t *testing.T) {
	skipRace(t)
	tests := []struct {
		name     string
		change   func(tr *tree)
		state    func(tr *tree, state []byte) []byte
		kinds    []FindingKind
		worst    Severity
		repaired bool
	}{
		{name: "nothing", change: func(*tree) {}, repaired: true},
		{name: "link count", change: func(tr *tree) { tr.named("f").nlink = 5 },
			kinds: []FindingKind{FoundCount}, worst: Repairable, repaired: true},
		{name: "two names, one link", change: func(tr *tree) { tr.addName(tr.inodes.get(RootIno), "second", tr.named("f")) },
			kinds: []FindingKind{FoundCount}, worst: Repairable, repaired: true},
		{name: "links of a directory", change: func(tr *tree) { tr.named("d").nlink++ },
			kinds: []FindingKind{FoundCount}, worst: Repairable, repaired: true},
		{name: "names in a directory", change: func(tr *tree) { tr.named("d").special.entries = 0 },
			kinds: []FindingKind{FoundCount}, worst: Repairable, repaired: true},
		{name: "orphan", change: func(tr *tree) { tr.dropName(tr.inodes.get(RootIno), "f", tr.named("f")) },
			kinds: []FindingKind{FoundUnreachable, FoundCount}, worst: Repairable, repaired: true},
		{name: "directories in each other", change: func(tr *tree) {
			d, x := tr.named("d"), tr.named("x")
			tr.dropName(tr.inodes.get(RootIno), "d", d)
			tr.dropName(tr.inodes.get(RootIno), "x", x)
			tr.addName(d, "x", x)
			tr.addName(x, "d", d)
		}, kinds: []FindingKind{FoundUnreachable}, worst: Repairable, repaired: true},
		{name: "parent", change: func(tr *tree) { tr.named("d").special.parent = tr.named("x").ino },
			kinds: []FindingKind{FoundDirectory}, worst: Repairable, repaired: true},
		{name: "parent of the root", change: func(tr *tree) { tr.inodes.get(RootIno).special.parent = 77 },
			kinds: []FindingKind{FoundDirectory}, worst: Repairable, repaired: true},
		{name: "directory twice", change: func(tr *tree) { tr.addName(tr.named("x"), "d", tr.named("d")) },
			kinds: []FindingKind{FoundDirectory}, worst: Loss},
		{name: "root in a directory", change: func(tr *tree) { tr.names.insert(entry{tr.named("x").ino, "r", RootIno}) },
			kinds: []FindingKind{FoundDirectory, FoundCount}, worst: Loss},
		{name: "no root", change: func(tr *tree) { tr.dropInode(tr.inodes.get(RootIno)) },
			kinds: []FindingKind{FoundInode, FoundDirectory, FoundUnreachable, FoundCount}, worst: Loss},
		{name: "name of nothing", change: func(tr *tree) { tr.names.insert(entry{RootIno, "ghost", 99}) },
			kinds: []FindingKind{FoundInode}, worst: Loss},
		{name: "name in a file", change: func(tr *tree) { tr.names.insert(entry{tr.named("f").ino, "n", tr.named("x").ino}) },
			kinds: []FindingKind{FoundInode}, worst: Loss},
		{name: "mode", change: func(tr *tree) { tr.named("f").mode = 0o600 }, kinds: []FindingKind{FoundInode}, worst: Loss},
		{name: "size", change: func(tr *tree) { tr.named("f").size = -1 }, kinds: []FindingKind{FoundInode}, worst: Loss},
		{name: "numbers used up", change: func(tr *tree) { tr.nextIno = maxIno }, kinds: []FindingKind{FoundInode}, worst: Loss},
		{name: "data of a directory", change: func(tr *tree) { tr.named("x").extents, tr.named("f").extents = tr.named("f").extents, nil },
			kinds: []FindingKind{FoundExtent}, worst: Loss},
		{name: "extent beyond the data area", change: func(tr *tree) { tr.named("f").extents.last().phys = tr.g.blocks },
			kinds: []FindingKind{FoundInode}, worst: Loss},
		{name: "extent beyond the size", change: func(tr *tree) { tr.named("f").size = 3 },
			kinds: []FindingKind{FoundExtent}, worst: Loss},
		{name: "covered", change: func(tr *tree) { x := tr.named("f").extents.last(); x.covered = nvmf.Bytes(x.count)*tr.g.hugeblock + 1 },
			kinds: []FindingKind{FoundInode}, worst: Loss},
		{name: "checksums", change: func(*tree) {}, state: func(tr *tree, state []byte) []byte {
			in := tr.named("f")
			x := in.extents.last()
			stored := x.encode(tr.g, &in.extents.sums, nil)
			require.NotZero(t, x.sums(tr.g))
			at := bytes.Index(state, stored)
			require.Positive(t, at)
			le.PutUint32(state[at+24:], uint32(x.sums(tr.g)-1))
			return slices.Delete(state, at+len(stored)-8, at+len(stored))
		},
			kinds: []FindingKind{FoundInode}, worst: Loss},
		{name: "extents overlap", change: func(tr *tree) {
			f := tr.named("f")
			x := *f.extents.last()
			x.phys += 10
			f.extents.push(x)
		}, kinds: []FindingKind{FoundInode}, worst: Loss},
		{name: "one hugeblock twice", change: func(tr *tree) {
			f := tr.named("f")
			x := *f.extents.last()
			x.file += 10
			f.extents.push(x)
			f.size = 1 << 20
		}, kinds: []FindingKind{FoundShared}, worst: Loss},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			watch(t)
			r := populated(t, variants[0])
			r.restate(tc.change, tc.state)
			before := slices.Clone(r.mem.Bytes())
			got := r.checked()
			require.Equal(t, tc.kinds, kinds(got, Repairable), "%+v", got.Findings)
			require.Equal(t, tc.worst, got.Worst())
			if tc.worst < Loss {
				r.repaired(tc.repaired, before)
			}
		})
	}
}

// TestCheckModel runs Check after random operations, with and without an Unmount. It checks that there
// are no problems, and that the counts of files are right.
func TestCheckModel(t *testing.T) {
	skipRace(t)
	for _, v := range everyVariant {
		t.Run(v.name, func(t *testing.T) {
			seed := newSeed(t)
			mem, err := memdev.New(64*nvmf.MiB, v.lba, memdev.Options{VolatileWriteCache: v.cache})
			require.NoError(t, err)
			dev, err := blocktest.NewFaulty(mem)
			require.NoError(t, err)
			defer dev.Close()
			c := newCrashRigOn(t, dev, Segment{Start: nvmf.MiB, Length: 60 * nvmf.MiB}, v)
			require.Equal(t, 0, c.checked().Files)
			g := &generator{r: rand.New(rand.NewPCG(seed, 0)), m: v.model(), maxFile: 1 << 20, ranges: true}
			steps := 250
			if testing.Short() {
				steps = 60
			}
			for i := 0; i < steps; {
				fs, err := c.mount()
				require.NoError(t, err)
				for range 1 + g.r.IntN(50) {
					o := g.next()
					require.NoError(t, o.fs(fs), "step %d: %s", i, o.name)
					o.model(g.m)
					i++
				}
				if g.r.IntN(3) == 0 {
					require.NoError(t, fs.Unmount())
				} else {
					fs.ckpt.stop()
				}
				got := c.checked()
				require.Empty(t, problems(got), "step %d", i)
				want := map[string]int{}
				for name, what := range g.m.snapshot() {
					if name != "" {
						want[strings.Fields(what)[0]]++
					}
				}
				require.Equal(t, want["dir"], got.Directories)
				require.Equal(t, want["link"], got.Links)
				require.LessOrEqual(t, got.Files, want["file"], "hard links have one inode")
			}
		})
	}
}
