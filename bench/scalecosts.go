package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/balancer"
	"nvmecr/bench/model"
	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
	"nvmecr/nvmf/wiretest"
)

// timed runs f several times and returns the seconds of each run.
func timed(ctx context.Context, times int, f func() error) (stats.Sample, error) {
	var s stats.Sample
	for range times {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		begin := time.Now()
		if err := f(); err != nil {
			return nil, err
		}
		s = append(s, time.Since(begin).Seconds())
	}
	return s, nil
}

// balancer measures the time for finding the home of each of a million ranks.
func (m *measuring) balancer(ctx context.Context, c *model.Costs) error {
	const targets = (maxRanks + 111) / 112
	mapping, err := balancer.RoundRobin(maxRanks, targets)
	if err != nil {
		return err
	}
	took, err := timed(ctx, 7, func() error {
		for rank := range maxRanks {
			if _, err := mapping.Home(rank); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.Home = time.Duration(took.Median() / maxRanks * 1e9)
	m.add("homes of a million ranks, one core", result.Duration, result.Middle(took))
	return nil
}

// tables writes and reads partition tables in memory.
func (m *measuring) tables(ctx context.Context, c *model.Costs) error {
	dev, err := memdev.New(parttable.HeadSize+nvmf.Bytes(parttable.MaxEntries)*nvmf.MiB, 4096, memdev.Options{})
	if err != nil {
		return err
	}
	defer dev.Close()
	times := make(map[int]float64)
	for _, entries := range []int{2, 112, parttable.MaxEntries} {
		write, read, err := tableTimes(ctx, dev, entries)
		if err != nil {
			return err
		}
		times[entries] = write.Median()
		m.add(fmt.Sprintf("table of %s ranks: encode and write, in memory", result.Whole.Format(float64(entries))), result.Duration, result.Middle(write))
		m.add(fmt.Sprintf("table of %s ranks: read and check, in memory", result.Whole.Format(float64(entries))), result.Duration, result.Middle(read))
	}
	c.Format = time.Duration((times[parttable.MaxEntries] - times[2]) / float64(parttable.MaxEntries-2) * 1e9)
	return nil
}

func tableTimes(ctx context.Context, dev nvmf.Device, entries int) (write, read stats.Sample, err error) {
	table := &parttable.Table{Name: "bench", Generation: 1, JobSize: entries, Targets: 1, Hugeblock: 32 * nvmf.KiB}
	segments, err := balancer.Segments(parttable.HeadSize, dev.Identity().Capacity(), entries, nvmf.MiB)
	if err != nil {
		return nil, nil, err
	}
	for i, s := range segments {
		table.Entries = append(table.Entries, parttable.Entry{Rank: i, Start: s.Start, Length: s.Length})
	}
	if err := parttable.Begin(ctx, dev, nil); err != nil {
		return nil, nil, err
	}
	if write, err = timed(ctx, 15, func() error { return parttable.Write(ctx, dev, table) }); err != nil {
		return nil, nil, err
	}
	read, err = timed(ctx, 15, func() error { _, err := parttable.Read(ctx, dev); return err })
	return write, read, err
}

// starter opens a store as a rank's runtime does.
type starter struct {
	cfg  *config.Config
	size int // ranks of the job
}

// newStarter starts a store on the target.
func newStarter(id nvmf.TransportID) *starter {
	s := &starter{cfg: DefaultConfig(), size: 1}
	s.cfg.Name, s.cfg.Targets = storeName, []nvmf.TransportID{id}
	return s
}

// fresh makes the next start the first one of a job with size ranks.
func (s *starter) fresh(ctx context.Context, size int) error {
	s.size = size
	if err := s.nextRun(); err != nil {
		return err
	}
	return store.Reset(ctx, s.cfg)
}

// nextRun makes the next start one of a later run of the store.
func (s *starter) nextRun() (err error) {
	s.cfg.Run, err = store.NewRun(s.cfg.Run)
	return err
}

func (s *starter) open(ctx context.Context, rank int) (*store.Partition, error) {
	return store.Open(ctx, s.cfg, store.Proc{Rank: rank, Size: s.size}, store.Options{})
}

// once opens and closes rank 0, and returns the duration of the open.
func (s *starter) once(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	p, err := s.open(ctx, 0)
	took := time.Since(begin)
	if err != nil {
		return 0, err
	}
	return took, p.Close()
}

// messages counts the PDUs of a rank's first start and of a later one.
func (m *measuring) messages(ctx context.Context, c *model.Costs) (err error) {
	t, err := m.env.startTarget(ctx, fmt.Sprintf("mem:%d", uint64(nvmf.GiB)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	wire, err := wiretest.New(t.ids[0].Address + ":" + t.ids[0].Service)
	if err != nil {
		return err
	}
	defer wire.Close()
	s := newStarter(wire.Through(t.ids[0]))
	if err := s.fresh(ctx, 1); err != nil {
		return err
	}
	first, firstBytes, err := s.counted(ctx, wire)
	if err != nil {
		return err
	}
	if err := s.nextRun(); err != nil {
		return err
	}
	later, laterBytes, err := s.counted(ctx, wire)
	if err != nil {
		return err
	}
	c.Poll = 2 * time.Millisecond // as in package mpiwrap
	c.RankMessages, c.RankBytes, c.FormatMessages = later, laterBytes, max(0, first-later)
	m.add("PDUs of a rank's start, both ways", result.Whole, result.Exactly(float64(later)))
	m.add("their bytes", result.Size, result.Exactly(float64(laterBytes)))
	m.add("PDUs of the start that formats target and partition", result.Whole, result.Exactly(float64(first)))
	m.add("their bytes", result.Size, result.Exactly(float64(firstBytes)))
	return nil
}

// counted opens rank 0, and returns the numbers of PDUs and bytes on the network until
// then.
func (s *starter) counted(ctx context.Context, wire *wiretest.Proxy) (pdus int, bytes uint64, err error) {
	var n, sum atomic.Uint64
	wire.Script(func(p *wiretest.PDU) wiretest.Action {
		n.Add(1)
		sum.Add(uint64(len(p.Bytes)))
		return wiretest.Pass
	})
	p, err := s.open(ctx, 0)
	if err != nil {
		return 0, 0, err
	}
	pdus, bytes = int(n.Load()), sum.Load()
	return pdus, bytes, p.Close()
}

// together is the number of ranks in one process that are mounted at the same time.
const together = 32

// starts measures starts, and their costs for the target.
func (m *measuring) starts(ctx context.Context, c *model.Costs) (err error) {
	t, err := m.env.startTarget(ctx, fmt.Sprintf("mem:%d", uint64(4*nvmf.GiB)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	var first, later stats.Sample
	s := newStarter(t.ids[0])
	for range 9 {
		if err := s.fresh(ctx, 1); err != nil {
			return err
		}
		for i := range 3 {
			took, err := s.once(ctx)
			if err != nil {
				return err
			}
			if i == 0 {
				first = append(first, took.Seconds())
			} else {
				later = append(later, took.Seconds())
			}
			if err := s.nextRun(); err != nil {
				return err
			}
		}
	}
	c.MountOne = time.Duration(later.Median() * 1e9)
	c.FormatBase = max(0, time.Duration(first.Median()*1e9)-c.MountOne)
	m.add("from connection to mount, one rank, later runs", result.Duration, result.Middle(later))
	m.add("from connection to mount, the rank that formats", result.Duration, result.Middle(first))
	return m.loaded(ctx, c, t, s)
}

// loaded mounts many ranks on one target. It measures the target's processor time, the
// times of starts one after another, and the target's memory.
func (m *measuring) loaded(ctx context.Context, c *model.Costs, t *target, s *starter) (err error) {
	if err := s.fresh(ctx, together); err != nil {
		return err
	}
	var open []*store.Partition
	closeAll := func() error {
		var errs []error
		for _, p := range open {
			errs = append(errs, p.Close())
		}
		open = nil
		return errors.Join(errs...)
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	var processor stats.Sample
	var memory float64
	for round := range 6 {
		if err := s.nextRun(); err != nil {
			return err
		}
		before, empty := processTime(t.cmd.Process.Pid), residentSet(t.cmd.Process.Pid)
		for rank := range together {
			p, err := s.open(ctx, rank)
			if err != nil {
				return err
			}
			open = append(open, p)
		}
		if round > 0 { // the first round formats
			processor = append(processor, (processTime(t.cmd.Process.Pid)-before)/together)
		} else {
			memory = max(0, residentSet(t.cmd.Process.Pid)-empty) / together
		}
		if err := closeAll(); err != nil {
			return err
		}
	}
	looks, err := timed(ctx, 5, func() error { _, err := store.Unreleased(ctx, s.cfg); return err })
	if err != nil {
		return err
	}
	c.Index.Look = time.Duration(looks.Median() / together * 1e9)
	m.add("the index's look at a partition when it starts", result.Duration, result.Exactly(c.Index.Look.Seconds()))
	c.MountEach = time.Duration(processor.Median() * 1e9)
	m.add("processor time of the target for a start, looking for more included", result.Duration, result.Middle(processor))
	m.add("memory of the target for a rank, its formatted blocks included", result.Size, result.Exactly(memory))
	return nil
}

// processTime returns the processor time of a process in seconds.
func processTime(pid int) float64 {
	var t unix.Timespec
	// As clock_getcpuclockid(3) computes it: the scheduler's clock of the process.
	const schedClock = 2
	if unix.ClockGettime(int32(^pid)<<3|schedClock, &t) != nil {
		return 0
	}
	return float64(t.Nano()) / 1e9
}

// residentSet returns the resident memory of a process in bytes, or 0 if the process
// has ended.
func residentSet(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok && len(strings.Fields(rest)) > 0 {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			if err == nil {
				return kib * 1024
			}
		}
	}
	return 0
}
