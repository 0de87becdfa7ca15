package store

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// filled returns a store of two targets and five ranks. Each rank has written a file.
func filled(t *testing.T) *config.Config {
	cfg := newStore(t, 64*nvmf.MiB, 64*nvmf.MiB)
	for r := range 5 {
		p, err := Open(ctx, cfg, Proc{Rank: r, Size: 5}, Options{})
		require.NoError(t, err)
		require.NoError(t, writeFile(p.FS, "f", bytes.Repeat([]byte{byte(r)}, 100000)))
		require.NoError(t, p.FS.Mkdir(microfs.RootIno, "d", 0o700))
		require.NoError(t, p.Close())
	}
	return cfg
}

func writeFile(fs *microfs.FS, name string, data []byte) error {
	f, err := fs.Open(microfs.RootIno, name, syscall.O_CREAT|syscall.O_TRUNC|syscall.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt([][]byte{data}, 0); err != nil {
		return err
	}
	return f.Close()
}

// spoil overwrites n bytes of a target.
func spoil(t *testing.T, cfg *config.Config, target int, at nvmf.Bytes, n int) {
	f, err := os.OpenFile(cfg.Targets[target].Address, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte("spoilt! "), n/8), int64(at))
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// checkAll checks a store and returns the reports in the order in which Check delivers them.
func checkAll(t *testing.T, cfg *config.Config, o CheckOptions) (targets []*TargetReport, parts []*PartReport) {
	o.Target = func(r *TargetReport) { targets = append(targets, r) }
	o.Part = func(r *PartReport) { parts = append(parts, r) }
	require.NoError(t, Check(ctx, cfg, o))
	return targets, parts
}

// TestCheckStore checks an undamaged store. Check must find nothing, and must write nothing, also with Repair.
func TestCheckStore(t *testing.T) {
	t.Parallel()
	cfg := filled(t)
	before := content(t, cfg)
	targets, parts := checkAll(t, cfg, CheckOptions{Rank: AllRanks})
	require.Len(t, targets, 2)
	require.Len(t, parts, 5)
	for _, p := range parts {
		require.NoError(t, p.Err)
		require.Empty(t, p.Findings, "rank %d", p.Rank)
		assert.Equal(t, 1, p.Files)
		assert.Empty(t, p.Holder)
	}
	_, parts = checkAll(t, cfg, CheckOptions{Rank: 3, Repair: true})
	require.Len(t, parts, 1)
	require.Equal(t, 3, parts[0].Rank)
	require.Empty(t, parts[0].Repaired)
	require.Equal(t, before, content(t, cfg), "a check writes nothing, nor a repair of what is whole")
}

// TestCheckTables damages first one copy of a partition table at a time, which Check must report and repair, and then
// both copies, which is a loss.
func TestCheckTables(t *testing.T) {
	cfg := filled(t)
	for copy := range 2 {
		spoil(t, cfg, 1, parttable.CopyOffset(copy), 64)
		targets, parts := checkAll(t, cfg, CheckOptions{Rank: AllRanks})
		require.Empty(t, targets[0].Findings)
		require.Len(t, targets[1].Findings, 1)
		f := targets[1].Findings[0]
		require.Equal(t, FoundTableCopy, f.Kind)
		require.Equal(t, microfs.Repairable, f.Severity)
		require.Equal(t, int64(parttable.CopyOffset(copy)), f.Offset)
		require.Contains(t, f.Remedy, "rank 1")
		require.Len(t, parts, 5)
		targets, parts = checkAll(t, cfg, CheckOptions{Rank: 1, Repair: true})
		require.NoError(t, parts[0].Err)
		require.NotEmpty(t, parts[0].Repaired)
		require.Empty(t, targets[1].Findings)
	}
	spoil(t, cfg, 1, parttable.CopyOffset(0)+32, 64)
	spoil(t, cfg, 1, parttable.CopyOffset(1)+32, 64)
	targets, parts := checkAll(t, cfg, CheckOptions{Rank: AllRanks, Repair: true})
	require.Len(t, targets[1].Findings, 2)
	require.Equal(t, FoundTable, targets[1].Findings[0].Kind)
	require.Equal(t, microfs.Loss, targets[1].Findings[0].Severity)
	require.Len(t, parts, 3, "those of the other target")

	cfg.Name = "another"
	require.ErrorIs(t, Check(ctx, cfg, CheckOptions{Rank: AllRanks, Target: func(*TargetReport) {}}), parttable.ErrOtherName)
	cfg.Targets[0].Address += "-gone"
	cfg.Targets = cfg.Targets[:1]
	targets, _ = checkAll(t, cfg, CheckOptions{Rank: AllRanks})
	require.Error(t, targets[0].Err)
}

// TestCheckRepairs checks that a damaged superblock is repaired once no other process owns the partition.
func TestCheckRepairs(t *testing.T) {
	cfg := filled(t)
	infos, err := Ranks(ctx, cfg)
	require.NoError(t, err)
	at := infos[2].Segment.Start
	p, err := Open(ctx, cfg, Proc{Rank: 2, Size: 5}, Options{})
	require.NoError(t, err)
	spoil(t, cfg, 0, at, 64)
	_, parts := checkAll(t, cfg, CheckOptions{Rank: 2, Repair: true})
	require.ErrorAs(t, parts[0].Err, new(*owner.BusyError))
	require.Contains(t, parts[0].Holder, fmt.Sprint("process ", os.Getpid()))
	require.NoError(t, p.Close())

	_, parts = checkAll(t, cfg, CheckOptions{Rank: AllRanks})
	require.Equal(t, microfs.FoundSuperblockCopy, parts[2].Findings[0].Kind)
	_, parts = checkAll(t, cfg, CheckOptions{Rank: 2, Repair: true})
	require.NoError(t, parts[0].Err)
	require.Empty(t, parts[0].Findings)
	require.NotEmpty(t, parts[0].Repaired)
	r, err := Verify(ctx, cfg, Proc{Rank: 2, Size: 5}, VerifyOptions{})
	require.NoError(t, err)
	require.Equal(t, nvmf.Bytes(100000), r.Bytes)
}

// TestCheckRepairsNothingOfOthers checks that nothing is repaired while a process of another host may be writing to
// another partition of the same namespace, except with --unfenced.
func TestCheckRepairsNothingOfOthers(t *testing.T) {
	cfg := filled(t)
	infos, err := Ranks(ctx, cfg)
	require.NoError(t, err)
	dev, err := connect(ctx, cfg, cfg.Targets[0], false)
	require.NoError(t, err)
	table, err := parttable.Read(ctx, dev)
	require.NoError(t, err)
	_, err = microfs.Mount(ctx, dev, infos[4].Segment, microfs.Options{
		Generation: table.Generation, Holder: microfs.Holder{Host: "node7", Boot: uuid.New(), PID: 99},
	})
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	spoil(t, cfg, 0, infos[2].Segment.Start, 64)
	_, parts := checkAll(t, cfg, CheckOptions{Rank: 2, Repair: true})
	require.ErrorContains(t, parts[0].Err, "process 99 of host node7")
	require.NotEmpty(t, parts[0].Findings)
	cfg.Unfenced = true
	_, parts = checkAll(t, cfg, CheckOptions{Rank: 2, Repair: true})
	require.NoError(t, parts[0].Err)
	require.Empty(t, parts[0].Findings)
}

// TestVerifyDamage damages a file of one rank. Verify must report the damage for that rank only.
func TestVerifyDamage(t *testing.T) {
	t.Parallel()
	cfg := filled(t)
	b, err := os.ReadFile(cfg.Targets[1].Address)
	require.NoError(t, err)
	spoil(t, cfg, 1, nvmf.Bytes(bytes.Index(b, bytes.Repeat([]byte{3}, 100000)))+40000, 8)
	for rank := range 5 {
		var total, read nvmf.Bytes
		r, err := Verify(ctx, cfg, Proc{Rank: rank, Size: 5}, VerifyOptions{
			Total: func(n nvmf.Bytes) { total = n }, Progress: func(n nvmf.Bytes) { read += n },
		})
		require.NoError(t, err)
		require.Equal(t, nvmf.Bytes(100000), total, "rank %d", rank)
		require.Equal(t, total, read)
		if rank != 3 {
			require.Empty(t, r.Bad)
			continue
		}
		require.Len(t, r.Bad, 1)
		require.Equal(t, "/f", r.Bad[0].Path)
		require.Equal(t, int64(32768), r.Bad[0].Offset)
	}
}

// TestVerifyLooksAgain checks that Verify does not report a damaged range which a second mount finds undamaged. A
// running job may have rewritten the range. The test damages the file before the first read and restores it
// afterwards.
func TestVerifyLooksAgain(t *testing.T) {
	t.Parallel()
	cfg := filled(t)
	b, err := os.ReadFile(cfg.Targets[1].Address)
	require.NoError(t, err)
	at := nvmf.Bytes(bytes.Index(b, bytes.Repeat([]byte{3}, 100000)))
	seen := false
	r, err := Verify(ctx, cfg, Proc{Rank: 3, Size: 5}, VerifyOptions{
		Total: func(nvmf.Bytes) { spoil(t, cfg, 1, at, 8) },
		Progress: func(nvmf.Bytes) {
			seen = true
			require.NoError(t, os.WriteFile(cfg.Targets[1].Address, b, 0o600))
		},
	})
	require.NoError(t, err)
	require.True(t, seen)
	require.Empty(t, r.Bad)
}

// TestBesideAJob checks and verifies a store while a rank replaces its files. Neither may report damage.
func TestBesideAJob(t *testing.T) {
	t.Parallel()
	cfg := newStore(t, 32*nvmf.MiB)
	p, err := Open(ctx, cfg, Proc{Rank: 0, Size: 1}, Options{})
	require.NoError(t, err)
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			name := fmt.Sprintf("f%d", i%8)
			err := writeFile(p.FS, name+".new", bytes.Repeat([]byte{byte(i)}, 700000))
			if err == nil {
				err = p.FS.Rename(microfs.RootIno, name+".new", microfs.RootIno, name, 0)
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	var read nvmf.Bytes
	checked := 0
	for range 15 {
		r, err := Verify(ctx, cfg, Proc{Rank: 0, Size: 1}, VerifyOptions{})
		if !microfs.MovedOn(err) {
			require.NoError(t, err)
			require.Empty(t, r.Bad)
			read += r.Bytes
		}
		_, parts := checkAll(t, cfg, CheckOptions{Rank: AllRanks})
		require.NoError(t, parts[0].Err)
		for _, f := range parts[0].Findings {
			require.True(t, f.Severity == microfs.Note || f.Kind == microfs.FoundBusy, f.String())
		}
		if parts[0].Clean() {
			checked++
		}
	}
	close(stop)
	require.NoError(t, <-done)
	require.NoError(t, p.Close())
	require.Positive(t, read)
	t.Logf("%s verified, %d of 15 checks had a quiet moment", read, checked)
	require.Positive(t, checked)
}
