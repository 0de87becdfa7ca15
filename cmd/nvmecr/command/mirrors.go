package command

import (
	"context"
	"fmt"
	"time"

	"nvmecr/internal/store"
)

// sayMirrors says of a mirrored store whether all of it is on two targets.
func (o *levelReader) sayMirrors(ctx context.Context) {
	if !o.cfg.CopiesSync {
		return
	}
	lost, since, err := store.DegradedMirrors(ctx, o.cfg)
	switch {
	case err != nil:
		o.say(err)
	case len(lost) > 0:
		o.say(fmt.Errorf("not mirrored: the store goes on without target %s%s, until the next run finds it, or another one in its place", joinTargets(lost), sinceText(since)))
	default:
		o.say(fmt.Errorf("mirrored: all of the store is on two targets"))
	}
}

// sayDegraded says at the end of a run what it went on without.
func (o *runOptions) sayDegraded() {
	if o.lease == nil {
		return
	}
	if lost, since := o.lease.Degraded(); len(lost) > 0 {
		fmt.Fprintf(o.stderr, "nvmecr: store %q goes on without target %s%s: what was mirrored there is on one target only; the next run copies it to that target, or to another one in its place\n",
			o.cfg.Name, joinTargets(lost), sinceText(since))
	}
}

// sinceText says since when something is so; zero is not known.
func sinceText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(" since " + time.DateTime)
}
