package command

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"nvmecr/drain"
	"nvmecr/drain/s3"
	"nvmecr/internal/config"
	"nvmecr/internal/runrecord"
	"nvmecr/internal/store"
	"nvmecr/microfs"
)

// checkFresh refuses to start a store over while the second level has checkpoints of the store. The next run would continue from the
// newest of these checkpoints, whose number may be higher than all that this run writes, and --keep would remove the checkpoints of this run.
func (o *runOptions) checkFresh() error {
	if !o.cfg.Fresh || o.cfg.Level2 == "" {
		return nil
	}
	level, err := openLevel2(o.cfg)
	if err != nil {
		return err
	}
	sets, err := wholeSets(level)
	if err != nil || len(sets) == 0 {
		return err
	}
	return fmt.Errorf("--fresh: the second level %s has %s of store %q, such as %s, and the next run would go on with them: move them away or remove them, or use another --name or --level2",
		o.cfg.Level2, count(len(sets), "checkpoint"), o.cfg.Name, printable(sets[0].Dir))
}

// takeLevel2 marks the directory of the store on the second level as used by this run, and refuses it while another run uses it: a store of the same
// name, on another host or of another job.
func (o *runOptions) takeLevel2(ctx context.Context) (leave func(), err error) {
	if o.cfg.Level2 == "" || strings.HasPrefix(o.cfg.Level2, s3.Scheme) || o.joined || o.oneLevel {
		return func() {}, nil
	}
	lease, err := store.TakeDirectory(ctx, o.cfg, filepath.Join(o.cfg.Level2, o.cfg.Name), drain.RunFile, o.lease.Follows, lineLogger(o.stderr))
	if err != nil {
		return nil, err
	}
	return lease.End, nil
}

// checkIdle refuses to copy to the second level of a store while the run of another store of the same name uses it.
func (o *drainOptions) checkIdle(ctx context.Context) error {
	if strings.HasPrefix(o.cfg.Level2, s3.Scheme) {
		return nil
	}
	dir := filepath.Join(o.cfg.Level2, o.cfg.Name)
	if _, err := os.Stat(filepath.Join(dir, drain.RunFile)); err != nil {
		return nil // no run uses it
	}
	own, err := uuid.Parse(os.Getenv(config.RunVariable))
	var local microfs.Holder // the run of an embedded store, which has no record in the store
	if err != nil {          // outside of a run
		run, _ := store.InProgress(ctx, o.cfg) // the error of a target has been reported
		if run != nil {
			own = run.Run
		}
		if state, err := store.FindStateDir(o.cfg.Name); err == nil {
			local = state.Holder()
		}
	}
	mine := func(r *runrecord.Record) bool {
		return r.Run == own || r.PID == local.PID && r.Start == local.Start && r.Boot == local.Boot && r.PIDSpace == local.PIDSpace
	}
	return store.DirectoryIdle(ctx, dir, drain.RunFile, mine, lineLogger(o.stderr))
}

// stage restores the newest checkpoint from copies or the second level before the job, if the store does not have it.
// A run that starts over, or is part of another one, skips this.
func (o *runOptions) stage(env []string, at surroundings) error {
	if o.cfg.Level2 == "" && o.cfg.Copies == config.CopiesNone || o.cfg.Fresh || o.joined || o.oneLevel {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	argv := []string{self, "restore", "--newer"}
	if o.cfg.Level2Pattern != "" {
		argv = append(argv, o.cfg.Level2Pattern)
	}
	code, err := runJob(argv, env, at)
	if err == nil && code != 0 {
		err = fmt.Errorf("the newest checkpoint is not in the store, and could not be copied there (exit status %d)", code)
	}
	return err
}
