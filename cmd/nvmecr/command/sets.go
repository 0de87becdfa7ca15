package command

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/spf13/cobra"

	"nvmecr/checkpoint"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/posixshim"
)

// A setReader is what the commands have in common that look for checkpoints in a store.
type setReader struct {
	reader
	writers []int
}

func (o *setReader) bindSets(cmd *cobra.Command) {
	o.bind(cmd)
	cmd.Flags().IntSliceVar(&o.writers, "writers", nil, "`RANKS` that write a part of every checkpoint, such as 0,4,8, where not all do [NVMECR_WRITERS]")
}

// series returns the checkpoints of a pattern, or of all files. What cannot be read has been told (reader.failed).
func (o *setReader) series(cmd *cobra.Command, pattern string) ([]checkpoint.Series, error) {
	if _, err := checkpoint.Find(nil, pattern, checkpoint.Job{}); err != nil {
		return nil, err
	}
	var files []checkpoint.File
	err := o.open(cmd)
	switch {
	case errors.Is(err, parttable.ErrNoTable): // then there is no checkpoint, either
	case err != nil:
		return nil, err
	default:
		files = o.list(cmd.Context())
	}
	for _, w := range o.writers {
		if w < 0 || w >= o.size && o.size > 0 {
			return nil, fmt.Errorf("--writers %d: store %q was written by %s, numbered from 0", w, o.cfg.Name, count(o.size, "rank"))
		}
	}
	place := pattern
	if pattern != "" {
		place = o.inside(pattern)
	}
	list, err := checkpoint.Find(files, place, o.job())
	if err == nil && o.ofTree() {
		ofNoRank(list)
	}
	return list, err
}

// job is who is expected to have written.
func (o *setReader) job() checkpoint.Job {
	if o.ofTree() {
		return checkpoint.Job{Ranks: 1} // nobody can tell there who wrote what
	}
	job := checkpoint.Job{Ranks: o.size, Writers: o.writers}
	switch {
	case len(job.Writers) > 0:
	case o.rank != allRanks:
		job.Writers = []int{o.rank}
	case len(o.broken) > 0: // what they have is not known
		job.Writers = o.ranks()
	}
	return job
}

// list returns the files of all ranks.
func (o *setReader) list(ctx context.Context) (files []checkpoint.File) {
	o.each(ctx, func(rank int, fs posixshim.FS) error {
		if rank == jobTree {
			rank = 0 // see job
		}
		err := walk(fs, "/", true, func(name string, a microfs.Attr) error {
			if a.Mode&syscall.S_IFMT == syscall.S_IFREG {
				files = append(files, checkpointFile(rank, name, a))
			}
			return nil
		})
		return explain(err, rank, "/")
	})
	return files
}

func checkpointFile(rank int, name string, a microfs.Attr) checkpoint.File {
	return checkpoint.File{Rank: rank, Path: name, Size: a.Size, Created: a.Btime, Modified: a.Mtime, Closed: a.Closed}
}

// ofNoRank says of the files of a tree that they are no rank's.
func ofNoRank(list []checkpoint.Series) {
	for _, series := range list {
		for _, set := range series.Sets {
			for i := range set.Files {
				set.Files[i].Rank = -1
			}
			for i := range set.Missing {
				set.Missing[i].Rank = -1
			}
		}
	}
}
