package store

import (
	"context"
	"errors"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/mirror"
)

// A usage collects the used space of a store, for a side of a mirror that has to be restored.
type usage struct {
	cfg    *config.Config
	dev    nvmf.Device
	table  *parttable.Table
	claims *microfs.ClaimReader
	used   mirror.Used
}

// inUse returns the used space of the store on dev. No process writes to it meanwhile.
func inUse(ctx context.Context, cfg *config.Config, dev nvmf.Device) (mirror.Used, error) {
	table, err := readTable(ctx, cfg, dev)
	if err != nil {
		return nil, err
	}
	claims, err := microfs.NewClaimReader(ctx, dev)
	if err != nil {
		return nil, err
	}
	u := &usage{cfg, dev, table, claims, mirror.NewUsed(dev.Identity().Capacity())}
	u.used.Add(0, parttable.HeadSize)
	for _, e := range table.FileSystems() {
		if u.partition(ctx, e) != nil {
			u.used.Add(e.Start, e.Length) // the used space is unknown: copy all of the partition
		}
	}
	return u.used, claims.Close()
}

// errNotClosed means that recovery of the partition may read more than the data of its files.
var errNotClosed = errors.New("the partition was not closed")

// partition adds the used space of a partition.
func (u *usage) partition(ctx context.Context, e parttable.Entry) error {
	seg := microfs.Segment{Start: e.Start, Length: e.Length}
	claim, err := u.claims.Last(seg)
	switch {
	case errors.Is(err, microfs.ErrUnformatted):
		for _, at := range microfs.SuperblockOffsets(seg) {
			u.used.Add(at, superblockSize)
		}
		return nil
	case err != nil:
		return err
	case claim == nil || !claim.Released || claim.Late:
		return errNotClosed
	}
	o := &opener{cfg: u.cfg, proc: Proc{Rank: e.Rank, Size: u.table.JobSize}, opts: Options{ReadOnly: true, Logf: func(string, ...any) {}}}
	p := &Partition{Device: u.dev, Table: u.table, Proc: o.proc}
	if err := o.mount(ctx, p, e); err != nil {
		return err
	}
	p.FS.Used(func(s microfs.Segment) { u.used.Add(s.Start, s.Length) })
	return p.FS.Unmount()
}
