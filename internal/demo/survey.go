package demo

import (
	"context"
	"errors"
	"fmt"
	"path"
	"syscall"
	"time"

	"nvmecr/checkpoint"
	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/microfs"
)

// Survey lists the checkpoints of a pattern in a store from outside, oldest first. ranks is the number of ranks of
// the job.
func Survey(ctx context.Context, cfg *config.Config, ranks int, pattern string) ([]checkpoint.Set, error) {
	tree := cfg.View == config.ViewJob
	places := []store.Proc{{Rank: parttable.Singleton}} // has the names of a tree
	if !tree {
		places = nil
		for rank := range ranks {
			places = append(places, store.Proc{Rank: rank, Size: ranks})
		}
	}
	var files []checkpoint.File
	for _, place := range places {
		more, err := readRoot(ctx, cfg, place)
		if err != nil {
			return nil, fmt.Errorf("partition %d: %w", place.Rank, err)
		}
		files = append(files, more...)
	}
	series, err := checkpoint.Find(files, pattern, checkpoint.Job{Ranks: ranks, Tree: tree})
	if err != nil || len(series) == 0 {
		return nil, err
	}
	return series[0].Sets, nil
}

// Complete counts the sets that are complete.
func Complete(sets []checkpoint.Set) (n int) {
	for i := range sets {
		if sets[i].Complete() {
			n++
		}
	}
	return n
}

// readRoot returns the files in the root of a partition; none where it was
// never written.
func readRoot(ctx context.Context, cfg *config.Config, place store.Proc) (files []checkpoint.File, err error) {
	p, err := store.Open(ctx, cfg, place, store.Options{ReadOnly: true})
	if errors.Is(err, microfs.ErrUnformatted) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer p.Close()
	rank, err := writers(p.FS, place)
	if err != nil {
		return nil, err
	}
	root, err := p.FS.Open(microfs.RootIno, "/", 0, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for after := ""; ; {
		names, err := root.ReadDir(after, 1000)
		if err != nil || len(names) == 0 {
			return files, err
		}
		for _, d := range names {
			after = d.Name
			if d.Mode&syscall.S_IFMT != syscall.S_IFREG {
				continue
			}
			a, err := p.FS.Stat(microfs.RootIno, d.Name, false)
			if err != nil {
				return nil, err
			}
			files = append(files, checkpoint.File{
				Rank: rank(a.Ino), Path: path.Join("/", d.Name), Size: a.Size, Created: a.Btime, Modified: a.Mtime, Closed: a.Closed,
			})
		}
	}
}

// writers returns a function for the rank that has written a file: in a tree, the first rank with published data.
func writers(fs *microfs.FS, place store.Proc) (rank func(microfs.Ino) int, err error) {
	first := map[microfs.Ino]int{}
	err = fs.EachRange(func(a microfs.Attr, ranges []microfs.Range) error {
		first[a.Ino] = int(ranges[0].Partition)
		return nil
	})
	return func(ino microfs.Ino) int {
		if r, ok := first[ino]; ok {
			return r
		}
		return place.Rank
	}, err
}

// took returns the time that writing a checkpoint took.
func took(c *checkpoint.Set) time.Duration { return c.Ended().Sub(c.Begun()) }
