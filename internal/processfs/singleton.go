package processfs

import (
	"context"
	"errors"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/internal/unionfs"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// openSingleton opens the singleton partition as the upper layer over the files of all ranks. If the partition was never written,
// reading uses an empty file system and formats nothing.
func (o *Opener) openSingleton(p store.Proc, opts store.Options) (*vfs.Mount, error) {
	o.prepareViews()
	opts.OnDivide = func() { o.noRanks.Store(false) }
	part, err := o.openWaiting(p, opts)
	if opts.ReadOnly && (errors.Is(err, parttable.ErrNoTable) || errors.Is(err, microfs.ErrUnformatted) || errors.Is(err, store.ErrNoSingletonPartition)) {
		o.noRanks.Store(errors.Is(err, parttable.ErrNoTable))
		fs, err := store.Blank(context.Background(), o.Config)
		if err != nil {
			return nil, err
		}
		return &vfs.Mount{FS: o.union(blank{vfs.Microfs(fs), o.Config}), Close: fs.Unmount}, nil
	}
	if err != nil {
		return nil, err
	}
	o.noRanks.Store(part.Table.JobSize == 1)
	if part.Divided() { // may have been divided before
		o.noRanks.Store(false)
	}
	return mountOf(part, o.union(vfs.Microfs(part.FS)), opts), nil
}

func (o *Opener) union(fs vfs.FS) vfs.FS {
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
		list[i] = unionfs.Layer{Rank: v.Rank, FS: vfs.Microfs(v.FS), Mount: v.Mount}
	}
	return list, err
}

// blank is a singleton partition that does not exist yet.
type blank struct {
	vfs.FS
	cfg *config.Config
}

// StatFS returns the space that could be written.
func (b blank) StatFS() microfs.StatFS {
	st := b.FS.StatFS()
	if size, err := store.SingletonSize(context.Background(), b.cfg); err == nil {
		st.Hugeblock = b.cfg.Hugeblock
		st.Blocks = microfs.Hugeblock(size / st.Hugeblock)
		st.Free, st.Avail = st.Blocks, st.Blocks
	}
	return st
}
