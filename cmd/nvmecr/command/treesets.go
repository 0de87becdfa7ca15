package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nvmecr/checkpoint"
	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/microfs"
	"nvmecr/tree"
	"nvmecr/tree/index"
)

// noRank is the rank of a file of a tree that is not of one rank alone.
const noRank = -1

// treeWriters says who has written the files of a tree.
type treeWriters struct {
	alone map[microfs.Ino]int  // the rank that has all bytes which any rank has; noRank if several have some
	sizes []checkpoint.Size    // how many ranks the job has had
	lost  map[microfs.Ino]bool // what has bytes that are not there any more
}

// writersOfTree asks the index's partition and, where ranks have partitions, that of rank 0.
func writersOfTree(ctx context.Context, cfg *config.Config, solo *microfs.FS, ofRanks bool) (*treeWriters, error) {
	w := &treeWriters{alone: map[microfs.Ino]int{}}
	err := solo.EachRange(func(a microfs.Attr, ranges []microfs.Range) error {
		w.alone[a.Ino] = int(ranges[0].Place)
		for _, r := range ranges {
			if r.Place != ranges[0].Place {
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

// lookAtWriters is writersOfTree from outside of a run.
func (o *setReader) lookAtWriters(ctx context.Context) (*treeWriters, error) {
	solo, err := store.Open(ctx, o.cfg, store.Place{Rank: parttable.Solo}, store.Options{ReadOnly: true})
	if errors.Is(err, microfs.ErrUnformatted) || errors.Is(err, parttable.ErrNoTable) {
		return &treeWriters{}, nil
	}
	if err != nil {
		return nil, err
	}
	w, err := writersOfTree(ctx, o.cfg, solo.FS, o.solo)
	if err == nil && o.findLost {
		w.lost, err = o.lostOfTree(ctx, solo)
	}
	return w, errors.Join(err, solo.Close())
}

// lostOfTree returns the files which the index maps to shards that their partitions have not got, as where a target has been replaced. Beside a
// job, which changes them, none.
func (o *setReader) lostOfTree(ctx context.Context, solo *store.Partition) (map[microfs.Ino]bool, error) {
	since, views := time.Now(), store.NewViews(o.cfg, nil)
	defer views.Close()
	report, err := index.Check(solo.FS, nil, func(rank uint32) (*microfs.FS, error) { return views.Rank(ctx, int(rank), since) })
	if err != nil || !solo.Current() {
		return nil, err
	}
	lost := map[microfs.Ino]bool{}
	for _, f := range report.Findings {
		lost[f.Ino] = true
	}
	return lost, nil
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
