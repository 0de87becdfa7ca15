package bench

import (
	"context"
	"fmt"
	"path"

	"nvmecr/bench/paper"
	"nvmecr/bench/stats"
	"nvmecr/bench/workers"
	"nvmecr/nvmf"
)

// Goals for files of several ranks, and for files of other ranks, as shares of a rank's own files.
const (
	sharedShare = 0.95
	othersShare = 0.90
)

// sharedSides returns the ways in which the job's ranks write: their own files first.
// No file is truncated, since truncating a file of several ranks removes the bytes of
// the other ranks.
func (r *treeRanks) sharedSides() []*side {
	n := nvmf.Bytes(r.Ranks)
	named := func(name string, part func(w work, rank int) (first, step nvmf.Bytes)) *side {
		return &side{name: "one file, " + name, group: r.job.group, part: part, path: func(int, int) string { return path.Join(r.job.cfg.Mount, name) }}
	}
	own := named("of each rank", func(w work, _ int) (first, step nvmf.Bytes) { return 0, w.transfer })
	own.name, own.path = "one file a rank", func(rank, _ int) string { return path.Join(r.job.cfg.Mount, fmt.Sprintf("own.%d", rank)) }
	return []*side{
		own,
		named("segmented", func(w work, rank int) (first, step nvmf.Bytes) { return nvmf.Bytes(rank) * w.size, w.transfer }),
		named("strided", func(w work, rank int) (first, step nvmf.Bytes) { return nvmf.Bytes(rank) * w.transfer, n * w.transfer }),
	}
}

// remove removes the files of a side. Then all ranks make a call. Its answer tells them
// about the removal, and they free the space.
func (r *treeRanks) remove(ctx context.Context, s *side, k int) error {
	if _, err := s.group.Do(ctx, func(rank int) string { return "unlink " + s.path(rank, k) }); err != nil {
		return err
	}
	_, err := s.group.DoAll(ctx, "call stat 1 0 "+r.job.cfg.Mount)
	return err
}

// ofNext returns a side whose ranks read the file of the next rank.
func (r *treeRanks) ofNext(s *side) *side {
	next := *s
	next.path = func(rank, k int) string { return s.path((rank+1)%r.Ranks, k) }
	next.part = func(w work, rank int) (first, step nvmf.Bytes) { return s.part(w, (rank+1)%r.Ranks) }
	return &next
}

// sharedFiles compares files that all ranks write, and files of other ranks, with one file for each
// rank, in one tree.
func (r *treeRanks) sharedFiles(ctx context.Context) error {
	writers := r.sharedSides()
	readers := []*side{writers[0]}
	for _, s := range writers {
		readers = append(readers, r.ofNext(s))
	}
	w := work{size: r.Size, transfer: r.Transfer}
	written, read := make(map[*side]stats.Sample), make(map[*side]stats.Sample)
	for round := range r.Warm + r.Rounds {
		r.progress("files of several ranks", round, r.Warm+r.Rounds)
		if err := r.turn(ctx, round, writers, written, func(s *side) (workers.Round, error) { return s.write(ctx, w, round) }); err != nil {
			return err
		}
		if err := r.turn(ctx, round, readers, read, func(s *side) (workers.Round, error) { return s.read(ctx, w, round) }); err != nil {
			return err
		}
	}
	if err := r.sharedGoals(writers, readers, written, read); err != nil {
		return err
	}
	for _, s := range writers {
		if err := r.remove(ctx, s, 0); err != nil {
			return err
		}
	}
	return nil
}

// turn calls do for each side, beginning with another side in each round, and records
// the times.
func (r *treeRanks) turn(ctx context.Context, round int, sides []*side, took map[*side]stats.Sample, do func(*side) (workers.Round, error)) error {
	for i := range sides {
		s := sides[(i+round)%len(sides)]
		done, err := do(s)
		if err != nil {
			return err
		}
		if round >= r.Warm {
			took[s] = append(took[s], done.Span().Seconds())
		}
	}
	return ctx.Err()
}

func (r *treeRanks) sharedGoals(writers, readers []*side, written, read map[*side]stats.Sample) error {
	mib := float64(r.Ranks) * float64(r.Size) / float64(nvmf.MiB)
	for _, s := range writers[1:] {
		what := fmt.Sprintf("write of %s, %s in pieces of %s, beside one file a rank", s.name, rankCount(r.Ranks), r.Transfer)
		if err := r.ratio(what, sharedShare, written[s], written[writers[0]], mib, "MiB/s"); err != nil {
			return err
		}
	}
	r.published(written[writers[0]], written[writers[2]], read[writers[0]], read[readers[3]])
	for _, s := range readers[1:] {
		what := fmt.Sprintf("read of what the next rank has written, %s, beside one's own file", s.name)
		if err := r.ratio(what, othersShare, read[s], read[writers[0]], mib, "MiB/s"); err != nil {
			return err
		}
	}
	return nil
}

// published adds published results of other projects for comparison with the result for
// a strided file. It uses the times of that file and of the ranks' own files.
func (r *treeRanks) published(ownWritten, written, ownRead, read stats.Sample) {
	const beside = "%.2f of one file a rank, %s"
	writing := []any{ownWritten.Median() / written.Median(), rankCount(r.Ranks)}
	r.res.Claims = append(r.res.Claims,
		paper.PLFSWrite.Beside(beside, writing...),
		paper.PLFSRead.Beside(beside+", read by another than the writer", ownRead.Median()/read.Median(), rankCount(r.Ranks)),
		paper.UnifyFSCheckpoint.Beside(beside, writing...),
	)
}
