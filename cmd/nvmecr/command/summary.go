package command

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"nvmecr/checkpoint"
	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// summaryTime limits the time for the summary at the end of a run. A store of some thousand files takes a few
// milliseconds, or a second on a host with a hundred processes per core. If the limit passes, there is no summary.
const summaryTime = 10 * time.Second

// summarize prints the last line of a run, if any. begin is the start of the run, code its exit status. Errors in
// making the summary do not fail the run.
func (o *runOptions) summarize(ctx context.Context, dir *store.StateDir, begin time.Time, code int) {
	if o.cfg.Given("log") && o.cfg.Log == config.LogError || slices.ContainsFunc(o.cfg.Targets, takesLong) {
		return
	}
	cfg := *o.cfg
	cfg.Driver = config.DriverGo
	record, err := dir.Load()
	embedded := err == nil && record.Embedded
	if embedded { // read the image without a connection
		cfg.Targets = []nvmf.TransportID{{Transport: nvmf.File, Address: dir.Image()}}
	}
	ctx, cancel := context.WithTimeout(ctx, summaryTime)
	defer cancel()
	done := make(chan *found, 1)
	go func() {
		f, err := survey(ctx, &cfg, begin)
		if err != nil {
			f = nil
		}
		done <- f
	}()
	select {
	case f := <-done:
		line := f.line(&cfg, embedded, code)
		if own := o.rebuilds || o.oneLevel; own && f != nil && f.files == 0 {
			line = "" // the job is a command of nvmecr's, which has said what it did
		}
		if line != "" {
			fmt.Fprintln(o.stderr, line)
		}
		o.reportDegraded()
		if line := f.cost(o.cfg.MTBF, begin); line != "" {
			fmt.Fprintln(o.stderr, line)
		}
	case <-ctx.Done():
	}
}

// takesLong reports whether a target has nothing to read after the run, or needs the slow start of SPDK.
func takesLong(t nvmf.TransportID) bool { return t.Transport != nvmf.TCP && t.Transport != nvmf.File }

// line formats the summary; "" if there is nothing to print.
func (f *found) line(cfg *config.Config, embedded bool, code int) string {
	const unused = "nvmecr: nothing was %s under %s: does the program write there? Its checkpoints have to go to that directory"
	switch {
	case f == nil:
	case f.files > 0:
		return fmt.Sprintf("nvmecr: store %q: %s of %s new or changed; %s", cfg.Name, count(f.files, "file"), size(f.bytes), f.newest())
	case code != 0, owner.Used(store.LockGroup(cfg.Run)): // the failure has been reported
	case embedded:
		return fmt.Sprintf(unused, "opened", cfg.Mount)
	default: // ranks of other hosts may have read files, which is not known here
		return fmt.Sprintf(unused, "written", cfg.Mount)
	}
	return ""
}

// found describes the files that a run has written.
type found struct {
	ranks  int // number of ranks that have a partition
	files  int
	bytes  nvmf.Bytes
	last   complete             // the newest complete file
	shared map[string]*complete // by a name that ranks have in common
	tree   []checkpoint.File    // files of a tree, also those written before the run
	job    checkpoint.Job       // the job of these files
}

// complete is a file, or several ranks' files of one name, that its writers have closed.
type complete struct {
	name  string
	rank  int
	ranks int
	since time.Time // last modification
}

// survey finds the files that were changed since begin.
func survey(ctx context.Context, cfg *config.Config, begin time.Time) (*found, error) {
	f := &found{shared: map[string]*complete{}}
	parts, err := store.Partitions(ctx, cfg)
	if errors.Is(err, parttable.ErrNoTable) {
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	f.ranks = len(parts)
	if f.ranks > 0 && parts[f.ranks-1].Rank == parttable.Singleton {
		f.ranks--
	}
	for _, r := range parts {
		if r.Tree == parttable.TreeOfJob && r.Rank != parttable.Singleton && len(parts) > 1 {
			continue // the partitions of ranks have shards only
		}
		p, err := store.Open(ctx, cfg, store.Proc{Rank: r.Rank, Size: f.ranks}, store.Options{ReadOnly: true})
		if errors.Is(err, microfs.ErrUnformatted) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var tree *treeWriters
		if r.Tree == parttable.TreeOfJob {
			tree, err = writersOfTree(ctx, cfg, p.FS, len(parts) > 1)
			if err == nil && len(cfg.Targets) > 1 { // with a single target the index would be lost, too
				tree.lost, err = lostOfTree(ctx, cfg, p)
			}
			if err != nil {
				return nil, errors.Join(err, p.Close())
			}
			f.job = checkpoint.Job{Ranks: f.ranks, Tree: true, Sizes: tree.sizes}
		}
		err = walk(vfs.Microfs(p.FS), "/", true, func(name string, a microfs.Attr) error {
			if a.Mode&syscall.S_IFMT == syscall.S_IFREG {
				f.add(r.Rank, name, a, begin)
				if tree != nil {
					file := checkpointFile(tree.rank(a), name, a)
					file.Lost = tree.lost.has(a)
					f.tree = append(f.tree, file)
				}
			}
			return context.Cause(ctx)
		})
		if err = errors.Join(err, p.Close()); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *found) add(rank int, name string, a microfs.Attr, begin time.Time) {
	if a.Ctime.Before(begin) {
		return
	}
	f.files++
	f.bytes += nvmf.Bytes(a.Size)
	if !a.Closed {
		return
	}
	if a.Mtime.After(f.last.since) && (rank != parttable.Singleton || len(f.shared) == 0) { // ranks precede the singleton partition
		f.last = complete{name, rank, 1, a.Mtime}
	}
	if rank == parttable.Singleton {
		return
	}
	for _, n := range slices.Compact([]string{name, withoutRank(name, rank)}) {
		s := f.shared[n]
		if s == nil {
			s = &complete{name: n}
			f.shared[n] = s
		}
		if s.ranks == 0 || s.rank != rank { // partitions are read one after the other
			s.ranks, s.rank = s.ranks+1, rank
		}
		if a.Mtime.After(s.since) {
			s.since = a.Mtime
		}
	}
}

// newest describes the newest complete checkpoint: a file that every rank has by the same name, or by one with its
// number in it; otherwise the newest complete file.
func (f *found) newest() string {
	best := &complete{}
	for _, s := range f.shared {
		if s.ranks == f.ranks && (s.since.After(best.since) || s.since.Equal(best.since) && s.name < best.name) {
			best = s
		}
	}
	switch {
	case f.last.name == "":
		return "none of them is complete"
	case f.tree != nil && f.newestOfTree() != "":
		return f.newestOfTree()
	case best.name != "" && f.ranks > 1:
		return fmt.Sprintf("newest complete on all %d ranks: %s", f.ranks, printable(best.name))
	case f.ranks > 1 && f.last.rank != parttable.Singleton:
		return fmt.Sprintf("newest complete: %s of rank %d, none on all ranks", printable(f.last.name), f.last.rank)
	}
	return "newest complete: " + printable(f.last.name)
}

// newestOfTree describes the newest checkpoint of a tree by the rules of `nvmecr latest`; "" if no files look like
// checkpoints.
func (f *found) newestOfTree() string {
	series := f.series()
	if series == nil {
		return ""
	}
	set, ok := series.Newest()
	if !ok {
		return "no checkpoint is complete: " + printable(path.Join("/", series.Pattern))
	}
	return "newest complete: " + printable(path.Join("/", strings.Replace(series.Pattern, "{step}", set.Name, 1)))
}

// series returns the series of the files of a tree; nil if there is none, or more than one.
func (f *found) series() *checkpoint.Series {
	list, err := checkpoint.Find(f.tree, "", f.job)
	if err != nil {
		return nil
	}
	series, err := checkpoint.Choose(list)
	if err != nil {
		return nil
	}
	return series
}

// cost describes the cost of the checkpoints that a run has written in a tree; "" if there are too few.
func (f *found) cost(mtbf string, begin time.Time) string {
	if f == nil || f.tree == nil {
		return ""
	}
	series := f.series()
	if series == nil {
		return ""
	}
	var sets []*checkpoint.Set
	for i := range series.Sets {
		if s := &series.Sets[i]; s.Complete() && s.Begun().After(begin) && !copiedBack(s) {
			sets = append(sets, s)
		}
	}
	if len(sets) < minCheckpoints {
		return ""
	}
	between, _ := parseSpan(mtbf) // checked before the run; 0 if not given
	a := &advice{Pattern: series.Pattern}
	if a.measure(sets, between, defaultRestart); a.overlap() {
		return ""
	}
	return a.inSummary(between)
}

// minCheckpoints is how many checkpoints are needed to estimate the cost. The times of fewer ones are dominated by
// the start and the end of the job.
const minCheckpoints = 3

// withoutRank replaces the last number in the file's base name that equals the rank by a star.
func withoutRank(name string, rank int) string {
	dir, file := path.Split(name)
	digit := func(c rune) bool { return c >= '0' && c <= '9' }
	for end := len(file); end > 0; {
		last := strings.LastIndexFunc(file[:end], digit)
		if last < 0 {
			break
		}
		start := 1 + strings.LastIndexFunc(file[:last+1], func(c rune) bool { return !digit(c) })
		if n, err := strconv.Atoi(file[start : last+1]); err == nil && n == rank {
			return dir + file[:start] + "*" + file[last+1:]
		}
		end = start
	}
	return name
}
