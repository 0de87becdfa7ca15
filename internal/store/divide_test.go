package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/balancer"
	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
)

var alone = Proc{Rank: 0, Size: 1}

// withPartition opens a partition, calls do with it, and closes it.
func withPartition(t *testing.T, cfg *config.Config, proc Proc, o Options, do func(p *Partition)) {
	t.Helper()
	p, err := Open(ctx, cfg, proc, o)
	require.NoError(t, err)
	do(p)
	require.NoError(t, p.Close())
}

func contentOf(t *testing.T, fs *microfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(microfs.RootIno, name, syscall.O_RDONLY, 0)
	require.NoError(t, err)
	a, err := f.Stat()
	require.NoError(t, err)
	b := make([]byte, a.Size)
	_, err = f.ReadAt([][]byte{b}, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return b
}

var scriptFile = bytes.Repeat([]byte("from the script "), 5000)

// TestSingletonFirst checks a store that a job script used before the first ranks. The script's file must remain for
// later scripts and readers, and the ranks must get more than nine tenths of the space.
func TestSingletonFirst(t *testing.T) {
	for _, targets := range []int{1, 2} {
		cfg := newStore(t, []nvmf.Bytes{256 * nvmf.MiB, 256 * nvmf.MiB}[:targets]...)
		withPartition(t, cfg, alone, Options{}, func(p *Partition) {
			require.NoError(t, writeFile(p.FS, "script", scriptFile))
		})
		_, err := Open(ctx, cfg, Proc{Rank: 1, Size: 4}, Options{ReadOnly: true})
		if targets == 1 {
			require.ErrorIs(t, err, ErrUndivided)
		}
		_, entries := mustOpen(t, cfg, 4)
		var sum nvmf.Bytes
		for _, e := range entries {
			sum += e.Length
		}
		assert.Greater(t, sum, nvmf.Bytes(targets)*256*nvmf.MiB*9/10)
		for _, o := range []Options{{ReadOnly: true}, {}} {
			withPartition(t, cfg, alone, o, func(p *Partition) {
				require.Equal(t, scriptFile, contentOf(t, p.FS, "script"))
			})
		}
		withPartition(t, cfg, Proc{Rank: parttable.Singleton, Size: 4}, Options{ReadOnly: true}, func(p *Partition) {
			require.Equal(t, scriptFile, contentOf(t, p.FS, "script"))
		})
		mustOpen(t, cfg, 4)
		_, err = Open(ctx, cfg, Proc{Rank: 0, Size: 3}, Options{})
		require.ErrorIs(t, err, parttable.ErrOtherSize)
		_, parts := checkAll(t, cfg, CheckOptions{Rank: AllRanks})
		require.Len(t, parts, 5)
		require.Equal(t, parttable.Singleton, parts[4].Rank)
		for _, p := range parts {
			require.NoError(t, p.Err)
			require.Empty(t, p.Findings)
		}
	}
}

// TestRanksFirst checks that ranks which format a store leave a singleton partition, except in a store that is too
// small for one.
func TestRanksFirst(t *testing.T) {
	t.Parallel()
	cfg := newStore(t, 256*nvmf.MiB)
	mustOpen(t, cfg, 4)
	_, err := Open(ctx, cfg, alone, Options{ReadOnly: true})
	require.ErrorIs(t, err, microfs.ErrUnformatted)
	withPartition(t, cfg, alone, Options{}, func(p *Partition) {
		require.NoError(t, writeFile(p.FS, "script", scriptFile))
		mustOpen(t, cfg, 4) // while the singleton partition is open
	})
	withPartition(t, cfg, alone, Options{ReadOnly: true}, func(p *Partition) {
		require.Equal(t, scriptFile, contentOf(t, p.FS, "script"))
	})

	small := newStore(t, 32*nvmf.MiB)
	_, entries := mustOpen(t, small, 4)
	assert.EqualValues(t, 7*nvmf.MiB, entries[0].Length, "as ever")
	for _, o := range []Options{{ReadOnly: true}, {}} {
		_, err = Open(ctx, small, alone, o)
		require.ErrorIs(t, err, ErrNoSingletonPartition)
		require.ErrorIs(t, err, syscall.EROFS)
	}
	assert.EqualValues(t, 1, headOf(t, small)[16], "a table that earlier versions read")
	assert.EqualValues(t, 2, headOf(t, cfg)[16])
}

// TestDividedElsewhere lets a process on another host divide the store after a process of a job script has read the
// table and before that process mounts the partition. The mount must have the new length of the partition.
func TestDividedElsewhere(t *testing.T) {
	cfg := newStore(t, 64*nvmf.MiB)
	withPartition(t, cfg, alone, Options{}, func(p *Partition) {
		require.NoError(t, writeFile(p.FS, "script", scriptFile))
	})
	elsewhere := func() {
		dev, err := connect(ctx, cfg, cfg.Targets[0], false)
		require.NoError(t, err)
		table, err := parttable.Read(ctx, dev)
		require.NoError(t, err)
		o := &opener{cfg: cfg, proc: alone, opts: Options{Logf: t.Logf}}
		p := &Partition{Device: dev, Target: cfg.Targets[0], Table: table, Proc: alone}
		entry, _ := table.SingletonEntry()
		require.NoError(t, o.mount(ctx, p, entry))
		require.NoError(t, p.divide(ctx, o, fourRanks(t)))
		require.NoError(t, p.FS.Unmount())
		require.NoError(t, dev.Close())
	}
	// Open reports the repair of a table after it has read the table. That message is the moment for the division.
	f, err := os.OpenFile(cfg.Targets[0].Address, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(make([]byte, 4096), int64(parttable.HeadSize/2))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	done := false
	logf := func(format string, args ...any) {
		t.Logf(format, args...)
		if !done && strings.Contains(format, "a damaged copy of the partition table") {
			done = true
			elsewhere()
		}
	}
	withPartition(t, cfg, alone, Options{Logf: logf}, func(p *Partition) {
		require.True(t, done)
		require.Equal(t, 4, p.Table.JobSize)
		entry, _ := p.Table.SingletonEntry()
		st := p.FS.StatFS()
		require.Less(t, nvmf.Bytes(st.Blocks)*st.Hugeblock, entry.Length, "the end of the partition")
		require.Equal(t, scriptFile, contentOf(t, p.FS, "script"))
	})
	mustOpen(t, cfg, 4)
}

func headOf(t *testing.T, cfg *config.Config) []byte {
	b, err := os.ReadFile(cfg.Targets[0].Address)
	require.NoError(t, err)
	return b[:4096]
}

// TestDivideByOwner checks that a process with an open file in the singleton partition divides the store when ranks
// ask it to, and can go on writing the file.
func TestDivideByOwner(t *testing.T) {
	cfg := newStore(t, 64*nvmf.MiB)
	used := bytes.Repeat([]byte{0x5a}, int(62*nvmf.MiB)) // old data of another user of the device
	f, err := os.OpenFile(cfg.Targets[0].Address, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(used, int64(parttable.HeadSize))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	var told atomic.Bool
	withPartition(t, cfg, alone, Options{OnDivide: func() { told.Store(true) }}, func(p *Partition) {
		log, err := p.FS.Open(microfs.RootIno, "log", syscall.O_CREAT|syscall.O_WRONLY, 0o600)
		require.NoError(t, err)
		_, _, err = log.Append([][]byte{scriptFile})
		require.NoError(t, err)
		mustOpen(t, cfg, 4)
		assert.True(t, told.Load())
		_, _, err = log.Append([][]byte{scriptFile})
		require.NoError(t, err)
		mustOpen(t, cfg, 4)
		require.NoError(t, log.Close())
	})
	withPartition(t, cfg, alone, Options{ReadOnly: true}, func(p *Partition) {
		require.Equal(t, bytes.Repeat(scriptFile, 2), contentOf(t, p.FS, "log"))
	})
}

// TestScriptRaces lets short commands of a script open and close the singleton partition while the ranks of a job
// start. All files that the commands wrote must remain.
func TestScriptRaces(t *testing.T) {
	for range 3 {
		cfg := newStore(t, 256*nvmf.MiB)
		stop, done := make(chan struct{}), make(chan int)
		go func() {
			n := 0
			defer func() { done <- n }()
			for ; ; n++ {
				p, err := Open(ctx, cfg, alone, Options{})
				if err == nil {
					err = writeFile(p.FS, fmt.Sprint(n), scriptFile)
					assert.NoError(t, p.Close())
				}
				if !assert.True(t, err == nil || errors.As(err, new(*owner.BusyError)), "%v", err) {
					return
				}
				if err != nil {
					n--
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
		for range 5 {
			mustOpen(t, cfg, 4)
		}
		close(stop)
		n := <-done
		withPartition(t, cfg, alone, Options{ReadOnly: true}, func(p *Partition) {
			for i := range n {
				require.Equal(t, scriptFile, contentOf(t, p.FS, fmt.Sprint(i)))
			}
		})
		mustOpen(t, cfg, 4)
	}
}

// TestSingletonTooFull checks that a store is not divided if files of the singleton partition occupy more than half
// of it. The files must be unchanged, and deleting them must make the division possible.
func TestSingletonTooFull(t *testing.T) {
	t.Parallel()
	cfg := newStore(t, 64*nvmf.MiB)
	withPartition(t, cfg, alone, Options{}, func(p *Partition) {
		require.NoError(t, writeFile(p.FS, "large", bytes.Repeat([]byte{7}, 40<<20)))
		_, err := Open(ctx, cfg, Proc{Rank: 0, Size: 4}, Options{})
		require.ErrorContains(t, err, "cannot be divided among 4 ranks", "by its owner")
		require.ErrorContains(t, err, "start over with --fresh")
		require.NoError(t, writeFile(p.FS, "more", bytes.Repeat([]byte{7}, 10<<20)))
	})
	_, err := Open(ctx, cfg, Proc{Rank: 0, Size: 4}, Options{})
	require.ErrorIs(t, err, microfs.ErrInUse)
	require.ErrorContains(t, err, "start over with --fresh")
	withPartition(t, cfg, alone, Options{}, func(p *Partition) {
		require.Equal(t, bytes.Repeat([]byte{7}, 40<<20), contentOf(t, p.FS, "large"))
		require.NoError(t, p.FS.Unlink(microfs.RootIno, "large"))
		require.NoError(t, p.FS.Unlink(microfs.RootIno, "more"))
	})
	mustOpen(t, cfg, 4)
}

// TestSingletonHeld checks the error of ranks if a process of another host holds the singleton partition.
func TestSingletonHeld(t *testing.T) {
	cfg := newStore(t, 64*nvmf.MiB)
	withPartition(t, cfg, alone, Options{}, func(*Partition) {})
	dev, err := connect(ctx, cfg, cfg.Targets[0], false)
	require.NoError(t, err)
	table, err := parttable.Read(ctx, dev)
	require.NoError(t, err)
	e, _ := table.SingletonEntry()
	_, err = microfs.Mount(ctx, dev, microfs.Segment{Start: e.Start, Length: e.Length}, microfs.Options{
		Generation: table.Generation, Holder: microfs.Holder{Host: "node7", Boot: [16]byte{1}, PID: 99},
	})
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	_, err = Open(ctx, cfg, Proc{Rank: 0, Size: 4}, Options{})
	require.ErrorAs(t, err, new(*HeldError))
	require.ErrorContains(t, err, "cannot be divided among 4 ranks")
	require.ErrorContains(t, err, "process 99 of host node7")
}

// TestDivideCrash interrupts the power in each write of a division, after several numbers of bytes. With a volatile
// cache it fails each flush and then loses a part of the cache. Afterwards the store must be either undivided or
// divided, with its files, and it must be possible to divide it.
func TestDivideCrash(t *testing.T) {
	t.Parallel()
	outcomes := map[int]int{}
	for _, cached := range []bool{false, true} {
		for n := 1; ; n++ {
			over := false
			for i, torn := range []int{0, 8, 512, 4095, 1 << 30} {
				size, done := divideAndCrash(t, cached, n, i, torn)
				if over = done; done {
					break
				}
				outcomes[size]++
			}
			if over {
				t.Logf("cached %v: %d steps", cached, n-1)
				require.Greater(t, n, 3)
				break
			}
		}
	}
	assert.NotZero(t, outcomes[1])
	assert.NotZero(t, outcomes[4])
}

// divideAndCrash crashes in write (or flush) n of a division and returns the job size of the table afterwards. done
// reports that the division had fewer than n writes (or flushes).
func divideAndCrash(t *testing.T, cached bool, n, seed, torn int) (size int, done bool) {
	inner, err := memdev.New(64*nvmf.MiB, 512, memdev.Options{})
	require.NoError(t, err)
	dev, err := blocktest.NewFaulty(inner)
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	op := nvmf.Write
	if cached {
		op = nvmf.Flush
		dev.UseVolatileCache()
	}
	where := fmt.Sprintf("%v %d, %d bytes, seed %d", op, n, torn, seed)
	cfg := config.Default()
	cfg.View = config.ViewRank
	cfg.Timeout = 50 * time.Millisecond // so that commands without power fail soon
	cfg.Targets = []nvmf.TransportID{{Transport: nvmf.Mem}}
	mapping, err := balancer.RoundRobin(1, 1)
	require.NoError(t, err)
	table, err := format(ctx, dev, cfg, 0, mapping)
	require.NoError(t, err)
	o := &opener{cfg: cfg, proc: alone, opts: Options{Logf: func(string, ...any) {}}}
	mount := func(table *parttable.Table) *Partition {
		p := &Partition{Device: dev, Table: table, Proc: alone, Target: nvmf.TransportID{Transport: nvmf.File}}
		entry, ok := table.SingletonEntry()
		require.True(t, ok, where)
		require.NoError(t, o.mount(ctx, p, entry), where)
		return p
	}
	p := mount(table)
	require.NoError(t, writeFile(p.FS, "gone", make([]byte, 10<<20)))
	require.NoError(t, writeFile(p.FS, "script", scriptFile))
	require.NoError(t, p.FS.Unlink(microfs.RootIno, "gone"))
	require.NoError(t, p.FS.Rename(microfs.RootIno, "script", microfs.RootIno, "kept", 0))
	require.NoError(t, p.FS.Sync())
	if cached {
		dev.FailAt(op, n, nvmf.ErrClosed)
	} else {
		dev.CutAt(n, torn)
	}
	if err = p.divide(ctx, o, fourRanks(t)); err == nil {
		dev.Heal()
		require.NoError(t, p.FS.Unmount(), where)
		return 4, true
	}
	if cached {
		require.NoError(t, dev.Crash(uint64(seed)))
	}
	_ = p.FS.Unmount() // the error does not matter: the crash has ended this process
	dev.Heal()
	dev.PowerOn()
	cfg.Timeout = 20 * time.Second

	table, err = parttable.Read(ctx, dev)
	require.NoError(t, err, where)
	size = table.JobSize
	for _, e := range table.Entries {
		if size > 1 && e.Rank != parttable.Singleton {
			_, err := microfs.Mount(ctx, dev, microfs.Segment{Start: e.Start, Length: e.Length}, microfs.Options{Generation: table.Generation, ReadOnly: true})
			require.ErrorIs(t, err, microfs.ErrUnformatted, where)
		}
	}
	p = mount(table)
	require.Equal(t, scriptFile, contentOf(t, p.FS, "kept"), where)
	require.NoError(t, p.divide(ctx, o, fourRanks(t)), where)
	require.NoError(t, writeFile(p.FS, "more", scriptFile), where)
	require.NoError(t, p.FS.Unmount(), where)
	return size, false
}

// TestDivideKilled kills a rank at different moments while it divides the store. The script's file must remain, and
// the next ranks must be able to use the store.
func TestDivideKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a rank at each step of a division: not in a short run")
	}
	cfg := newStore(t, 64*nvmf.MiB)
	withPartition(t, cfg, alone, Options{}, func(p *Partition) {
		require.NoError(t, writeFile(p.FS, "script", scriptFile))
	})
	blank := content(t, cfg)
	for delay := time.Duration(0); delay < 40*time.Millisecond; delay += 4 * time.Millisecond {
		require.NoError(t, os.WriteFile(cfg.Targets[0].Address, blank, 0o600))
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(cfg.Environ(os.Environ()), "STORE_TEST_RANK=0/4")
		require.NoError(t, cmd.Start())
		time.Sleep(delay)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		withPartition(t, cfg, alone, Options{}, func(p *Partition) {
			require.Equal(t, scriptFile, contentOf(t, p.FS, "script"))
		})
		mustOpen(t, cfg, 4)
	}
}

func fourRanks(t *testing.T) balancer.Mapping {
	m, err := balancer.RoundRobin(4, 1)
	require.NoError(t, err)
	return m
}
