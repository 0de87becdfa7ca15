package store

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/runrecord"
)

// TestDirectoryLease checks which runs may use a directory that another one has marked.
func TestDirectoryLease(t *testing.T) {
	const beat = 100 * time.Millisecond
	none := func(uuid.UUID) bool { return false }
	cfg := aRun(t, config.Default(), uuid.Nil)
	// other writes the mark of a run on another host, or on this one.
	other := func(t *testing.T, dir string, change func(*runrecord.Record)) *runrecord.Record {
		r := elsewhere("melt", beat)
		change(r)
		text, err := json.Marshal(r)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".run"), text, 0o600))
		return r
	}
	take := func(t *testing.T, cfg *config.Config, dir string, over func(uuid.UUID) bool) (*DirectoryLease, string, error) {
		var said lines
		l, err := takeDirectory(t.Context(), cfg, dir, ".run", over, said.say, beat)
		if err == nil {
			t.Cleanup(l.End)
		}
		return l, said.all(), err
	}
	owner := func(dir string) (r runrecord.Record) {
		text, _ := os.ReadFile(filepath.Join(dir, ".run"))
		_ = json.Unmarshal(text, &r)
		return r
	}

	t.Run("nobody's", func(t *testing.T) {
		dir := t.TempDir()
		l, _, err := take(t, cfg, dir, none)
		require.NoError(t, err)
		assert.Equal(t, cfg.Run, owner(dir).Run)
		begin, err := os.Stat(l.file)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			now, err := os.Stat(l.file)
			return err == nil && now.ModTime().After(begin.ModTime())
		}, time.Minute, beat/10, "it is renewed")
		_, _, err = take(t, aRun(t, cfg, cfg.Run), dir, none)
		var used *DirectoryInUseError
		require.ErrorAs(t, err, &used)
		assert.Equal(t, cfg.Run, used.Run.Run)
		assert.ErrorContains(t, err, "--name")
		l.End()
		assert.NoFileExists(t, l.file)
	})
	t.Run("a living run's on another host", func(t *testing.T) {
		dir := t.TempDir()
		other(t, dir, func(r *runrecord.Record) { r.Interval = 20 * beat })
		beats, stop := context.WithCancel(t.Context())
		var beating sync.WaitGroup
		beating.Go(func() {
			for sleep(beats, beat/10) == nil {
				_ = os.Chtimes(filepath.Join(dir, ".run"), time.Time{}, time.Now())
			}
		})
		_, _, err := take(t, cfg, dir, none)
		stop()
		beating.Wait()
		require.ErrorAs(t, err, new(*DirectoryInUseError))
	})
	t.Run("without a mark of one's own", func(t *testing.T) {
		dir := t.TempDir()
		idle := func(mine uuid.UUID) error {
			return directoryIdle(t.Context(), dir, ".run", func(r *runrecord.Record) bool { return r.Run == mine }, t.Logf, beat)
		}
		require.NoError(t, idle(uuid.Nil))
		assert.NoFileExists(t, filepath.Join(dir, ".run"))
		_, _, err := take(t, cfg, dir, none)
		require.NoError(t, err)
		require.NoError(t, idle(cfg.Run))
		require.ErrorAs(t, idle(uuid.Nil), new(*DirectoryInUseError))
		require.ErrorAs(t, idle(aRun(t, cfg, cfg.Run).Run), new(*DirectoryInUseError))
		assert.Equal(t, cfg.Run, owner(dir).Run)
		dir = t.TempDir()
		r := other(t, dir, func(*runrecord.Record) {}) // a dead one
		require.NoError(t, idle(uuid.Nil))
		assert.Equal(t, r.Run, owner(dir).Run, "the mark stays")
	})
	t.Run("a dead run's on another host", func(t *testing.T) {
		dir := t.TempDir()
		other(t, dir, func(r *runrecord.Record) { r.Interval = 10 * beat }) // the line comes in the second to fourth interval
		begin := time.Now()
		_, said, err := take(t, cfg, dir, none)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Since(begin), missedBeats*10*beat)
		assert.Contains(t, said, "for a sign of life")
		assert.Equal(t, cfg.Run, owner(dir).Run)
	})
	t.Run("that of a run which has lost the store", func(t *testing.T) {
		dir := t.TempDir()
		r := other(t, dir, func(r *runrecord.Record) { r.Interval = maxInterval })
		_, said, err := take(t, cfg, dir, func(run uuid.UUID) bool { return run == r.Run })
		require.NoError(t, err)
		assert.Empty(t, said)
	})
	t.Run("that of a process which has ended", func(t *testing.T) {
		dir := t.TempDir()
		other(t, dir, func(r *runrecord.Record) {
			r.Holder, r.UID, r.Interval = self(r.Run), uint32(os.Geteuid()), maxInterval
			r.Start--
		})
		_, said, err := take(t, cfg, dir, none)
		require.NoError(t, err)
		assert.Empty(t, said)
	})
	t.Run("taken over", func(t *testing.T) {
		dir := t.TempDir()
		first, _, err := take(t, cfg, dir, none)
		require.NoError(t, err)
		next := aRun(t, cfg, cfg.Run)
		next.Takeover = true
		_, _, err = take(t, next, dir, none)
		require.NoError(t, err)
		first.ended.Wait() // it notices
		first.End()
		assert.Equal(t, next.Run, owner(dir).Run, "the mark stays")
	})
	t.Run("without a readable mark", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".run"), nil, 0o600))
		_, _, err := take(t, cfg, dir, none)
		require.NoError(t, err)
		assert.Equal(t, cfg.Run, owner(dir).Run)
	})
	t.Run("where nothing can be written", func(t *testing.T) {
		_, _, err := take(t, cfg, filepath.Join(t.TempDir(), "nowhere"), none)
		assert.NoError(t, err)
	})
	t.Run("at once", func(t *testing.T) {
		dir := t.TempDir()
		other(t, dir, func(r *runrecord.Record) { r.Interval = minInterval })
		errs := make([]error, 2)
		leases := make([]*DirectoryLease, len(errs))
		var all sync.WaitGroup
		last := cfg.Run
		for i := range errs {
			next := aRun(t, cfg, last)
			last = next.Run
			all.Go(func() {
				leases[i], errs[i] = takeDirectory(t.Context(), next, dir, ".run", none, t.Logf, minInterval)
			})
		}
		all.Wait()
		got := 0
		for i, err := range errs {
			if err == nil {
				got++
				leases[i].End()
				continue
			}
			assert.True(t, errors.As(err, new(*DirectoryInUseError)), err)
		}
		assert.Equal(t, 1, got)
	})
}
