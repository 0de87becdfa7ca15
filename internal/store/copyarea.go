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

// copyPart is the divisor for the size of the copy area: it has as much space as the data that is copied.
const copyPart = 2 // 1/2

// copyLength returns the size of the copy area of a namespace; 0: none.
func copyLength(cfg *config.Config, id *nvmf.Identity) nvmf.Bytes {
	if shards, _ := cfg.Copies.Shards(); shards == 0 && cfg.Copies != config.CopiesPartner || id.Private {
		return 0
	}
	align := alignment(cfg.Hugeblock)
	return id.Capacity() - (id.Capacity() - id.Capacity()/copyPart).AlignDown(align)
}

// MakeCopyAreas formats the unformatted targets except the first one, with a copy area and without a partition: with fewer ranks than
// targets no rank would format them. Later ranks get partitions in front of the area. The run has the lease of the store, and its ranks
// have not started.
func MakeCopyAreas(ctx context.Context, cfg *config.Config) error {
	return eachTarget(ctx, cfg, false, func(t int, _ nvmf.TransportID, dev nvmf.Device) error {
		length := copyLength(cfg, dev.Identity())
		if t == 0 || length == 0 {
			return nil
		}
		if _, err := readTable(ctx, cfg, dev); !errors.Is(err, parttable.ErrNoTable) {
			return err
		}
		if _, err := fence(ctx, cfg, dev); err != nil {
			return err
		}
		usable := dev.Identity().Capacity() - length
		if _, err := divideNew(dev.Identity(), cfg, t, 1, 1, usable); err != nil {
			return err
		}
		table, err := emptyTable(dev.Identity(), cfg, t, usable)
		if err != nil {
			return err
		}
		return writeNew(ctx, dev, cfg, table)
	})
}

// ErrOnlyCopies means that a target has a copy area and no partition.
var ErrOnlyCopies = fmt.Errorf("%w, but for a copy area", parttable.ErrNoTable)

// OpenCopies mounts the copy area of target t, which has second copies of data of other targets. For writing it becomes
// the owner of the area, and formats an unformatted one. Errors are those of Open; parttable.ErrNoTable if the target
// is not formatted; ErrNoCopies if it has no area.
func OpenCopies(ctx context.Context, cfg *config.Config, t int, opts Options) (*Partition, error) {
	if opts.Logf == nil {
		opts.Logf = func(string, ...any) {}
	}
	o := &opener{cfg: cfg, proc: Proc{Rank: parttable.Copies}, opts: opts, home: balancer.Device{Target: t}}
	p := &Partition{Proc: o.proc, Target: cfg.Targets[t], ready: make(chan struct{})}
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

// ErrNoCopies means that the target was formatted without a copy area.
var ErrNoCopies = errors.New("it was formatted without a copy area: start over with --fresh and --copies")

func (o *opener) openCopies(ctx context.Context, p *Partition, t int) (err error) {
	if err := o.connect(ctx, p, p.Target); err != nil {
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
