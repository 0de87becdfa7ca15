package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/internal/unionfs"
	"nvmecr/microfs"
	"nvmecr/posixshim"
)

// ranks are what a process that is alone sees of the ranks of the store, in all its mounts.
var ranks struct {
	once  sync.Once
	views *store.Views
	// none says that the store is known to have no ranks.
	none atomic.Bool
}

// openAlone opens the solo partition, below which there are the files of all ranks. Where
// nobody has written to it yet, reading finds an empty one and formats nothing.
func openAlone(p store.Place, opts store.Options) (*posixshim.Mount, error) {
	ranks.once.Do(func() { ranks.views = store.NewViews(opening.cfg, complain) })
	opts.OnDivide = func() { ranks.none.Store(false) }
	part, err := openWaiting(p, opts)
	if opts.ReadOnly && (errors.Is(err, parttable.ErrNoTable) || errors.Is(err, microfs.ErrUnformatted) || errors.Is(err, store.ErrNoSolo)) {
		ranks.none.Store(errors.Is(err, parttable.ErrNoTable))
		fs, err := store.Blank(context.Background(), opening.cfg)
		if err != nil {
			return nil, err
		}
		return &posixshim.Mount{FS: union(blank{posixshim.Microfs(fs)}), Close: fs.Unmount}, nil
	}
	if err != nil {
		return nil, err
	}
	ranks.none.Store(part.Table.JobSize == 1)
	if part.Divided() { // perhaps before that
		ranks.none.Store(false)
	}
	return mountOf(part, union(posixshim.Microfs(part.FS)), opts), nil
}

func union(fs posixshim.FS) posixshim.FS { return unionfs.New(fs, opening.cfg.Mount, layers) }

// layers returns the file systems of the ranks.
func layers() ([]unionfs.Layer, error) {
	if ranks.none.Load() {
		return nil, nil
	}
	views, err := ranks.views.Look(context.Background())
	list := make([]unionfs.Layer, len(views))
	for i, v := range views {
		list[i] = unionfs.Layer{Rank: v.Rank, FS: posixshim.Microfs(v.FS), Mount: v.Mount}
	}
	return list, err
}

// blank is a solo partition that does not exist yet.
type blank struct{ posixshim.FS }

// StatFS tells how much could be written.
func (b blank) StatFS() microfs.StatFS {
	st := b.FS.StatFS()
	if size, err := store.SoloSize(context.Background(), opening.cfg); err == nil {
		st.Hugeblock = opening.cfg.Hugeblock
		st.Blocks = microfs.Hugeblock(size / st.Hugeblock)
		st.Free = st.Blocks
	}
	return st
}
