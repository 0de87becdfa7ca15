package processfs

import (
	"context"
	"errors"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/internal/unionfs"
	"nvmecr/microfs"
	"nvmecr/posixshim"
)

// openAlone opens the solo partition, below which there are the files of all ranks. Where
// nobody has written to it yet, reading finds an empty one and formats nothing.
func (o *Opener) openAlone(p store.Place, opts store.Options) (*posixshim.Mount, error) {
	o.view()
	opts.OnDivide = func() { o.noRanks.Store(false) }
	part, err := o.openWaiting(p, opts)
	if opts.ReadOnly && (errors.Is(err, parttable.ErrNoTable) || errors.Is(err, microfs.ErrUnformatted) || errors.Is(err, store.ErrNoSolo)) {
		o.noRanks.Store(errors.Is(err, parttable.ErrNoTable))
		fs, err := store.Blank(context.Background(), o.Config)
		if err != nil {
			return nil, err
		}
		return &posixshim.Mount{FS: o.union(blank{posixshim.Microfs(fs), o.Config}), Close: fs.Unmount}, nil
	}
	if err != nil {
		return nil, err
	}
	o.noRanks.Store(part.Table.JobSize == 1)
	if part.Divided() { // perhaps before that
		o.noRanks.Store(false)
	}
	return mountOf(part, o.union(posixshim.Microfs(part.FS)), opts), nil
}

func (o *Opener) union(fs posixshim.FS) posixshim.FS {
	return unionfs.New(fs, o.Config.Mount, o.layers)
}

// layers returns the file systems of the ranks.
func (o *Opener) layers() ([]unionfs.Layer, error) {
	if o.noRanks.Load() {
		return nil, nil
	}
	views, err := o.views.Refresh(context.Background())
	list := make([]unionfs.Layer, len(views))
	for i, v := range views {
		list[i] = unionfs.Layer{Rank: v.Rank, FS: posixshim.Microfs(v.FS), Mount: v.Mount}
	}
	return list, err
}

// blank is a solo partition that does not exist yet.
type blank struct {
	posixshim.FS
	cfg *config.Config
}

// StatFS tells how much could be written.
func (b blank) StatFS() microfs.StatFS {
	st := b.FS.StatFS()
	if size, err := store.SoloSize(context.Background(), b.cfg); err == nil {
		st.Hugeblock = b.cfg.Hugeblock
		st.Blocks = microfs.Hugeblock(size / st.Hugeblock)
		st.Free, st.Avail = st.Blocks, st.Blocks
	}
	return st
}
