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

// TestMain runs the tests. With STORE_TEST_RANK or STORE_TEST_GROW in the environment the test program is a process
// of a job instead.
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
	_ = flag.Set("test.parallel", waiting) // the flag always exists, and the command line can override it
	os.Exit(m.Run())
}

// waiting is the number of tests that run in parallel. It does not depend on the number of cores, since these tests
// mostly wait for lost targets and for the disk.
const waiting = "6"

// grow gives the store partitions for the given number of ranks.
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

// beRank opens the partition of "RANK/SIZE", prints its generation, and closes it at the end of stdin. If
// STORE_TEST_YIELDS is set it also closes it when another process asks for it.
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

// hang is longer than any step of a test takes, also on a busy machine.
const hang = 5 * time.Minute

// openWaiting opens a partition as the runtime does: it tries again if a target cannot be reached.
func openWaiting(cfg *config.Config, proc Proc, o Options) (p *Partition, err error) {
	for begin := time.Now(); ; {
		p, err = Open(ctx, cfg, proc, o)
		if !errors.Is(err, nvmf.ErrUnreachable) || time.Since(begin) > cfg.Timeout {
			return p, err
		}
	}
}

// newStore returns the configuration of a store whose targets are new files of the given sizes. Each rank has a tree
// of its own.
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
	for r := size - 1; r >= 0; r-- { // the ranks that wait for formatting start first
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

// TestFormatAndReopen checks that a job formats its targets, that the next job finds the same partitions, and that
// readers from outside find them too.
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
	// A reader from outside need not know the number of ranks.
	p, err := Open(ctx, cfg, Proc{Rank: 3}, Options{ReadOnly: true})
	require.NoError(t, err)
	assert.Equal(t, cfg.Targets[1], p.Target)
	require.NoError(t, p.Close())
	_, err = Open(ctx, cfg, Proc{Rank: 5}, Options{ReadOnly: true})
	require.ErrorContains(t, err, "no target has a partition of rank 5")
}

// TestMoreTargetsThanRanks checks that targets without a rank stay unused.
func TestMoreTargetsThanRanks(t *testing.T) {
	cfg := newStore(t, 32*nvmf.MiB, 32*nvmf.MiB, 32*nvmf.MiB)
	mustOpen(t, cfg, 2)
	infos, err := Ranks(ctx, cfg)
	require.NoError(t, err)
	assert.Len(t, infos, 2)
}

// TestRefused checks the errors for settings that do not match the store, and that nothing is written in these cases.
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

// TestOtherUser checks that root can read a store of another user, and can neither write nor release it.
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
	// Root can read the store, but not release it.
	_, err = Open(ctx, cfg, Proc{Rank: 0, Size: 1}, Options{ReadOnly: true})
	require.ErrorIs(t, err, microfs.ErrUnformatted)
	_, err = Release(ctx, cfg)
	require.ErrorIs(t, err, parttable.ErrOtherOwner)
	require.True(t, bytes.Equal(before, content(t, cfg)))
}

// TestTooSmall checks that a target that is too small for its ranks is refused and not written to.
func TestTooSmall(t *testing.T) {
	cfg := newStore(t, 8*nvmf.MiB)
	before := content(t, cfg)
	_, err := Open(ctx, cfg, Proc{Rank: 0, Size: 4}, Options{})
	require.ErrorIs(t, err, microfs.ErrTooSmall)
	assert.Contains(t, err.Error(), "at least")
	require.True(t, bytes.Equal(before, content(t, cfg)))
}

// TestReaderFormatsNothing checks that a reader does not format a target.
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

// TestWaitForTheLowestRank checks the error of a rank whose target is not formatted in time.
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

// TestFormatted checks when Options.Formatted is called. The rank that formats calls it as soon as there is a table.
// A rank that needs the table calls it to wait, and returns its error.
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
		return err // nil: the table exists
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

	// A rank that fails to format does not call Formatted: its caller may try again.
	small := newStore(t, 4*nvmf.MiB)
	_, err = Open(ctx, small, Proc{Rank: 0, Size: 2}, Options{Formatted: func() error { panic("told") }})
	require.ErrorIs(t, err, microfs.ErrTooSmall)
}

// TestPrivateDevice checks that every process formats a device that only this process can use.
func TestPrivateDevice(t *testing.T) {
	cfg := config.Default()
	require.NoError(t, cfg.Set("target", "mem:64M"))
	for rank := 0; rank < 2; rank++ {
		p, err := Open(ctx, cfg, Proc{Rank: rank, Size: 2}, Options{})
		require.NoError(t, err)
		require.NoError(t, p.Close())
	}
}

// TestDamagedCopyIsRepaired checks that the lowest rank repairs a damaged copy of the table, and that other ranks
// only read the other copy.
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
	// A rank that is not the lowest uses the other copy and repairs nothing.
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

// TestResetAndRelease checks that Reset allows another number of ranks, that Release deletes the store, and that
// neither changes another store.
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

	// No target of another store is changed.
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

// TestResetOverwritesData checks that only Reset may replace data that is no store.
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

// TestRanksRaceToFormat starts processes of all ranks at the same time, and two of the lowest rank. One of these two
// must format the target. The other one must get the error that the partition is in use.
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

// TestYield checks that a process gets the partition from one that yields, and is refused by one that does not.
func TestYield(t *testing.T) {
	cfg := newStore(t, 32*nvmf.MiB)
	first := startRank(t, cfg, 0, 1, "STORE_TEST_YIELDS=1")
	require.Contains(t, first.line(), "generation")
	p, err := Open(ctx, cfg, Proc{Rank: 0, Size: 1}, Options{})
	require.NoError(t, err)
	// This process does not yield the partition.
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

// TestLockKey checks that names of locks differ between ranks, stores and targets, and are not too long.
func TestLockKey(t *testing.T) {
	cfg := newStore(t, nvmf.MiB)
	cfg.Name = strings.Repeat("n", parttable.MaxName)
	assert.LessOrEqual(t, len(lockKey(cfg, 1<<20)), owner.MaxKey)
	seen := map[string]bool{lockKey(cfg, 1): true}
	other := *cfg
	other.Name = cfg.Name[1:] + "m" // differs only in the part that the key has as a hash
	moved := *cfg
	moved.Targets = []nvmf.TransportID{{Transport: nvmf.File, Address: "/elsewhere"}}
	for _, k := range []string{lockKey(cfg, 2), lockKey(&other, 1), lockKey(&moved, 1)} {
		assert.False(t, seen[k])
		seen[k] = true
	}
}
