package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"nvmecr/checkpoint"
	"nvmecr/internal/cli"
	"nvmecr/internal/parttable"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A setReader is the common part of commands that look for checkpoints in a store.
type setReader struct {
	reader
	writers []int
	lost    lostFiles         // files of a tree that have lost bytes; nil if unknown
	files   []checkpoint.File // the files that series has listed
	// awayFiles are the files of a tree with bytes on a target that cannot be reached.
	awayFiles map[string]bool
}

func (o *setReader) bindSets(cmd *cobra.Command, more ...string) {
	o.bind(cmd, more...)
	cmd.Flags().IntSliceVar(&o.writers, "writers", nil, "`RANKS` that write a part of every checkpoint, such as 0,4,8, where not all do [NVMECR_WRITERS]")
}

// series returns the checkpoints that match a pattern, or all. Errors of single ranks have been reported
// (reader.failed).
func (o *setReader) series(cmd *cobra.Command, pattern string) ([]checkpoint.Series, error) {
	if _, err := checkpoint.Find(nil, pattern, checkpoint.Job{}); err != nil {
		return nil, err
	}
	var files []checkpoint.File
	var job checkpoint.Job
	err := o.open(cmd)
	switch {
	case errors.Is(err, parttable.ErrNoTable): // the store has no checkpoint; its copies may have
		o.areas = len(o.cfg.Targets) > 1
	case err != nil:
		return nil, err
	case o.tree && o.rank != allRanks:
		return nil, cli.UsageError{Err: fmt.Errorf("--rank: store %q has one tree for all ranks: its checkpoints are not those of one of them", o.cfg.Name)}
	default:
		if files, job, err = o.list(cmd.Context()); err != nil {
			return nil, err
		}
	}
	for _, w := range o.writers {
		if w < 0 || w >= o.size && o.size > 0 {
			return nil, fmt.Errorf("--writers %d: store %q was written by %s, numbered from 0", w, o.cfg.Name, count(o.size, "rank"))
		}
	}
	o.files = files
	return checkpoint.Find(files, o.patternInside(pattern), job)
}

// patternInside returns a pattern relative to the mount point, without a leading slash, as a Series has it.
func (o *setReader) patternInside(pattern string) string {
	if pattern == "" {
		return ""
	}
	return strings.TrimPrefix(o.pathInStore(pattern), "/")
}

// optionalArg returns the optional argument of a command that takes one at most.
func optionalArg(args []string) string { return strings.Join(args, "") }

// list returns the files of all ranks, and the job whose ranks are expected to have written them.
func (o *setReader) list(ctx context.Context) (files []checkpoint.File, job checkpoint.Job, err error) {
	job = checkpoint.Job{Ranks: o.size, Writers: o.writers, Tree: o.tree}
	if o.tree {
		if files, job.Sizes, err = o.listTree(ctx); err != nil {
			return nil, job, err
		}
	} else {
		o.each(ctx, func(rank int, fs vfs.FS) error {
			err := walk(fs, "/", true, func(name string, a microfs.Attr) error {
				if a.Mode&syscall.S_IFMT == syscall.S_IFREG {
					files = append(files, checkpointFile(rank, name, a))
				}
				return nil
			})
			return o.explain(err, rank, "/")
		})
	}
	switch {
	case len(job.Writers) > 0:
	case o.rank != allRanks:
		job.Writers = []int{o.rank}
	case len(o.broken) > 0: // their files are unknown
		job.Writers = o.ranks()
	}
	return files, job, nil
}

func checkpointFile(rank int, name string, a microfs.Attr) checkpoint.File {
	return checkpoint.File{Rank: rank, Path: name, Size: a.Size, Created: a.Btime, Modified: a.Mtime, Closed: a.Closed}
}
