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

// Where a launcher starts `nvmecr run` on each node, the runs of one job (config.Config.Job) are one: the first has the lease, and the others join
// it. They are of its run, and reach the index of its tree.

// Open lets other runs of cfg.Job join from the next renewal on: what the targets hold is this run's then.
func (l *Lease) Open(cfg *config.Config) {
	l.job.Store(&runrecord.Job{ID: cfg.Job, Open: true, Tree: cfg.View == config.ViewJob, Index: strings.Join(cfg.Index, ","), Secret: cfg.IndexSecret})
}

// TakeOrJoin is TakeLease, or where a living run of cfg.Job has the store, joins that: cfg is of its run then, with its index, and the lease
// is nil. It waits until the run lets others join, as long as cfg.Timeout. Errors are those of TakeLease, and *InProgressError where the run is of another user.
func TakeOrJoin(ctx context.Context, cfg *config.Config, say func(format string, args ...any)) (*Lease, error) {
	for {
		lease, err := TakeLease(ctx, cfg, say)
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

// join joins the run that has the store. False: it has ended.
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
		// The first run looks at its targets, and may format them: it is alive, or the next look at its lease tells.
		if err := sleep(ctx, beatInterval/4); err != nil {
			return false, err
		}
		if _, err := look(ctx, cfg, func(string, ...any) {}, func(int, nvmf.Device) error { return nil }); !errors.As(err, new(*InProgressError)) {
			return false, err
		}
	}
}
