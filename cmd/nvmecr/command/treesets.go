package command

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"nvmecr/checkpoint"
	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/tree"
	"nvmecr/tree/index"
)

// noRank is the rank of a file of a tree that is not of one rank alone.
const noRank = -1

// treeWriters says which ranks have written the files of a tree.
type treeWriters struct {
	alone map[microfs.Ino]int // the rank that has all bytes which any rank has; noRank if several have some
	sizes []checkpoint.Size   // how many ranks the job has had
	lost  lostFiles
}

// lostFiles are files of a tree that have lost bytes with a target, as they were last changed. It is nil if that is unknown.
type lostFiles map[microfs.Ino]time.Time

func (l lostFiles) has(a microfs.Attr) bool { return a.Ctime.Equal(l[a.Ino]) }

// writersOfTree asks the index's partition and, where ranks have partitions, that of rank 0.
func writersOfTree(ctx context.Context, cfg *config.Config, singleton *microfs.FS, ofRanks bool) (*treeWriters, error) {
	w := &treeWriters{alone: map[microfs.Ino]int{}}
	err := singleton.EachRange(func(a microfs.Attr, ranges []microfs.Range) error {
		w.alone[a.Ino] = int(ranges[0].Partition)
		for _, r := range ranges {
			if r.Partition != ranges[0].Partition {
				w.alone[a.Ino] = noRank
			}
		}
		return context.Cause(ctx)
	})
	if err != nil || !ofRanks {
		return w, err
	}
	views := store.NewViews(cfg, nil)
	defer views.Close()
	part, err := views.Rank(ctx, 0, time.Now())
	if errors.Is(err, microfs.ErrUnformatted) {
		return w, nil
	}
	if err != nil {
		return nil, fmt.Errorf("rank 0: %w", err)
	}
	sizes, err := tree.Sizes(part)
	for _, s := range sizes {
		w.sizes = append(w.sizes, checkpoint.Size(s))
	}
	return w, err
}

// rank returns the one that has written a file alone.
func (w *treeWriters) rank(a microfs.Attr) int {
	if rank, ok := w.alone[a.Ino]; ok {
		return rank
	}
	return noRank
}

// listTree returns the files of a tree, and how many ranks its jobs have had. Names, writers and lost bytes are of one state of the index: a file of which the
// writer is not known yet would pass for one of a single process, and what is half written for complete.
func (o *setReader) listTree(ctx context.Context) (files []checkpoint.File, sizes []checkpoint.Size, err error) {
	singleton, err := store.Open(ctx, o.cfg, store.Proc{Rank: parttable.Singleton}, store.Options{ReadOnly: true})
	if errors.Is(err, microfs.ErrUnformatted) || errors.Is(err, parttable.ErrNoTable) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	w, err := writersOfTree(ctx, o.cfg, singleton.FS, o.singleton)
	if err == nil && o.lost == nil {
		o.lost, err = lostOfTree(ctx, o.cfg, singleton)
	}
	if err == nil {
		w.lost = o.lost
		files, err = w.files(singleton.FS)
	}
	if err = errors.Join(err, singleton.Close()); err != nil {
		return nil, nil, err
	}
	return files, w.sizes, nil
}

// files returns the files of the tree, of the index that the writers are from.
func (w *treeWriters) files(fs *microfs.FS) (files []checkpoint.File, err error) {
	err = walk(vfs.Microfs(fs), "/", true, func(name string, a microfs.Attr) error {
		if a.Mode&syscall.S_IFMT == syscall.S_IFREG {
			f := checkpointFile(w.rank(a), name, a)
			f.Lost = w.lost.has(a)
			files = append(files, f)
		}
		return nil
	})
	return files, err
}

// lostOfTree returns the files which the index maps to shards that their partitions have not got, as where a target has been replaced. A job that runs
// may have removed or cut a file after the index was read: what has changed since then does not count.
func lostOfTree(ctx context.Context, cfg *config.Config, singleton *store.Partition) (lostFiles, error) {
	since, views := time.Now(), store.NewViews(cfg, nil)
	defer views.Close()
	report, err := index.Check(singleton.FS, nil, func(rank uint32) (*microfs.FS, error) { return views.Rank(ctx, int(rank), since) })
	if err != nil {
		return nil, err
	}
	lost := lostFiles{}
	if len(report.Findings) == 0 {
		return lost, nil
	}
	changed := changeTimes(singleton.FS)
	after := changed
	if !singleton.Current() {
		again, err := store.Open(ctx, cfg, store.Proc{Rank: parttable.Singleton}, store.Options{ReadOnly: true})
		if err != nil {
			return nil, err
		}
		after = changeTimes(again.FS)
		if err := again.Close(); err != nil {
			return nil, err
		}
	}
	for _, f := range report.Findings {
		if at, ok := changed[f.Ino]; ok && at.Equal(after[f.Ino]) {
			lost[f.Ino] = at
		}
	}
	return lost, nil
}

// changeTimes returns when the files of an index that have bytes of ranks were last changed.
func changeTimes(fs *microfs.FS) map[microfs.Ino]time.Time {
	at := map[microfs.Ino]time.Time{}
	_ = fs.EachRange(func(a microfs.Attr, _ []microfs.Range) error { // as far as it can be read
		at[a.Ino] = a.Ctime
		return nil
	})
	return at
}

// ofNoRank says of the files of a tree that they are no rank's.
func ofNoRank(list []checkpoint.Series) {
	for _, series := range list {
		for _, set := range series.Sets {
			for i := range set.Files {
				set.Files[i].Rank = noRank
			}
			for i, missing := range set.Missing {
				if missing.Path != "" {
					set.Missing[i].Rank = noRank
				}
			}
		}
	}
}
