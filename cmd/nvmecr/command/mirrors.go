package command

import (
	"context"
	"fmt"
	"time"

	"nvmecr/internal/store"
)

// reportMirrors reports whether all data of a mirrored store is on two targets.
func (o *levelReader) reportMirrors(ctx context.Context) {
	if !o.cfg.CopiesSync {
		return
	}
	lost, since, err := store.DegradedMirrors(ctx, o.cfg)
	switch {
	case err != nil:
		o.warn(err)
	case len(lost) > 0:
		o.warn(fmt.Errorf("not mirrored: the store goes on without target %s%s, until the next run finds that target, or another one in its place", joinTargets(lost), sinceText(since)))
	default:
		o.warn(fmt.Errorf("mirrored: all of the store is on two targets"))
	}
}

// reportDegraded reports at the end of a run which mirrored targets it had to work without.
func (o *runOptions) reportDegraded() {
	if o.lease == nil {
		return
	}
	if lost, since := o.lease.Degraded(); len(lost) > 0 {
		fmt.Fprintf(o.stderr, "nvmecr: store %q goes on without target %s%s: what was mirrored there is on one target only; the next run copies it to that target, or to another one in its place\n",
			o.cfg.Name, joinTargets(lost), sinceText(since))
	}
}

// sinceText formats the start of a state; "" if unknown.
func sinceText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(" since " + time.DateTime)
}
