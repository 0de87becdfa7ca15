package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/processfs"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// readerSettings are the settings that are needed to find a store.
var readerSettings = []string{"name", "target", "mount", "timeout", "hostnqn", "dhchap-secret", "dhchap-ctrl-secret", "tls-psk", "driver", "header-digest", "data-digest"}

// reader is the common part of commands that read a store. They read acknowledged data, also while the job runs and
// after it died, and change nothing.
//
// An error of one rank or file does not hide the others: it is reported on stderr at once, and the command ends with
// a failure.
type reader struct {
	cfg           *config.Config
	rank          int         // or allRanks, or parttable.Singleton
	size          int         // number of ranks of the job that wrote the store
	singleton     bool        // the store has a singleton partition
	tree          bool        // the store has one tree for all ranks
	areas         bool        // the targets have copy areas
	targetOf      map[int]int // target of each partition, by rank
	stderr        io.Writer
	lowerPriority func() // called by goroutines that read ahead, before they begin; or nil

	failed  bool         // an error was reported
	away    bool         // a target cannot be reached
	broken  map[int]bool // ranks whose partitions cannot be read
	written int          // partitions that were mounted, in all calls of each
}

// bind adds the flags of a reader and those of more settings.
func (r *reader) bind(cmd *cobra.Command, more ...string) {
	r.cfg = config.Default()
	r.cfg.BindFlags(cmd.Flags(), append(slices.Clone(readerSettings), more...)...)
	r.rank = allRanks
	cmd.Flags().Var((*rankFlag)(&r.rank), "rank", "look at the partition of `RANK` only, or at the \"singleton\" partition, of job scripts, or at the \"index\" of a tree [NVMECR_RANK]")
}

// open finds the store and its partitions. It fails if the store was never written.
func (r *reader) open(cmd *cobra.Command) error {
	if err := r.find(cmd); err != nil {
		return err
	}
	ctx := cmd.Context()
	parts, err := store.Partitions(ctx, r.cfg)
	away := len(parts) > 0 && errors.Is(err, nvmf.ErrUnreachable)
	if err != nil && !away {
		return neverWritten(err, r.cfg.Name)
	}
	r.size = len(parts)
	if r.size > 0 { // trust the table: the record of the last run may be on another host
		r.cfg.View = config.View(parts[0].Tree.String())
	}
	r.tree = r.cfg.View == config.ViewJob
	r.targetOf = make(map[int]int, len(parts))
	for _, p := range parts {
		r.targetOf[p.Rank] = slices.Index(r.cfg.Targets, p.Target)
		r.areas = r.areas || p.Copies
	}
	if r.singleton = r.size > 0 && parts[r.size-1].Rank == parttable.Singleton; r.singleton {
		r.size--
	}
	if len(parts) > 0 { // a replaced target has no partitions
		r.size = max(r.size, parts[0].JobSize)
	}
	if r.away = away; away { // read the others
		r.fail(err)
		r.size = parts[0].JobSize
		if !r.ofTree() { // a tree is read as far as possible
			r.markUnreadable(parts)
		}
	}
	if r.rank == parttable.Singleton && !r.singleton {
		return cli.UsageError{Err: fmt.Errorf("store %q has only partitions of ranks, and none for job scripts and programs without a launcher", r.cfg.Name)}
	}
	if r.rank >= r.size {
		return cli.UsageError{Err: fmt.Errorf("store %q has no rank %d: it was written by %s, numbered from 0", r.cfg.Name, r.rank, count(r.size, "rank"))}
	}
	return nil
}

// markUnreadable marks ranks whose partitions are not among parts as unreadable.
func (r *reader) markUnreadable(parts []store.RankInfo) {
	there := map[int]bool{}
	for _, p := range parts {
		there[p.Rank] = true
	}
	for rank := range r.size {
		if !there[rank] {
			r.broken[rank] = true
		}
	}
}

// neverWritten explains the error that no target has a partition table.
func neverWritten(err error, name string) error {
	if errors.Is(err, parttable.ErrNoTable) {
		return fmt.Errorf("nothing was ever written to store %q: %w", name, err)
	}
	return err
}

// find completes the settings with the place of the store.
func (r *reader) find(cmd *cobra.Command) error {
	if r.broken = make(map[int]bool); r.stderr == nil {
		r.stderr = cmd.ErrOrStderr()
	}
	if err := r.cfg.Resolve(); err != nil {
		return cli.UsageError{Err: err}
	}
	local, err := locate(r.cfg)
	if err != nil || !local {
		return err
	}
	dir, err := store.FindStateDir(r.cfg.Name)
	if err != nil {
		return err
	}
	return dir.CheckImage()
}

// locate completes cfg with the targets that the last run of the store used. local reports whether that is the image
// in the store's state directory.
func locate(cfg *config.Config) (local bool, err error) {
	if cfg.Given("target") {
		return false, nil
	}
	names, err := store.StateDirs()
	if err != nil {
		return false, err
	}
	if !slices.Contains(names, cfg.Name) {
		known := "there are none; `nvmecr run` makes one"
		if len(names) > 0 {
			known = "there are: " + strings.Join(names, ", ")
		}
		return false, fmt.Errorf("no store %q on this host (%s); name its namespaces with --target if it was written elsewhere", cfg.Name, known)
	}
	dir, err := store.FindStateDir(cfg.Name)
	if err != nil {
		return false, err
	}
	record, err := dir.Load()
	if errors.Is(err, fs.ErrNotExist) {
		// The first run died before it recorded anything. Then there is at most the image.
		record, err = &store.Record{Embedded: true}, nil
	}
	if err != nil {
		return false, err
	}
	if err := cfg.Adopt(record.Settings); err != nil {
		return false, err
	}
	if record.Embedded {
		cfg.Targets = []nvmf.TransportID{{Transport: nvmf.File, Address: dir.Image()}}
	}
	return record.Embedded, nil
}

// ofTree reports whether the command reads the tree of the job, not partitions.
func (r *reader) ofTree() bool { return r.tree && r.rank == allRanks }

// ranks returns the ranks whose files the command reads. It is jobTree for a store with one tree, unless --rank names
// a partition.
func (r *reader) ranks() []int {
	if r.ofTree() {
		return []int{jobTree}
	}
	return r.partitions()
}

// partitions returns the ranks whose partitions the command reads.
func (r *reader) partitions() []int {
	if r.rank != allRanks {
		return []int{r.rank}
	}
	all := make([]int, r.size)
	for i := range all {
		all[i] = i
	}
	if r.singleton {
		all = append(all, parttable.Singleton)
	}
	return all
}

// mount opens the partition of a rank, or the tree, for reading. It returns nil if that was never written.
func (r *reader) mount(ctx context.Context, rank int) (*vfs.Mount, error) {
	m, err := r.openFiles(ctx, rank)
	if errors.Is(err, microfs.ErrUnformatted) || errors.Is(err, parttable.ErrNoTable) {
		return nil, nil
	}
	return m, err
}

func (r *reader) openFiles(ctx context.Context, rank int) (*vfs.Mount, error) {
	if rank == jobTree {
		return processfs.ReadTree(ctx, r.cfg, r.lowerPriority, func(format string, args ...any) { fmt.Fprintf(r.stderr, "nvmecr: "+format+"\n", args...) })
	}
	p, err := store.Open(ctx, r.cfg, store.Proc{Rank: rank, Size: r.size}, store.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	return &vfs.Mount{FS: vfs.Microfs(p.FS), Current: p.Current, Close: p.Close}, nil
}

// each calls f with the files of every rank that has some, or with the tree.
func (r *reader) each(ctx context.Context, f func(rank int, fs vfs.FS) error) {
	r.eachOf(ctx, r.ranks(), f)
}

func (r *reader) eachOf(ctx context.Context, ranks []int, f func(rank int, fs vfs.FS) error) {
	for _, rank := range ranks {
		if r.broken[rank] { // reported already
			continue
		}
		p, err := r.mount(ctx, rank)
		if err != nil {
			r.broken[rank] = true
			r.fail(fmt.Errorf("%s: %w", r.rankName(rank), err))
			if errors.Is(err, nvmf.ErrUnreachable) {
				return // each further rank would wait for the same time-out
			}
			continue
		}
		if p == nil {
			continue
		}
		r.written++
		if err := errors.Join(f(rank, p.FS), p.Close()); err != nil {
			r.fail(err)
		}
	}
}

// fail reports an error on one line. The command continues, and its exit status will be a failure.
func (r *reader) fail(err error) {
	r.failed = true
	r.warn(err)
}

// warn reports an error that does not change the exit status.
func (r *reader) warn(err error) {
	if !errors.As(err, new(cli.Status)) { // reported already
		fmt.Fprintln(r.stderr, cli.OneLine(err))
	}
}

// end returns the exit status of the command.
func (r *reader) end() error {
	if r.failed {
		return cli.Status(cli.Failure)
	}
	return nil
}

// missing returns the error that no rank has the file.
func (r *reader) missing(name string) error {
	switch {
	case r.failed:
		return r.end()
	case r.written == 0:
		return fmt.Errorf("nothing was ever written to store %q", r.cfg.Name)
	}
	if r.tree && r.rank != allRanks {
		return fmt.Errorf("%s: the partition of %s has no such file: a partition has parts of the files of the tree; leave --rank out to see the tree",
			name, r.rankName(r.rank))
	}
	if r.tree {
		return fmt.Errorf("%s: store %q has no such file; `nvmecr ls` shows what there is", name, r.cfg.Name)
	}
	return fmt.Errorf("%s: no rank of store %q has it; `nvmecr ls` shows what there is", name, r.cfg.Name)
}

// pathInStore returns the path of a file within a partition. The mount point may precede name, as the application sees it,
// or not.
func (r *reader) pathInStore(name string) string {
	clean := path.Clean("/" + name)
	if rest, ok := strings.CutPrefix(clean, r.cfg.Mount); ok && (rest == "" || rest[0] == '/') {
		return path.Clean("/" + rest)
	}
	return clean
}

// ranksWith returns the ranks that have the file.
func (r *reader) ranksWith(ctx context.Context, name string) ([]int, error) {
	var found []int
	r.each(ctx, func(rank int, files vfs.FS) error {
		_, err := files.Stat(microfs.RootIno, name, false)
		if err == nil {
			found = append(found, rank)
		}
		if errors.Is(err, syscall.ENOENT) {
			return nil
		}
		return r.explain(err, rank, name)
	})
	if len(found) == 0 {
		return nil, r.missing(name)
	}
	return found, nil
}

// explain adds rank and file to an error.
func (r *reader) explain(err error, rank int, name string) error {
	switch {
	case err == nil:
		return nil
	case rank == jobTree:
		return fmt.Errorf("%s: %w", name, err)
	}
	return fmt.Errorf("%s: %s: %w", r.rankName(rank), name, err)
}
