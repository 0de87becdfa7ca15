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

// summaryTime is how long the end of a run looks at what there is: a store of some thousand files takes a few
// milliseconds, on a host of a hundred processes for each core a second. One that takes longer has no summary.
const summaryTime = 10 * time.Second

// summarize prints the last line of a run that began at begin and ended with status
// code, if there is one. What goes wrong in making it is not the run's.
func (o *runOptions) summarize(ctx context.Context, dir *store.StateDir, begin time.Time, code int) {
	if o.cfg.Given("log") && o.cfg.Log == config.LogError || slices.ContainsFunc(o.cfg.Targets, takesLong) {
		return
	}
	cfg := *o.cfg
	cfg.Driver = config.DriverGo
	record, err := dir.Load()
	embedded := err == nil && record.Embedded
	if embedded { // without a connection
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
		if line := f.line(&cfg, embedded, code); line != "" {
			fmt.Fprintln(o.stderr, line)
		}
		o.sayDegraded()
		if line := f.cost(o.cfg.MTBF, begin); line != "" {
			fmt.Fprintln(o.stderr, line)
		}
	case <-ctx.Done():
	}
}

// takesLong says that there is nothing to look at, or not before SPDK has started.
func takesLong(t nvmf.TransportID) bool { return t.Transport != nvmf.TCP && t.Transport != nvmf.File }

// line is what there is to say.
func (f *found) line(cfg *config.Config, embedded bool, code int) string {
	const unused = "nvmecr: nothing was %s under %s: does the program write there? What it is to keep has to go to that directory"
	switch {
	case f == nil:
	case f.files > 0:
		return fmt.Sprintf("nvmecr: store %q: %s of %s new or changed; %s", cfg.Name, count(f.files, "file"), size(f.bytes), f.newest())
	case code != 0, owner.Used(store.LockGroup(cfg.Run)): // what failed has said why
	case embedded:
		return fmt.Sprintf(unused, "opened", cfg.Mount)
	default: // ranks of other hosts, which may have read, do not tell
		return fmt.Sprintf(unused, "written", cfg.Mount)
	}
	return ""
}

// found is what a run has left.
type found struct {
	ranks  int // that have a partition
	files  int
	bytes  nvmf.Bytes
	last   complete             // the newest complete file
	shared map[string]*complete // by the name that all ranks have for it
	tree   []checkpoint.File    // where all ranks have one tree, also those from before the run
	job    checkpoint.Job       // that has written these
}

// complete is a file that its writer has closed, in so many ranks.
type complete struct {
	name  string
	rank  int
	ranks int
	since time.Time // of the last of them
}

// survey looks at what was changed since begin.
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
			continue // it has no names
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
			if err == nil && len(cfg.Targets) > 1 { // with one the index is lost, too
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
	if a.Mtime.After(f.last.since) && (rank != parttable.Singleton || len(f.shared) == 0) { // ranks come first
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
		if s.ranks == 0 || s.rank != rank { // ranks come one after the other
			s.ranks, s.rank = s.ranks+1, rank
		}
		if a.Mtime.After(s.since) {
			s.since = a.Mtime
		}
	}
}

// newest says which checkpoint is the newest that is whole: one that every rank has,
// by the same name or with its number in it, else the newest complete file.
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

// newestOfTree tells of the checkpoint of a tree that `nvmecr latest` finds: the files of all ranks, where each has one. "": it finds nothing
// that could be one.
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

// series is the one that the files of a tree are of; nil if there is none, or several could be meant.
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

// cost says what the checkpoints that a run has written in a tree have cost it, where there are enough of them.
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
		if s := &series.Sets[i]; s.Complete() && s.Begun().After(begin) {
			sets = append(sets, s)
		}
	}
	if len(sets) < fewestCheckpoints {
		return ""
	}
	between, _ := parseSpan(mtbf) // which was checked; 0 without one
	a := &advice{Pattern: series.Pattern}
	if a.measure(sets, between, defaultRestart); a.overlap() {
		return ""
	}
	return a.inSummary(between)
}

// fewestCheckpoints are needed to say what one costs: of fewer the times tell more of the start and the end of the job.
const fewestCheckpoints = 3

// withoutRank has a star for the last number in the file's own name that is the rank's.
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
