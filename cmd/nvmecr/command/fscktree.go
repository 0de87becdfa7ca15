package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/microfs"
	"nvmecr/tree/index"
	"nvmecr/tree/wire"
)

// treeChecks is the maximum number of attempts to check the tree while a job changes it.
const treeChecks = 5

// partitionsOfTree returns the partitions of a store that has one tree. It returns none for other stores, and if the
// partition tables cannot be read.
func (o *fsckOptions) partitionsOfTree(ctx context.Context) []store.RankInfo {
	parts, err := store.Partitions(ctx, o.cfg)
	if err != nil || len(parts) == 0 || parts[0].Tree != parttable.TreeOfJob {
		return nil // check reports the error
	}
	o.cfg.View, o.tree = config.ViewJob, true
	return parts
}

// checkTree checks that the partitions have what the index of a job's tree says. With --repair it removes orphaned shards.
func (o *fsckOptions) checkTree(ctx context.Context, parts []store.RankInfo) error {
	report, current, err := o.checkTreeOnce(ctx, parts)
	for range treeChecks - 1 {
		if err == nil && (current || len(report.Findings) == 0) {
			break
		}
		report, current, err = o.checkTreeOnce(ctx, parts)
	}
	if errors.Is(err, microfs.ErrUnformatted) {
		return nil // never written
	}
	if err != nil {
		return err
	}
	if !current && len(report.Findings) > 0 {
		report.Findings = []microfs.Finding{{
			Kind: microfs.FoundBusy, Severity: microfs.Note, Where: "files", Offset: -1,
			What: "a job changes them: their shards could not be checked", Remedy: "check again later",
		}}
	}
	o.report.Tree = report.Findings
	if o.judge(report.Findings) > microfs.Note {
		o.damaged++
	}
	o.print("tree", report.Findings, 0)
	if o.repair {
		return o.removeShards(ctx, parts, report.Unused)
	}
	return nil
}

// checkTreeOnce checks the tree. The findings are valid if current is true: the index did not change during the
// check.
func (o *fsckOptions) checkTreeOnce(ctx context.Context, parts []store.RankInfo) (_ *index.Report, current bool, err error) {
	singleton, err := store.Open(ctx, o.cfg, store.Proc{Rank: parttable.Singleton}, store.Options{ReadOnly: true})
	if err != nil {
		return nil, false, err
	}
	defer singleton.Close() // only read
	since, views := time.Now(), store.NewViews(o.cfg, nil)
	defer views.Close()
	var ranks []uint32
	for _, p := range parts {
		if p.Rank != parttable.Singleton {
			ranks = append(ranks, uint32(p.Rank))
		}
	}
	report, err := index.Check(singleton.FS, ranks, func(rank uint32) (*microfs.FS, error) {
		return views.Rank(ctx, int(rank), since)
	})
	return report, err == nil && singleton.Current(), err
}

// removeShards removes orphaned shards. It skips partitions whose process was killed: the next run first adopts
// unclosed data of that process, and then removes orphaned shards itself.
func (o *fsckOptions) removeShards(ctx context.Context, parts []store.RankInfo, unused map[uint32][]wire.Shard) error {
	killed, err := store.Unreleased(ctx, o.cfg)
	if err != nil {
		return err
	}
	for _, p := range parts {
		list := unused[uint32(p.Rank)]
		if p.Rank == parttable.Singleton || len(list) == 0 || slices.Contains(killed, p.Rank) {
			continue
		}
		part, err := store.Open(ctx, o.cfg, store.Proc{Rank: p.Rank, Size: p.JobSize}, store.Options{})
		if err != nil {
			return err
		}
		errs := make([]error, 0, 1)
		for _, s := range list {
			if err := part.FS.Unlink(microfs.RootIno, s.Name()); !errors.Is(err, syscall.ENOENT) {
				errs = append(errs, err)
			}
		}
		if err := errors.Join(append(errs, part.Close())...); err != nil {
			return fmt.Errorf("%s: %w", o.rankName(p.Rank), err)
		}
		if !o.json {
			fmt.Fprintf(o.out, "%s: repair: removed %s of files of the tree that no longer exist or were truncated\n", o.rankName(p.Rank), count(len(list), "shard"))
		}
	}
	return nil
}
