package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/runrecord"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/wiretest"
)

// quick is a pace without a wait for other runs, for tests in which no two runs start at the same time.
var quick = pace{beat: 10 * time.Millisecond, quiesce: func(context.Context, bool) error { return nil }}

// lines collects messages.
type lines struct {
	sync.Mutex
	said []string
}

func (l *lines) say(format string, args ...any) {
	l.Lock()
	defer l.Unlock()
	l.said = append(l.said, fmt.Sprintf(format, args...))
}

func (l *lines) all() string {
	l.Lock()
	defer l.Unlock()
	return strings.Join(l.said, "\n")
}

// aRun returns the configuration of a new run of the store. Its id is greater than last.
func aRun(t *testing.T, cfg *config.Config, last uuid.UUID) *config.Config {
	c := *cfg
	var err error
	c.Run, err = NewRun(last)
	require.NoError(t, err)
	return &c
}

// elsewhere returns the record of a run on another host.
func elsewhere(name string, interval time.Duration) *runrecord.Record {
	return &runrecord.Record{
		Holder: microfs.Holder{
			Run: uuid.MustParse("01900000-0000-7000-8000-000000000001"), Host: "node7", Boot: uuid.New(), Machine: uuid.New(), PID: 99, Start: 1,
		},
		Store: name, UID: 1000, Beat: 1, Interval: interval, Since: time.Now(), Written: time.Now(),
	}
}

// media opens the namespace of a target until the test ends, without a lease or a reservation.
func media(t *testing.T, cfg *config.Config, number int) (nvmf.Device, nvmf.Queue) {
	dev, err := connect(ctx, cfg, cfg.Targets[number], false)
	require.NoError(t, err)
	q, err := dev.OpenQueue(ctx, 1)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, q.Close())
		assert.NoError(t, dev.Close())
	})
	return dev, q
}

// put writes both copies of a record to a target.
func put(t *testing.T, cfg *config.Config, number int, r *runrecord.Record) {
	dev, q := media(t, cfg, number)
	for c := range 2 {
		require.NoError(t, runrecord.Write(dev, q, r, c))
	}
}

// beats renews a record until the test ends, as a living run does.
func beats(t *testing.T, cfg *config.Config, number int, r *runrecord.Record) {
	put(t, cfg, number, r)
	dev, q := media(t, cfg, number)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(r.Interval / 100):
			}
			r.Beat++
			if !assert.NoError(t, runrecord.Write(dev, q, r, int(r.Beat%2))) {
				return
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
}

// record returns the run record of a target.
func record(t *testing.T, cfg *config.Config, number int) *runrecord.Record {
	dev, err := connect(ctx, cfg, cfg.Targets[number], true)
	require.NoError(t, err)
	defer dev.Close()
	f, err := readRecord(ctx, cfg, dev)
	require.NoError(t, err)
	require.NoError(t, f.Err)
	return f.Record
}

// TestIdle checks whether Idle takes a run for ended, living or unknown, according to its record and to the processes
// of this host.
func TestIdle(t *testing.T) {
	child := exec.Command("sleep", "1000")
	require.NoError(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	start, err := started(child.Process.Pid)
	require.NoError(t, err)
	here := elsewhere("default", time.Hour)
	here.Holder = self(uuid.MustParse("01900000-0000-7000-8000-000000000001"))
	here.PID, here.Start, here.UID = uint32(child.Process.Pid), start, uint32(os.Geteuid())
	with := func(r *runrecord.Record, f func(r *runrecord.Record)) *runrecord.Record { c := *r; f(&c); return &c }
	dead := with(here, func(r *runrecord.Record) { r.Start-- })
	ended := with(elsewhere("default", time.Hour), func(r *runrecord.Record) { r.Ended = true })
	clone := with(dead, func(r *runrecord.Record) { r.Boot, r.Interval = uuid.New(), minInterval })
	hidden := with(dead, func(r *runrecord.Record) { r.UID++; r.Interval = minInterval })
	silent := elsewhere("default", minInterval)
	raw := func(f func(b []byte)) func(t *testing.T, cfg *config.Config) {
		return func(t *testing.T, cfg *config.Config) {
			put(t, cfg, 0, silent)
			f2, err := os.OpenFile(cfg.Targets[0].Address, os.O_RDWR, 0)
			require.NoError(t, err)
			defer f2.Close()
			for c := range 2 {
				b, at := make([]byte, parttable.RunRecordSize), int64(parttable.RunRecordOffset(c))
				_, err := f2.ReadAt(b, at)
				require.NoError(t, err)
				f(b)
				_, err = f2.WriteAt(b, at)
				require.NoError(t, err)
			}
		}
	}
	puts := func(r *runrecord.Record) func(t *testing.T, cfg *config.Config) {
		return func(t *testing.T, cfg *config.Config) { put(t, cfg, 0, r) }
	}
	for _, c := range []struct {
		name     string
		prepare  func(t *testing.T, cfg *config.Config)
		takeover bool
		refused  []string // parts of the error; nil: no error
		waits    bool     // Idle waits for a renewal, and reports that once
	}{
		{name: "older store", prepare: func(*testing.T, *config.Config) {}},
		{name: "ended", prepare: puts(ended)},
		{name: "dead, of this host", prepare: puts(dead)},
		{name: "alive, of this host", prepare: puts(here), refused: []string{fmt.Sprintf("process %d of host", child.Process.Pid), "--takeover"}},
		{name: "alive, of this host, taken over", prepare: puts(here), takeover: true},
		{name: "silent, of another host", prepare: puts(silent), waits: true},
		{name: "silent, of another host, taken over", prepare: puts(silent), takeover: true},
		{name: "alive, of another host", prepare: func(t *testing.T, cfg *config.Config) { beats(t, cfg, 0, elsewhere("default", 4*time.Second)) },
			refused: []string{"process 99 of host node7, user 1000", "--takeover", "one `nvmecr run` around the launcher"}},
		{name: "of this host before it was started anew, or of its clone", prepare: puts(clone), waits: true},
		{name: "dead, of another user", prepare: puts(hidden), waits: true},
		{name: "silent, damaged", prepare: func(t *testing.T, cfg *config.Config) {
			raw(func(b []byte) { b[4000]++ })(t, cfg)
		}, waits: true},
		{name: "of a later version", prepare: raw(func(b []byte) { b[16]++ }), refused: []string{"use the nvmecr that wrote it"}},
		{name: "of a later version, taken over", prepare: raw(func(b []byte) { b[16]++ }), takeover: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := newStore(t, 8*nvmf.MiB)
			mustOpen(t, cfg, 1)
			c.prepare(t, cfg)
			cfg.Takeover = c.takeover
			before := content(t, cfg)
			var l lines
			begin := time.Now()
			err := Idle(ctx, cfg, l.say)
			if c.refused == nil {
				require.NoError(t, err)
				assert.True(t, bytes.Equal(before, content(t, cfg)), "it only looks")
			}
			for _, w := range c.refused {
				require.ErrorContains(t, err, w)
			}
			if c.waits {
				assert.Contains(t, l.all(), "for a sign of life")
				assert.NotContains(t, l.all(), "\n", "once")
				assert.GreaterOrEqual(t, time.Since(begin), missedBeats*minInterval)
			} else {
				assert.Empty(t, l.all())
			}
		})
	}
}

// TestLease takes, renews and ends leases, on a target with reservations and on one without. Meanwhile another run
// must be refused.
func TestLease(t *testing.T) {
	t.Parallel()
	for name, cfg := range onBoth(t) {
		t.Run(name, func(t *testing.T) {
			var l lines
			first := aRun(t, cfg, uuid.Nil)
			lease, err := takeLease(ctx, first, l.say, quick)
			require.NoError(t, err)
			mustOpen(t, first, 2) // formatting must not change the record
			r := record(t, cfg, 0)
			require.Equal(t, first.Run, r.Run)
			require.Equal(t, "default", r.Store)
			require.False(t, r.Ended)
			require.Eventually(t, func() bool { return record(t, cfg, 0).Beat > r.Beat+1 }, time.Minute, time.Millisecond)

			second := aRun(t, cfg, first.Run)
			_, err = takeLease(ctx, second, l.say, quick)
			var living *InProgressError
			require.ErrorAs(t, err, &living)
			require.ErrorIs(t, err, syscall.EBUSY)
			require.Equal(t, first.Run, living.Run.Run)
			second.Fresh = true
			_, err = takeLease(ctx, second, l.say, quick)
			require.ErrorAs(t, err, &living, "nor to start over")
			require.ErrorAs(t, Idle(ctx, second, l.say), &living)

			lease.End()
			lease.End()
			r = record(t, cfg, 0)
			require.Equal(t, first.Run, r.Run)
			require.True(t, r.Ended)
			lease, err = takeLease(ctx, second, l.say, quick)
			require.NoError(t, err)
			require.NoError(t, Reset(ctx, second), "starting over")
			require.Eventually(t, func() bool { b := record(t, cfg, 0).Beat; return b > 3 }, time.Minute, time.Millisecond)
			mustOpen(t, second, 3)
			lease.End()
			require.True(t, record(t, cfg, 0).Ended)
			assert.Empty(t, l.all())
		})
	}
}

// onBoth returns a store on a target with reservations and one on a file.
func onBoth(t *testing.T) map[string]*config.Config {
	served, _ := newServed(t, 16*nvmf.MiB)
	return map[string]*config.Config{"reservations": served, "file": newStore(t, 16*nvmf.MiB)}
}

// TestTakeover checks that a run with --takeover gets the lease and keeps it. The previous run must report the loss
// once, and must not change the new record when it ends.
func TestTakeover(t *testing.T) {
	for name, cfg := range onBoth(t) {
		t.Run(name, func(t *testing.T) {
			var old, now lines
			first := aRun(t, cfg, uuid.Nil)
			lost, err := takeLease(ctx, first, old.say, quick)
			require.NoError(t, err)
			second := aRun(t, cfg, first.Run)
			second.Takeover = true
			lease, err := takeLease(ctx, second, now.say, quick)
			require.NoError(t, err)
			assert.Contains(t, now.all(), "taken over from")
			require.Eventually(t, func() bool { return old.all() != "" }, time.Minute, time.Millisecond)
			lost.ended.Wait()
			lost.End()
			assert.Contains(t, old.all(), second.Run.String())
			assert.Contains(t, old.all(), "has lost store")
			assert.NotContains(t, old.all(), "\n", "once")
			r := record(t, cfg, 0)
			require.Equal(t, second.Run, r.Run)
			require.False(t, r.Ended)
			lease.End()
			require.True(t, record(t, cfg, 0).Ended)
		})
	}
}

// TestReleasedMeanwhile checks that a run whose store was released by another run reports that and no longer writes
// to the target.
func TestReleasedMeanwhile(t *testing.T) {
	t.Parallel()
	cfg, _ := newServed(t, 16*nvmf.MiB)
	var l lines
	first := aRun(t, cfg, uuid.Nil)
	lease, err := takeLease(ctx, first, l.say, quick)
	require.NoError(t, err)
	mustOpen(t, first, 1)
	second := aRun(t, cfg, first.Run)
	n, err := Release(ctx, second)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Eventually(t, func() bool { return l.all() != "" }, time.Minute, time.Millisecond)
	lease.End()
	assert.Contains(t, l.all(), "has lost store")
	require.Nil(t, record(t, cfg, 0))
	dev, _ := media(t, cfg, 0)
	_, err = parttable.Read(ctx, dev)
	require.ErrorIs(t, err, parttable.ErrNoTable)
}

// TestLeaseOfSeveral checks that the records of all targets are read before the first one is written.
func TestLeaseOfSeveral(t *testing.T) {
	t.Parallel()
	cfg := newStore(t, 16*nvmf.MiB, 16*nvmf.MiB)
	mustOpen(t, cfg, 2)
	before := content(t, cfg)[:16*nvmf.MiB]
	beats(t, cfg, 1, elsewhere("default", 4*time.Second))
	run := aRun(t, cfg, uuid.Nil)
	var l lines
	_, err := takeLease(ctx, run, l.say, quick)
	require.ErrorAs(t, err, new(*InProgressError))
	require.ErrorContains(t, err, cfg.Targets[1].Address)
	require.True(t, bytes.Equal(before, content(t, cfg)[:16*nvmf.MiB]))
}

// TestLeaseOnData checks that no record is written to a target with other data, or with another store.
func TestLeaseOnData(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(cfg *config.Config)
		fresh   bool
		err     error
	}{
		"something else": {func(cfg *config.Config) {
			require.NoError(t, os.WriteFile(cfg.Targets[0].Address, bytes.Repeat([]byte("data"), 4<<20), 0o600))
		}, false, parttable.ErrForeign},
		"another store":                {func(cfg *config.Config) { c := *cfg; c.Name = "other"; mustOpen(t, &c, 1) }, false, parttable.ErrOtherName},
		"another store, starting over": {func(cfg *config.Config) { c := *cfg; c.Name = "other"; mustOpen(t, &c, 1) }, true, parttable.ErrOtherName},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := newStore(t, 16*nvmf.MiB)
			c.prepare(cfg)
			before := content(t, cfg)
			run := aRun(t, cfg, uuid.Nil)
			run.Fresh = c.fresh
			_, err := takeLease(ctx, run, t.Logf, quick)
			require.ErrorIs(t, err, c.err)
			require.True(t, bytes.Equal(before, content(t, cfg)))
		})
	}
}

// TestClockAhead checks that a later run can begin after a run of a host whose clock was far ahead. The later run
// must get a greater reservation key.
func TestClockAhead(t *testing.T) {
	cfg, _ := newServed(t, 16*nvmf.MiB)
	ahead := *cfg
	ahead.Run = uuid.MustParse("0fffffff-ffff-7abc-8000-000000000000")
	lease, err := takeLease(ctx, &ahead, t.Logf, quick)
	require.NoError(t, err)
	mustOpen(t, &ahead, 1)
	lease.End()
	run := aRun(t, cfg, uuid.Nil)
	lease, err = takeLease(ctx, run, t.Logf, quick)
	require.NoError(t, err)
	require.Greater(t, reservationKey(run.Run), reservationKey(ahead.Run))
	mustOpen(t, run, 1)
	lease.End()
}

// TestStartedTogether checks that exactly one of several runs that start at the same time has the lease in the end.
func TestStartedTogether(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 10 {
		cfg, _ := newServed(t, 16*nvmf.MiB)
		const runs = 4
		leases, errs, delay := make([]*Lease, runs), make([]error, runs), make([]time.Duration, runs)
		slow := pace{beat: time.Hour, quiesce: defaultPace.quiesce}
		var wg sync.WaitGroup
		for i := range runs {
			run := aRun(t, cfg, uuid.Nil)
			delay[i] = time.Duration(random.IntN(3)) * time.Millisecond
			wg.Go(func() {
				time.Sleep(delay[i])
				leases[i], errs[i] = takeLease(ctx, run, t.Logf, slow)
			})
		}
		wg.Wait()
		have := 0
		for i, l := range leases {
			if errs[i] != nil {
				require.Truef(t, isBusy(errs[i]), "%v", errs[i])
				continue
			}
			if l.parts[0].renew(ctx) == nil { // another run may have reserved the target after the last check of this one
				have++
			}
		}
		require.Equal(t, 1, have, "delays %v, errors %v", delay, errs)
		for _, l := range leases {
			if l != nil {
				l.End()
			}
		}
	}
}

func isBusy(err error) bool {
	return errors.As(err, new(*InProgressError)) || errors.Is(err, nvmf.ErrFenced)
}

// TestOverwritten checks a target without reservations. A run whose record was overwritten by another run before the
// last check must fail, and must leave the record of the other run unchanged.
func TestOverwritten(t *testing.T) {
	for name, later := range map[string]bool{"by a later run": true, "by an earlier run": false} {
		t.Run(name, func(t *testing.T) {
			cfg := newStore(t, 16*nvmf.MiB)
			run, other := aRun(t, cfg, uuid.Nil), elsewhere("default", time.Hour)
			if later {
				other.Run = aRun(t, cfg, run.Run).Run
			}
			overwrite := pace{beat: time.Hour, quiesce: func(context.Context, bool) error { put(t, cfg, 0, other); return nil }}
			_, err := takeLease(ctx, run, t.Logf, overwrite)
			require.ErrorAs(t, err, new(*InProgressError))
			require.ErrorContains(t, err, "node7")
			require.Equal(t, other.Run, record(t, cfg, 0).Run)
			require.False(t, record(t, cfg, 0).Ended)
		})
	}
}

// TestLeaseOverCuts cuts the connection at every third command of a lease, and at every third completion, one in each
// pass. The lease must be taken and ended without an error or a message.
func TestLeaseOverCuts(t *testing.T) {
	t.Parallel()
	cfg, port := newServed(t, 16*nvmf.MiB)
	mustOpen(t, cfg, 1)
	last, seed := uuid.Nil, uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, to := range []wiretest.Direction{wiretest.ToTarget, wiretest.ToHost} {
		for n := 1 + random.IntN(3); ; n += 3 {
			wire, err := wiretest.New("127.0.0.1:" + port)
			require.NoError(t, err)
			seen, struck, connected := 0, false, map[int]bool{}
			wire.Script(func(p *wiretest.PDU) (none wiretest.Action) {
				if p.To != to || p.QID < 1 || p.SQE() == nil && p.CQE() == nil {
					return none
				}
				if !connected[p.Conn] { // the Connect command: a target that cannot be reached at the start is an error
					connected[p.Conn] = true
					return none
				}
				if seen++; seen != n {
					return none
				}
				struck = true
				return wiretest.Cut(0)
			})
			run := aRun(t, cfg, last)
			last = run.Run
			run.Targets = []nvmf.TransportID{wire.Through(cfg.Targets[0])}
			var l lines
			once := pace{beat: time.Hour, quiesce: quick.quiesce}
			lease, err := takeLease(ctx, run, l.say, once)
			require.NoError(t, err, "%v, command %d", to, n)
			require.NoError(t, lease.parts[0].confirm(ctx), "it is fenced")
			lease.End()
			wire.Close()
			require.Empty(t, l.all(), "%v, command %d", to, n)
			r := record(t, cfg, 0)
			require.Equal(t, run.Run, r.Run)
			require.True(t, r.Ended, "%v, command %d", to, n)
			if !struck {
				t.Logf("%v: no command %d", to, n)
				break
			}
		}
	}
}
