package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"nvmecr/internal/config"
	"nvmecr/internal/runrecord"
	"nvmecr/nvmf"
)

// If a launcher starts `nvmecr run` on each node, the first of these processes of a job (config.Config.Job) takes the lease, and the others join its
// run: they have the same run id, and connect to the index of its tree.

// Open lets other processes of cfg.Job join the run, from the next renewal on. By then the targets hold this run's store.
func (l *Lease) Open(cfg *config.Config) {
	l.job.Store(&runrecord.Job{ID: cfg.Job, Open: true, Tree: cfg.View == config.ViewJob, Index: strings.Join(cfg.Index, ","), Secret: cfg.IndexSecret})
}

// TakeOrJoin takes the lease of the store (see Lease), or joins a living run of cfg.Job that has the store. If it
// joins, cfg gets the run id and the settings of that run, with its index, and the lease is nil. TakeOrJoin waits for
// up to cfg.Timeout until the run lets others join. say gets a line for each wait, and for later events of the lease,
// also from other goroutines.
//
// Errors: *InProgressError for a run of another job or user; nvmf.ErrFenced; parttable's for a target of another
// store or user; those of the targets.
func TakeOrJoin(ctx context.Context, cfg *config.Config, say func(format string, args ...any)) (*Lease, error) {
	for {
		lease, err := takeLease(ctx, cfg, say, defaultPace)
		var living *InProgressError
		if cfg.Job == "" || !errors.As(err, &living) || living.Run == nil || living.Run.Job.ID != cfg.Job || living.Run.UID != uint32(os.Geteuid()) {
			return lease, err
		}
		joined, err := join(ctx, cfg)
		if joined || err != nil {
			return nil, err
		}
	}
}

// join joins the run that has the store. It returns false if the run has ended.
func join(ctx context.Context, cfg *config.Config) (joined bool, err error) {
	for begin := time.Now(); ; {
		run, err := InProgress(ctx, cfg)
		switch {
		case err != nil:
			return false, err
		case run == nil || run.Job.ID != cfg.Job:
			return false, nil
		case run.Job.Open:
			cfg.Run, cfg.Index, cfg.IndexSecret = run.Run, nil, run.Job.Secret
			cfg.View = config.ViewRank
			if run.Job.Tree {
				cfg.View = config.ViewJob
			}
			if run.Job.Index != "" {
				cfg.Index = strings.Split(run.Job.Index, ",")
			}
			return true, nil
		case time.Since(begin) > cfg.Timeout:
			return false, fmt.Errorf("store %q is in use by %v, which is of job %q, too, and is not ready after %v (--timeout): see what it waits for, or end it", cfg.Name, run, cfg.Job, cfg.Timeout)
		}
		// The first process may still be formatting its targets. look decides whether that process lives.
		if err := sleep(ctx, beatInterval/4); err != nil {
			return false, err
		}
		if _, err := look(ctx, cfg, func(string, ...any) {}, func(int, nvmf.Device) error { return nil }); !errors.As(err, new(*InProgressError)) {
			return false, err
		}
	}
}
