package blocktest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// Reservers provides the devices for RunReserver.
type Reservers struct {
	// Open opens the namespace, of at least MinimumBlocks, as a process of the given
	// host. All devices of a case are on the same namespace. The test overwrites the
	// namespace's contents, and takes over its reservations.
	Open func(t *testing.T, host uuid.UUID) nvmf.Reserver
	// Restart restarts the target without its reservations, and returns when hosts
	// can connect again; nil if the target cannot be restarted.
	Restart func(t *testing.T)
}

// RunReserver checks that the devices implement nvmf.Reserver.
func RunReserver(t *testing.T, r Reservers) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *stage)
	}{
		{"a later run takes over", testTakeOver},
		{"other hosts only read", testOtherHost},
		{"giving up", testUnreserve},
		{"all processes of a run at once", testOneRun},
		{"all runs at once", testManyRuns},
		{"many runs one after another", testGenerations},
		{"commands in flight", testInFlight},
		{"a target that forgets", testForgets},
		{"a context that has ended", testContext},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, &stage{t: t, r: r}) })
	}
}

// shortly returns a number of repetitions: short in tests with -short, otherwise times.
func shortly(times, short int) int {
	if testing.Short() {
		return short
	}
	return times
}

// A stage is one case of RunReserver.
type stage struct {
	t *testing.T
	r Reservers
}

// A process is a process of a run: a device with a queue.
type process struct {
	rig
	reserver nvmf.Reserver
	key      nvmf.ReservationKey
}

var lastKey atomic.Uint64

// run returns a key for a new run, and a host for it. The key is higher than all
// previous ones, including those of earlier tests with the same target.
func run() (nvmf.ReservationKey, uuid.UUID) {
	for {
		last := lastKey.Load()
		if next := max(last+1, uint64(time.Now().UnixNano())); lastKey.CompareAndSwap(last, next) {
			return nvmf.ReservationKey(next), uuid.New()
		}
	}
}

// process opens a device. At the end of the test, the reservation is released and the
// device is closed.
func (s *stage) process(key nvmf.ReservationKey, host uuid.UUID) *process {
	d := s.r.Open(s.t, host)
	p := &process{rig: rig{t: s.t, device: d, id: d.Identity()}, reserver: d, key: key}
	require.True(s.t, p.id.Reservations, "Identity.Reservations")
	p.queue = p.open(64)
	s.t.Cleanup(func() {
		assert.NoError(s.t, p.queue.Close())
		if err := d.Unreserve(context.Background(), key); !errors.Is(err, nvmf.ErrFenced) {
			assert.NoError(s.t, err)
		}
		assert.NoError(s.t, d.Close())
	})
	return p
}

// first returns the first process of a new run.
func (s *stage) first() *process { return s.process(run()) }

func (p *process) reserve() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return p.reserver.Reserve(ctx, p.key)
}

// writes checks that every command that changes the namespace succeeds.
func (p *process) writes() {
	p.t.Helper()
	for _, c := range p.changes() {
		assert.NoError(p.t, p.do(c), c.Opcode)
	}
}

// conflicts checks that commands that change the namespace fail with Reservation
// Conflict, and that reads succeed.
func (p *process) conflicts() {
	p.t.Helper()
	for _, c := range p.changes() {
		err := p.do(c)
		assert.True(p.t, nvmf.IsConflict(err), "%s ended with: %v", c.Opcode, err)
	}
	assert.NoError(p.t, p.do(p.read(0, p.bytes(1))))
}

func (p *process) changes() []*nvmf.Command {
	small, large := p.write(0, p.pattern(1, 1)), p.write(8, p.pattern(nvmf.LBA(p.id.MaxTransfer/p.id.LBASize), 2))
	small.FUA = true
	list := []*nvmf.Command{small, large, {Opcode: nvmf.Flush}}
	if p.id.CanDeallocate {
		list = append(list, &nvmf.Command{Opcode: nvmf.Deallocate, LBA: 1000, Blocks: 8})
	}
	return list
}

func testTakeOver(t *testing.T, s *stage) {
	a := s.first()
	require.NoError(t, a.reserve())
	a.writes()
	b := s.first()
	b.conflicts()
	require.NoError(t, b.reserve())
	a.conflicts()
	b.writes()
	require.NoError(t, b.reserve(), "repeated reservation")
	b.writes()
	assert.ErrorIs(t, a.reserve(), nvmf.ErrFenced)
	a.conflicts()
	again := s.process(a.key, uuid.New()) // a process of the old run with another host identifier
	assert.ErrorIs(t, again.reserve(), nvmf.ErrFenced)
	again.conflicts()
	b.writes()
	data := b.pattern(16, 3)
	require.NoError(t, b.do(b.write(32, data)))
	got := a.bytes(16)
	require.NoError(t, a.do(a.read(32, got)))
	a.same(data, got, "data read by the old run")
}

func testOtherHost(t *testing.T, s *stage) {
	a := s.first()
	require.NoError(t, a.reserve())
	other := s.first()
	other.conflicts()
	more := s.process(a.key, uuid.New())
	more.conflicts()
	a.writes()
}

func testUnreserve(t *testing.T, s *stage) {
	ctx := context.Background()
	a, b := s.first(), s.first()
	require.NoError(t, a.reserver.Unreserve(ctx, a.key), "without a registration")
	require.NoError(t, a.reserve())
	require.NoError(t, b.reserver.Unreserve(ctx, b.key), "with a registration of another host only")
	b.conflicts()
	require.NoError(t, a.reserver.Unreserve(ctx, a.key))
	b.writes()
	a.writes()
	require.NoError(t, a.reserver.Unreserve(ctx, a.key))
	require.NoError(t, a.reserve(), "the same run again")
	b.conflicts()
	// The same host can replace its key by a higher one.
	old := a.key
	a.key, _ = run()
	require.NoError(t, a.reserve())
	a.writes()
	assert.ErrorIs(t, a.reserver.Reserve(ctx, old), nvmf.ErrFenced)
	assert.ErrorIs(t, a.reserver.Unreserve(ctx, old), nvmf.ErrFenced)
	b.conflicts()
}

func testOneRun(t *testing.T, s *stage) {
	old := s.first()
	require.NoError(t, old.reserve())
	key, host := run()
	var all []*process
	for range 8 {
		all = append(all, s.process(key, host))
	}
	var wg sync.WaitGroup
	for _, p := range all {
		wg.Go(func() {
			assert.NoError(t, p.reserve())
			p.writes()
		})
	}
	wg.Wait()
	old.conflicts()
	for _, p := range all {
		assert.NoError(t, p.reserve())
		p.writes()
	}
}

func testManyRuns(t *testing.T, s *stage) {
	for range shortly(5, 2) {
		var all []*process
		for range 6 {
			all = append(all, s.first())
		}
		var wg sync.WaitGroup
		for _, p := range all {
			wg.Go(func() {
				if err := p.reserve(); err != nil {
					assert.ErrorIs(t, err, nvmf.ErrFenced)
				}
			})
		}
		wg.Wait()
		last := all[len(all)-1]
		last.writes()
		for _, p := range all[:len(all)-1] {
			p.conflicts()
			assert.ErrorIs(t, p.reserve(), nvmf.ErrFenced)
		}
	}
}

// testGenerations checks that registrations of runs that have ended without Unreserve
// do not accumulate. Targets have space for few registrants.
func testGenerations(t *testing.T, s *stage) {
	before := s.first()
	require.NoError(t, before.reserve())
	for range shortly(40, 18) {
		next := s.first()
		require.NoError(t, next.reserve())
		before.conflicts()
		next.writes()
		before = next
	}
}

// testInFlight checks that no command of an earlier run is executed after Reserve has
// returned, however many are in flight. The processes of that run write until a command
// fails.
func testInFlight(t *testing.T, s *stage) {
	rounds := shortly(12, 4)
	const region = 1024 // blocks
	key, host := run()
	var landed, refused int
	for range rounds {
		var writers []*process
		for range 3 {
			writers = append(writers, s.process(key, host))
		}
		require.NoError(t, writers[0].reserve())
		key, host = run()
		next := s.process(key, host)
		var wg sync.WaitGroup
		started := make(chan struct{}, len(writers))
		var done, conflicts atomic.Int64
		for i, w := range writers {
			wg.Go(func() {
				n, c := w.storm(region, started, uint64(i))
				done.Add(int64(n))
				conflicts.Add(int64(c))
			})
		}
		for range writers {
			<-started
		}
		require.NoError(t, next.reserve())
		// From now on no data of the earlier run may appear.
		want := next.pattern(region, 99)
		require.NoError(t, next.do(next.pieces(want)...))
		wg.Wait()
		got := next.bytes(region)
		list := next.pieces(got)
		for _, c := range list {
			c.Opcode = nvmf.Read
		}
		require.NoError(t, next.do(list...))
		next.same(want, got, "data written by the new run")
		landed, refused = landed+int(done.Load()), refused+int(conflicts.Load())
	}
	t.Logf("%d takeovers, %d writes before them, %d refused", rounds, landed, refused)
	assert.NotZero(t, landed)
	assert.NotZero(t, refused)
}

// pieces returns commands that write b from LBA 0 on, up to 64 blocks each.
func (p *process) pieces(b []byte) (list []*nvmf.Command) {
	step := int(min(p.id.MaxTransfer, 64*p.id.LBASize))
	for at := 0; at < len(b); at += step {
		list = append(list, p.write(nvmf.LBA(at/int(p.id.LBASize)), b[at:min(at+step, len(b))]))
	}
	return list
}

// storm writes to the first blocks of the namespace until a write fails, with many
// writes of all sizes in flight. It then waits for all of them. After its first 32
// writes it sends to started.
func (p *process) storm(blocks int, started chan<- struct{}, seed uint64) (done, refused int) {
	junk := bytes.Repeat([]byte{byte(0xa0 + seed)}, 64*int(p.id.LBASize))
	var flight []*nvmf.Command
	for i := 0; refused == 0 && i < 1_000_000; i++ {
		n := min(1<<(i%7), int(p.id.MaxTransfer/p.id.LBASize))
		lba := nvmf.LBA(i * 37 % (blocks - n))
		c := p.write(lba, junk[:n*int(p.id.LBASize)])
		p.queue.Submit([]*nvmf.Command{c})
		if flight = append(flight, c); len(flight) < 48 {
			continue
		}
		refused += p.outcome(flight[:16])
		if done += 16; done == 32 {
			started <- struct{}{}
		}
		flight = flight[16:]
	}
	refused += p.outcome(flight)
	return done, refused
}

// outcome waits for writes, and returns how many have failed.
func (p *process) outcome(list []*nvmf.Command) (refused int) {
	_ = p.queue.Wait(list)
	for _, c := range list {
		var status *nvmf.StatusError
		switch {
		case c.Err == nil:
		case errors.As(c.Err, &status):
			assert.True(p.t, nvmf.IsConflict(c.Err) || nvmf.IsPreempted(c.Err), "%v", c.Err)
			refused++
		default:
			assert.ErrorIs(p.t, c.Err, nvmf.ErrConnectionLost)
			refused++
		}
	}
	return refused
}

func testForgets(t *testing.T, s *stage) {
	if s.r.Restart == nil {
		t.Skip("this target cannot be restarted")
	}
	a, b := s.first(), s.first()
	require.NoError(t, a.reserve())
	require.NoError(t, b.reserve())
	s.r.Restart(t)
	for _, p := range []*process{a, b} {
		if p.do(&nvmf.Command{Opcode: nvmf.Flush}) != nil {
			require.NoError(t, p.queue.Reset(context.Background()))
		}
	}
	require.NoError(t, b.reserve(), "repeated reservation")
	b.writes()
	a.conflicts()
	assert.ErrorIs(t, a.reserve(), nvmf.ErrFenced)
}

func testContext(t *testing.T, s *stage) {
	a := s.first()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.ErrorIs(t, a.reserver.Reserve(ctx, a.key), context.Canceled)
	assert.ErrorIs(t, a.reserver.Unreserve(ctx, a.key), context.Canceled)
	require.NoError(t, a.reserve())
	a.writes()
}
