package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
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
)

var ctx = context.Background()

// The test program is also a rank: see TestRanksRaceToFormat.
func TestMain(m *testing.M) {
	if proc := os.Getenv("STORE_TEST_RANK"); proc != "" {
		if err := beRank(proc); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if ranks := os.Getenv("STORE_TEST_GROW"); ranks != "" {
		if err := grow(ranks); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	_ = flag.Set("test.parallel", waiting) // every test has that flag, and the command line may change it
	os.Exit(m.Run())
}

// waiting is how many parallel tests run at the same time: they wait for what is gone, and for a disk.
const waiting = "6"

// grow makes partitions for so many ranks.
func grow(ranks string) error {
	cfg, err := config.FromEnv(os.Getenv)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(ranks)
	if err != nil {
		return err
	}
	cfg.View = config.ViewJob
	p, err := openWaiting(cfg, alone, Options{})
	if err == nil {
		_, err = p.Grow(ctx, cfg, n, quietly)
	}
	return err
}

// beRank opens the partition of "RANK/SIZE", says its generation, and closes it
// when stdin ends or, if STORE_TEST_YIELDS is set, when it is asked to.
func beRank(text string) error {
	var proc Proc
	if _, err := fmt.Sscanf(text, "%d/%d", &proc.Rank, &proc.Size); err != nil {
		return err
	}
	cfg, err := config.FromEnv(os.Getenv)
	if err != nil {
		return err
	}
	var o Options
	if os.Getenv("STORE_TEST_YIELDS") != "" {
		o.OnYield = func(p *Partition) bool { return p.Close() == nil }
	}
	p, err := openWaiting(cfg, proc, o)
	if err != nil {
		return err
	}
	fmt.Printf("generation %d\n", p.Table.Generation)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return p.Close()
}

// hang is how long nothing takes, on however busy a machine.
const hang = 5 * time.Minute

// openWaiting opens a partition as the runtime does: what cannot be reached is tried again.
func openWaiting(cfg *config.Config, proc Proc, o Options) (p *Partition, err error) {
	for begin := time.Now(); ; {
		p, err = Open(ctx, cfg, proc, o)
		if !errors.Is(err, nvmf.ErrUnreachable) || time.Since(begin) > cfg.Timeout {
			return p, err
		}
	}
}

// newStore makes files of the given sizes and a configuration that has them as
// its targets, for ranks that have files of their own.
func newStore(t *testing.T, sizes ...nvmf.Bytes) *config.Config {
	t.Helper()
	cfg := config.Default()
	cfg.View = config.ViewRank
	cfg.Timeout = hang
	dir := t.TempDir()
	for i, size := range sizes {
		path := filepath.Join(dir, strconv.Itoa(i))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Truncate(path, int64(size)))
		cfg.Targets = append(cfg.Targets, nvmf.TransportID{Transport: nvmf.File, Address: path})
	}
	return cfg
}

func content(t *testing.T, cfg *config.Config) []byte {
	t.Helper()
	var all []byte
	for _, id := range cfg.Targets {
		b, err := os.ReadFile(id.Address)
		require.NoError(t, err)
		all = append(all, b...)
	}
	return all
}

// mustOpen opens and closes the partitions of all ranks of a job at once, and
// returns their generations and segments.
func mustOpen(t *testing.T, cfg *config.Config, size int) (gens []uint64, entries []parttable.Entry) {
	t.Helper()
	gens, entries = make([]uint64, size), make([]parttable.Entry, size)
	errs := make([]error, size)
	var wg sync.WaitGroup
	for r := size - 1; r >= 0; r-- { // those who wait come first
		wg.Add(1)
		go func() {
			defer wg.Done()
			p, err := Open(ctx, cfg, Proc{Rank: r, Size: size}, Options{})
			if err == nil {
				gens[r] = p.Table.Generation
				entries[r], _ = p.Table.Entry(r)
				err = p.Close()
			}
			errs[r] = err
		}()
	}
	wg.Wait()
	for r, err := range errs {
		require.NoError(t, err, "rank %d", r)
	}
	return gens, entries
}

func TestFormatAndReopen(t *testing.T) {
	cfg := newStore(t, 64*nvmf.MiB, 64*nvmf.MiB)
	gens, entries := mustOpen(t, cfg, 5)
	for r := range gens {
		assert.Equal(t, gens[r%2], gens[r], "ranks of a target share its generation")
		assert.Equal(t, entries[r%2].Length, entries[r].Length)
	}
	assert.NotEqual(t, gens[0], gens[1])

	again, sameEntries := mustOpen(t, cfg, 5)
	assert.Equal(t, gens, again)
	assert.Equal(t, entries, sameEntries)

	infos, err := Ranks(ctx, cfg)
	require.NoError(t, err)
	require.Len(t, infos, 5)
	for r, info := range infos {
		assert.Equal(t, r, info.Rank)
		assert.Equal(t, cfg.Targets[r%2], info.Target)
		assert.Equal(t, microfs.Segment{Start: entries[r].Start, Length: entries[r].Length}, info.Segment)
	}
	// A reader from outside needs no size.
	p, err := Open(ctx, cfg, Proc{Rank: 3}, Options{ReadOnly: true})
	require.NoError(t, err)
	assert.Equal(t, cfg.Targets[1], p.Target)
	require.NoError(t, p.Close())
	_, err = Open(ctx, cfg, Proc{Rank: 5}, Options{ReadOnly: true})
	require.ErrorContains(t, err, "no target has a partition of rank 5")
}

// Fewer ranks than targets leave targets unused.
func TestMoreTargetsThanRanks(t *testing.T) {
	cfg := newStore(t, 32*nvmf.MiB, 32*nvmf.MiB, 32*nvmf.MiB)
	mustOpen(t, cfg, 2)
	infos, err := Ranks(ctx, cfg)
	require.NoError(t, err)
	assert.Len(t, infos, 2)
}

// What is refused, and that nothing is written then.
func TestRefused(t *testing.T) {
	t.Parallel()
	big := 16 * nvmf.MiB
	for _, c := range []struct {
		name string
		edit func(t *testing.T, cfg *config.Config, proc *Proc)
		err  error
		text string
	}{
		{"another name", func(_ *testing.T, cfg *config.Config, _ *Proc) { cfg.Name = "b" }, parttable.ErrOtherName, "--name default"},
		{"another size", func(_ *testing.T, _ *config.Config, p *Proc) { p.Size = 3 }, parttable.ErrOtherSize, "start 2 ranks"},
		{"targets in another order", func(_ *testing.T, cfg *config.Config, _ *Proc) {
			cfg.Targets[0], cfg.Targets[1] = cfg.Targets[1], cfg.Targets[0]
		}, parttable.ErrOtherTargets, "same order"},
		{"one target less", func(_ *testing.T, cfg *config.Config, _ *Proc) { cfg.Targets = cfg.Targets[:1] }, parttable.ErrOtherTargets, ""},
		{"no targets", func(_ *testing.T, cfg *config.Config, _ *Proc) { cfg.Targets = nil }, ErrNoTarget, "nvmecr run"},
		{"a target that is not there", func(_ *testing.T, cfg *config.Config, _ *Proc) { cfg.Targets[0].Address += "x" }, os.ErrNotExist, ""},
		{"somebody's data", func(t *testing.T, cfg *config.Config, _ *Proc) {
			f, err := os.OpenFile(cfg.Targets[0].Address, os.O_RDWR, 0)
			require.NoError(t, err)
			_, err = f.WriteAt(bytes.Repeat([]byte("data"), 1<<20), 0)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}, parttable.ErrForeign, "--fresh"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := newStore(t, big, big)
			mustOpen(t, cfg, 2)
			all := *cfg
			all.Targets = slices.Clone(cfg.Targets)
			proc := Proc{Rank: 0, Size: 2}
			c.edit(t, cfg, &proc)
			before := content(t, &all)
			for _, readOnly := range []bool{false, true} {
				_, err := Open(ctx, cfg, proc, Options{ReadOnly: readOnly})
				require.ErrorIs(t, err, c.err)
				assert.Contains(t, err.Error(), c.text)
				assert.NotContains(t, err.Error(), "\n")
			}
			require.True(t, bytes.Equal(before, content(t, &all)), "something was written")
		})
	}
}

func TestOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make a table of another user")
	}
	cfg := newStore(t, 32*nvmf.MiB)
	dev, err := connect(ctx, cfg, cfg.Targets[0], false)
	require.NoError(t, err)
	mapping, err := balancer.RoundRobin(1, 1)
	require.NoError(t, err)
	table, err := format(ctx, dev, cfg, 0, mapping)
	require.NoError(t, err)
	table.UID = 12345
	require.NoError(t, parttable.Write(ctx, dev, table))
	require.NoError(t, dev.Close())
	before := content(t, cfg)
	_, err = Open(ctx, cfg, Proc{Rank: 0, Size: 1}, Options{})
	require.ErrorIs(t, err, parttable.ErrOtherOwner)
	require.ErrorIs(t, Reset(ctx, cfg), parttable.ErrOtherOwner)
	require.True(t, bytes.Equal(before, content(t, cfg)))
	// Root may look, but not release.
	_, err = Open(ctx, cfg, Proc{Rank: 0, Size: 1}, Options{ReadOnly: true})
	require.ErrorIs(t, err, microfs.ErrUnformatted)
	_, err = Release(ctx, cfg)
	require.ErrorIs(t, err, parttable.ErrOtherOwner)
	require.True(t, bytes.Equal(before, content(t, cfg)))
}

func TestTooSmall(t *testing.T) {
	cfg := newStore(t, 8*nvmf.MiB)
	before := content(t, cfg)
	_, err := Open(ctx, cfg, Proc{Rank: 0, Size: 4}, Options{})
	require.ErrorIs(t, err, microfs.ErrTooSmall)
	assert.Contains(t, err.Error(), "at least")
	require.True(t, bytes.Equal(before, content(t, cfg)))
}

func TestReaderFormatsNothing(t *testing.T) {
	t.Parallel()
	cfg := newStore(t, 32*nvmf.MiB)
	before := content(t, cfg)
	_, err := Open(ctx, cfg, Proc{Rank: 0, Size: 1}, Options{ReadOnly: true})
	require.ErrorIs(t, err, parttable.ErrNoTable)
	_, err = Ranks(ctx, cfg)
	require.ErrorIs(t, err, parttable.ErrNoTable)
	require.True(t, bytes.Equal(before, content(t, cfg)))
}

func TestWaitForTheLowestRank(t *testing.T) {
	cfg := newStore(t, 32*nvmf.MiB, 32*nvmf.MiB)
	cfg.Timeout = time.Second
	_, err := Open(ctx, cfg, Proc{Rank: 3, Size: 4}, Options{})
	var waited *WaitError
	require.ErrorAs(t, err, &waited)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	assert.Equal(t, 1, waited.Rank)
	assert.Contains(t, err.Error(), cfg.Targets[1].String())
}

// A rank that waits for another one to format its target hears of it: when there is a table, before
// the other one has mounted, or that there will be none.
func TestFormatted(t *testing.T) {
	cfg := newStore(t, 32*nvmf.MiB)
	said := errors.New("rank 0: no space")
	_, err := Open(ctx, cfg, Proc{Rank: 1, Size: 2}, Options{Formatted: func() error { return said }})
	require.ErrorIs(t, err, said)
	require.ErrorContains(t, err, cfg.Targets[0].String())

	told := 0
	format := func() error {
		told++
		_, err := Ranks(ctx, cfg)
		return err // there is a table
	}
	open := func(rank int, formatted func() error) {
		p, err := Open(ctx, cfg, Proc{Rank: rank, Size: 2}, Options{Formatted: formatted})
		require.NoError(t, err)
		require.NoError(t, p.Close())
	}
	open(1, func() error { open(0, format); return nil })
	require.Equal(t, 1, told)
	open(1, func() error { panic("there is nothing to wait for") })
	open(0, format)
	require.Equal(t, 2, told, "those who wait need not know that there was a table")

	// One that cannot format may try again: that is for its caller to tell.
	small := newStore(t, 4*nvmf.MiB)
	_, err = Open(ctx, small, Proc{Rank: 0, Size: 2}, Options{Formatted: func() error { panic("told") }})
	require.ErrorIs(t, err, microfs.ErrTooSmall)
}

// On a device nobody else can see every process formats for itself.
func TestPrivateDevice(t *testing.T) {
	cfg := config.Default()
	require.NoError(t, cfg.Set("target", "mem:64M"))
	for rank := 0; rank < 2; rank++ {
		p, err := Open(ctx, cfg, Proc{Rank: rank, Size: 2}, Options{})
		require.NoError(t, err)
		require.NoError(t, p.Close())
	}
}

func TestDamagedCopyIsRepaired(t *testing.T) {
	t.Parallel()
	cfg := newStore(t, 32*nvmf.MiB)
	gens, _ := mustOpen(t, cfg, 2)
	whole := content(t, cfg)[:parttable.HeadSize]
	f, err := os.OpenFile(cfg.Targets[0].Address, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt(bytes.Repeat([]byte{0x5a}, 4096), 0)
	require.NoError(t, err)
	// A rank that is not the lowest only reads past the damage.
	p, err := Open(ctx, cfg, Proc{Rank: 1, Size: 2}, Options{})
	require.NoError(t, err)
	assert.Equal(t, gens[1], p.Table.Generation)
	require.NoError(t, p.Close())
	require.False(t, bytes.Equal(whole, content(t, cfg)[:parttable.HeadSize]))
	p, err = Open(ctx, cfg, Proc{Rank: 0, Size: 2}, Options{})
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.True(t, bytes.Equal(whole, content(t, cfg)[:parttable.HeadSize]))
}

func TestResetAndRelease(t *testing.T) {
	t.Parallel()
	cfg := newStore(t, 32*nvmf.MiB, 32*nvmf.MiB)
	n, err := Release(ctx, cfg)
	require.NoError(t, err)
	assert.Zero(t, n, "there is nothing to release")
	gens, _ := mustOpen(t, cfg, 2)

	// Reset allows another number of ranks.
	require.NoError(t, Reset(ctx, cfg))
	_, err = Ranks(ctx, cfg)
	require.ErrorIs(t, err, parttable.ErrNoTable)
	other, _ := mustOpen(t, cfg, 3)
	assert.NotEqual(t, gens[0], other[0])

	// Another store's targets are left alone, all of them.
	before := content(t, cfg)
	stranger := *cfg
	stranger.Name = "stranger"
	require.ErrorIs(t, Reset(ctx, &stranger), parttable.ErrOtherName)
	_, err = Release(ctx, &stranger)
	require.ErrorIs(t, err, parttable.ErrOtherName)
	require.True(t, bytes.Equal(before, content(t, cfg)))

	n, err = Release(ctx, cfg)
	require.NoError(t, err)
	assert.Equal(t, 2, n)
	mustOpen(t, &stranger, 1)
	_, err = Release(ctx, cfg)
	require.ErrorIs(t, err, parttable.ErrOtherName)
}

func TestResetOverwritesData(t *testing.T) {
	cfg := newStore(t, 32*nvmf.MiB)
	require.NoError(t, os.WriteFile(cfg.Targets[0].Address, bytes.Repeat([]byte("data"), 8<<20), 0o600))
	_, err := Open(ctx, cfg, Proc{Rank: 0, Size: 1}, Options{})
	require.ErrorIs(t, err, parttable.ErrForeign)
	_, err = Release(ctx, cfg)
	require.ErrorIs(t, err, parttable.ErrForeign)
	require.NoError(t, Reset(ctx, cfg))
	mustOpen(t, cfg, 1)
}

// rankProcess is a process that opens a partition.
type rankProcess struct {
	*exec.Cmd
	in  io.Closer
	out *bufio.Reader
}

func startRank(t *testing.T, cfg *config.Config, rank, size int, env ...string) *rankProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(cfg.Environ(os.Environ()), fmt.Sprintf("STORE_TEST_RANK=%d/%d", rank, size))
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &rankProcess{cmd, in, bufio.NewReader(out)}
}

func (p *rankProcess) line() string {
	s, _ := p.out.ReadString('\n')
	return strings.TrimSpace(s)
}

// Processes of all ranks come at once, those of the lowest rank twice: one of
// the two formats, the other is told that the partition is taken.
func TestRanksRaceToFormat(t *testing.T) {
	cfg := newStore(t, 32*nvmf.MiB)
	const size = 4
	ranks := []int{3, 0, 2, 0, 1}
	var all []*rankProcess
	for _, r := range ranks {
		all = append(all, startRank(t, cfg, r, size))
	}
	said := map[string]int{}
	busy := 0
	for i, p := range all {
		line := p.line()
		if strings.Contains(line, "is writing to it") {
			require.Zero(t, ranks[i], line)
			busy++
			continue
		}
		said[line]++
	}
	assert.Equal(t, 1, busy)
	require.Len(t, said, 1, "all found the same table: %v", said)
	for line, n := range said {
		assert.Contains(t, line, "generation ")
		assert.Equal(t, size, n)
	}
}

// A process that asks gets the partition from one that yields.
func TestYield(t *testing.T) {
	cfg := newStore(t, 32*nvmf.MiB)
	first := startRank(t, cfg, 0, 1, "STORE_TEST_YIELDS=1")
	require.Contains(t, first.line(), "generation")
	p, err := Open(ctx, cfg, Proc{Rank: 0, Size: 1}, Options{})
	require.NoError(t, err)
	// This one does not yield.
	second := startRank(t, cfg, 0, 1)
	require.Contains(t, second.line(), strconv.Itoa(os.Getpid()))
	require.NoError(t, p.Close())
	require.NoError(t, p.Close(), "a second Close does nothing")
	third := startRank(t, cfg, 0, 1)
	require.Contains(t, third.line(), "generation")
	_, err = Open(ctx, cfg, Proc{Rank: 0, Size: 1}, Options{})
	var taken *owner.BusyError
	require.ErrorAs(t, err, &taken)
	assert.Equal(t, third.Process.Pid, taken.PID)
}

func TestLockKey(t *testing.T) {
	cfg := newStore(t, nvmf.MiB)
	cfg.Name = strings.Repeat("n", parttable.MaxName)
	assert.LessOrEqual(t, len(lockKey(cfg, 1<<20)), owner.MaxKey)
	seen := map[string]bool{lockKey(cfg, 1): true}
	other := *cfg
	other.Name = cfg.Name[1:] + "m" // differs only in what the key leaves out
	moved := *cfg
	moved.Targets = []nvmf.TransportID{{Transport: nvmf.File, Address: "/elsewhere"}}
	for _, k := range []string{lockKey(cfg, 2), lockKey(&other, 1), lockKey(&moved, 1)} {
		assert.False(t, seen[k])
		seen[k] = true
	}
}
