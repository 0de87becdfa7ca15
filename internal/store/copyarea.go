package store

import (
	"context"
	"errors"
	"fmt"
	"os"

	"nvmecr/balancer"
	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/nvmf"
)

// copyPart is the part of a namespace that a copy area has: as much as what is copied.
const copyPart = 2 // 1/2

// copyLength is how much of a namespace is its copy area; 0 is none.
func copyLength(cfg *config.Config, id *nvmf.Identity) nvmf.Bytes {
	if cfg.Copies != config.CopiesPartner || id.Private {
		return 0
	}
	align := alignment(cfg.Hugeblock)
	return id.Capacity() - (id.Capacity() - id.Capacity()/copyPart).AlignDown(align)
}

// OpenCopies mounts the copy area of target t, where what other targets hold is kept a second time; for writing it becomes the owner of the
// area, and formats it at first. Errors are those of Open; parttable.ErrNoTable if the target is not formatted, ErrNoCopies if it has no area.
func OpenCopies(ctx context.Context, cfg *config.Config, t int, opts Options) (*Partition, error) {
	if opts.Logf == nil {
		opts.Logf = func(string, ...any) {}
	}
	o := &opener{cfg: cfg, place: Place{Rank: parttable.Copies}, opts: opts, home: balancer.Device{Target: t}}
	p := &Partition{Place: o.place, Target: cfg.Targets[t], ready: make(chan struct{})}
	defer close(p.ready)
	err := o.own(ctx, p)
	if err == nil {
		err = o.openCopies(ctx, p, t)
	}
	if err != nil {
		p.FS = nil
		return nil, andClosing(fmt.Errorf("target %s: %w", p.Target, err), p.Close())
	}
	return p, nil
}

// ErrNoCopies: the target was formatted without a copy area.
var ErrNoCopies = errors.New("it was formatted without room for copies: start over with --fresh and --copies")

func (o *opener) openCopies(ctx context.Context, p *Partition, t int) (err error) {
	if p.Device, err = connect(ctx, o.cfg, p.Target, o.opts.ReadOnly); err != nil {
		return err
	}
	if !o.opts.ReadOnly {
		if o.reserve, err = fence(ctx, o.cfg, p.Device); err != nil {
			return err
		}
	}
	if p.Table, err = readOwnTable(ctx, o.cfg, t, p.Device, o.opts.ReadOnly && os.Geteuid() == 0); err != nil {
		return err
	}
	entry, ok := o.entry(p.Table)
	if !ok {
		return ErrNoCopies
	}
	return o.mount(ctx, p, entry)
}
