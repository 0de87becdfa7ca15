package command

import (
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"

	"nvmecr/internal/store"
)

// takeStore prepares a command that writes to partitions. It fails while a run of the store is in progress on any
// host.
func (r *reader) takeStore(ctx context.Context) (unlock func() error, err error) {
	if unlock, err = r.lock(); err != nil {
		return nil, err
	}
	if err := store.Idle(ctx, r.cfg, lineLogger(r.stderr)); err != nil {
		return nil, errors.Join(err, unlock())
	}
	return unlock, nil
}

// lock excludes other runs on this host if the store has a state directory here, and creates an id for this run.
func (r *reader) lock() (unlock func() error, err error) {
	unlock = func() error { return nil }
	var last uuid.UUID
	names, err := store.StateDirs()
	if err == nil && slices.Contains(names, r.cfg.Name) {
		var dir *store.StateDir
		if dir, err = store.FindStateDir(r.cfg.Name); err != nil {
			return nil, err
		}
		lock, err := lockStore(dir)
		if err != nil {
			return nil, err
		}
		unlock = lock.Unlock
		if record, err := dir.Load(); err == nil {
			last = record.Run
		}
	}
	if err == nil {
		r.cfg.Run, err = store.NewRun(last)
	}
	return unlock, err
}
