package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// noRank is the rank of a file of a tree that no single rank has written.
const noRank = -1

// isAway reports whether the partition of a rank is on a target that cannot be reached.
func (r *reader) isAway(rank int) bool {
	_, there := r.targetOf[rank]
	return r.away && !there
}

// treeWriters records which ranks have written the files of a tree.
type treeWriters struct {
	writer map[microfs.Ino]int // the only rank with bytes of the file; noRank if several have some
	sizes  []checkpoint.Size   // the number of ranks over time
	lost   lostFiles
	away   map[microfs.Ino]bool // files with bytes in partitions that cannot be reached
	noted  map[string]bool      // their paths
}

// lostFiles are the files of a tree that have lost bytes with a target, with the times of their last change. nil
// means unknown.
type lostFiles map[microfs.Ino]time.Time

func (l lostFiles) has(a microfs.Attr) bool { return a.Ctime.Equal(l[a.Ino]) }

// writersOfTree reads the writers from the partition of the index and, if ofRanks, the number of ranks from that of
// rank 0.
func writersOfTree(ctx context.Context, cfg *config.Config, singleton *microfs.FS, ofRanks bool) (*treeWriters, error) {
	w := &treeWriters{writer: map[microfs.Ino]int{}}
	err := singleton.EachRange(func(a microfs.Attr, ranges []microfs.Range) error {
		w.writer[a.Ino] = int(ranges[0].Partition)
		for _, r := range ranges {
			if r.Partition != ranges[0].Partition {
				w.writer[a.Ino] = noRank
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

// rank returns the rank that has written a file alone, or noRank.
func (w *treeWriters) rank(a microfs.Attr) int {
	if rank, ok := w.writer[a.Ino]; ok {
		return rank
	}
	return noRank
}

// listTree returns the files of a tree, and how many ranks its jobs have had. Names, writers and lost bytes are from
// one state of the index. Otherwise a file whose writer is not known yet would count as written by a single process,
// and an incomplete file as complete.
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
	if err == nil && o.away {
		err = w.findAway(singleton.FS, o.isAway)
	}
	if err == nil {
		w.lost = o.lost
		files, err = w.files(singleton.FS)
		o.awayFiles = w.noted
	}
	if err = errors.Join(err, singleton.Close()); err != nil {
		return nil, nil, err
	}
	return files, w.sizes, nil
}

// findAway finds the files with bytes in partitions that cannot be reached.
func (w *treeWriters) findAway(fs *microfs.FS, isAway func(rank int) bool) error {
	w.away, w.noted = map[microfs.Ino]bool{}, map[string]bool{}
	return fs.EachRange(func(a microfs.Attr, ranges []microfs.Range) error {
		w.away[a.Ino] = slices.ContainsFunc(ranges, func(r microfs.Range) bool { return isAway(int(r.Partition)) })
		return nil
	})
}

// files returns the files of the tree, from the index that w was read from.
func (w *treeWriters) files(fs *microfs.FS) (files []checkpoint.File, err error) {
	err = walk(vfs.Microfs(fs), "/", true, func(name string, a microfs.Attr) error {
		if a.Mode&syscall.S_IFMT == syscall.S_IFREG {
			f := checkpointFile(w.rank(a), name, a)
			f.Lost = w.lost.has(a)
			if w.away[a.Ino] {
				w.noted[name] = true
			}
			files = append(files, f)
		}
		return nil
	})
	return files, err
}

// lostOfTree returns the files whose shards are missing from their partitions, as after a target was replaced. A
// running job may have removed or truncated a file after the index was read: files that have changed since then are
// left out.
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

// changeTimes returns the times of the last change of the files that have shards.
func changeTimes(fs *microfs.FS) map[microfs.Ino]time.Time {
	at := map[microfs.Ino]time.Time{}
	_ = fs.EachRange(func(a microfs.Attr, _ []microfs.Range) error { // on errors, the files read so far
		at[a.Ino] = a.Ctime
		return nil
	})
	return at
}

// clearRanks removes the ranks from the files of a tree.
func clearRanks(list []checkpoint.Series) {
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
