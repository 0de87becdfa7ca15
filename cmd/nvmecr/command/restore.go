package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"nvmecr/drain"
	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

type restoreOptions struct {
	levelReader
	name     string
	from     string // a level, or "" for any
	together bool   // started by startRanks
	newer    bool   // started by a run that begins
	lost     bool   // started by newRebuild
}

func newRestore() *cobra.Command {
	o := &restoreOptions{}
	cmd := &cobra.Command{
		Use:   "restore [flags] [PATTERN]",
		Short: "Copy a checkpoint back into the store",
		Long: `Copies a checkpoint from its copies on other targets (--copies), or from the directory --level2,
into the store, the newest one unless --checkpoint names another. Every byte is compared with its checksum. Until all of a rank's files are
restored none of them counts as complete.

Outside of a job it starts a run of the store. In a job each rank copies its part:
mpirun -n 4 nvmecr restore ... copies from all hosts at once.`,
		Example: `  nvmecr restore --name melt --level2 /lustre/me
  nvmecr run --level2 /lustre/me -- sh -c 'mpirun -n 64 nvmecr restore && mpirun -n 64 ./app'`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			defer o.close()
			return o.restore(cmd, args)
		},
	}
	o.bind(cmd, "level2", "copies")
	cmd.Flags().StringVar(&o.name, "checkpoint", "", "the checkpoint `NAME`, as nvmecr checkpoints lists it [NVMECR_CHECKPOINT]")
	cmd.Flags().StringVar(&o.from, "from", "", "the `LEVEL` to copy from, copies or level2; either without it [NVMECR_FROM]")
	cli.AddSwitch(cmd.Flags(), &o.together, "together", "", "close the files when all ranks have written theirs")
	cli.AddSwitch(cmd.Flags(), &o.newer, "newer", "", "of each pattern copy what is newer than all that the store has")
	cli.AddSwitch(cmd.Flags(), &o.lost, "lost", "", "copy all that has been lost of checkpoints of which there are copies")
	for _, name := range []string{"together", "newer", "lost"} {
		_ = cmd.Flags().MarkHidden(name) // fails only for unknown flags
	}
	return cmd
}

func (o *restoreOptions) restore(cmd *cobra.Command, args []string) error {
	if err := o.cfg.Resolve(); err != nil {
		return cli.UsageError{Err: err}
	}
	if o.from != "" && o.from != levelCopies && o.from != levelSecond {
		return cli.UsageError{Err: fmt.Errorf("--from: %q is neither %s nor %s", o.from, levelCopies, levelSecond)}
	}
	o.stderr = cmd.ErrOrStderr()
	if os.Getenv(config.RunVariable) == "" {
		return o.startRun(cmd, args)
	}
	cfg, err := config.FromEnv(os.Getenv)
	if err != nil {
		return err
	}
	proc, err := store.ProcFromEnv(os.Getenv)
	if err != nil {
		return err
	}
	if o.together {
		return o.restorePart(cmd, cfg, proc, optionalArg(args))
	}
	if o.lost {
		return o.restoreLost(cmd, cfg, proc, optionalArg(args))
	}
	if o.newer {
		return o.restoreNewer(cmd, cfg, proc, optionalArg(args))
	}
	from, err := o.find(cmd, optionalArg(args))
	if err != nil {
		return err
	}
	if launched(proc) && o.nothingToDo(from) {
		return nil
	}
	if err := o.fetch(cmd.Context(), cfg, proc, from); err != nil || launched(proc) {
		return err
	}
	files, bytes := from.amount()
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s of %s copied from %s to store %q\n", printable(from.set.Name),
		count(files, "file"), size(bytes), printable(from.set.Dir), o.cfg.Name)
	return nil
}

// nothingToDo reports whether the store has the newest checkpoint, and the user has named neither a checkpoint nor a level to restore from.
func (o *restoreOptions) nothingToDo(from origin) bool {
	return from.inStore && o.name == "" && o.from == ""
}

// An origin is a copy of a checkpoint to restore from.
type origin struct {
	level string // a value of --from
	set   *drain.Set
	need  []int // indices of the files to restore; nil: all
	get   func(ctx context.Context, s *drain.Set, file int, w io.WriterAt, o drain.Options) error
	// inStore is true if the store has the checkpoint already. replaces is true if files of the store are to be replaced.
	inStore, replaces bool
}

// origins returns the copies of a checkpoint that --from permits, the fastest first.
func (o *restoreOptions) origins(c *drain.Checkpoint) (list []origin) {
	if c.Recoverable() && o.from != levelSecond {
		list = append(list, origin{level: levelCopies, set: c.Copied, need: append([]int{}, c.Need...), get: o.copies.Get})
	}
	if c.Drained != nil && o.from != levelCopies {
		from := origin{level: levelSecond, set: c.Drained, get: o.level.Get}
		if !c.InStore() && len(c.Lacking) < len(c.Drained.Files) {
			from.need = c.Lacking
		}
		list = append(list, from)
	}
	return list
}

// amount returns how many files and bytes are to be restored.
func (from origin) amount() (files int, bytes nvmf.Bytes) {
	if from.need == nil {
		return len(from.set.Files), nvmf.Bytes(from.set.Size())
	}
	for _, i := range from.need {
		bytes += nvmf.Bytes(from.set.Files[i].Size)
	}
	return len(from.need), bytes
}

// check reads the files that are to replace files of the store. If a file is damaged, the store keeps its own.
func (from origin) check(ctx context.Context, files []int) error {
	if !from.replaces {
		return nil
	}
	for _, i := range files {
		if from.need != nil && !slices.Contains(from.need, i) {
			continue
		}
		if err := from.get(ctx, from.set, i, nowhere{}, drain.Options{}); err != nil {
			return fmt.Errorf("%w; the store keeps what it has", err)
		}
	}
	return nil
}

// nowhere is an io.WriterAt that discards data.
type nowhere struct{}

func (nowhere) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

// fetch restores a checkpoint. A rank of a job restores its part; a process without a launcher starts all ranks.
func (o *restoreOptions) fetch(ctx context.Context, cfg *config.Config, proc store.Proc, from origin) error {
	if !launched(proc) {
		var all []int
		for i := range from.set.Files {
			all = append(all, i)
		}
		if err := from.check(ctx, all); err != nil {
			return err
		}
		if err := startRanks(ctx, from, o.stderr); err != nil {
			return err
		}
	}
	return o.share(ctx, cfg, proc, from)
}

// startRun starts a run of the store whose job is this command.
func (o *restoreOptions) startRun(cmd *cobra.Command, args []string) error {
	if err := o.locate(); err != nil {
		return err
	}
	from, err := o.find(cmd, optionalArg(args))
	if err != nil {
		return err
	}
	if o.nothingToDo(from) {
		fmt.Fprintf(cmd.OutOrStdout(), "%s: is in the store\n", printable(from.set.Name))
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if !o.cfg.Given("view") {
		o.cfg.View = viewOfSet(from.set)
	}
	run := &runOptions{cfg: o.cfg, stderr: o.stderr, oneLevel: true}
	if o.copies != nil { // the run opens the copy areas for writing
		_ = o.copies.close() // only read
		o.copies = nil
	}
	return run.run(cmd.Context(), append([]string{self, "restore", "--from", from.level, "--checkpoint", from.set.Name}, args...))
}

// viewOfSet returns the view of a store that the set can be restored to.
func viewOfSet(set *drain.Set) config.View {
	if set.Tree {
		return config.ViewJob
	}
	return config.ViewRank
}

// locate sets the levels to those of the store's last run, if no flag names any.
func (o *restoreOptions) locate() error {
	if o.requireAnyLevel() != nil {
		if _, err := locate(o.cfg); err != nil {
			return err
		}
	}
	return o.requireAnyLevel()
}

// find returns the checkpoint to restore.
func (o *restoreOptions) find(cmd *cobra.Command, pattern string) (from origin, err error) {
	if err := o.requireAnyLevel(); err != nil {
		return from, err
	}
	list, err := o.allLevels(cmd, pattern)
	if err != nil {
		return from, err
	}
	rewritten := map[*drain.Set]bool{}
	for i := range list { // ignore checkpoints without a copy
		for j := range list[i].Checkpoints {
			c := &list[i].Checkpoints[j]
			again := list[i].Rewritten(c)
			for _, from := range o.origins(c) {
				rewritten[from.set] = again
			}
		}
		list[i].Checkpoints = slices.DeleteFunc(list[i].Checkpoints, func(c drain.Checkpoint) bool { return len(o.origins(&c)) == 0 })
	}
	list = slices.DeleteFunc(list, func(s drain.Series) bool { return len(s.Checkpoints) == 0 })
	series, err := choose(list, "restore")
	if err != nil {
		return from, err
	}
	for i := len(series.Checkpoints) - 1; i >= 0; i-- {
		c := &series.Checkpoints[i]
		if o.name == "" || o.name == c.Name {
			from := o.origins(c)[0]
			from.inStore = c.InStore() && c.Complete()
			from.replaces = from.inStore || rewritten[from.set] || len(c.Replaced) > 0
			if from.replaces && !from.inStore && o.name == "" {
				return from, fmt.Errorf("%s: the store has files of these names with other content; --checkpoint %[1]s replaces them", c.Name)
			}
			return from, nil
		}
	}
	return from, fmt.Errorf("no checkpoint %s of %s outside of the store; `nvmecr checkpoints` lists those that there are", o.name, series.Pattern)
}

// launched reports whether a launcher has started the process, as a rank.
func launched(proc store.Proc) bool { return proc.From != "" }

// share restores this process's part of the set.
func (o *restoreOptions) share(ctx context.Context, cfg *config.Config, proc store.Proc, from origin) error {
	set := from.set
	if cfg.View != viewOfSet(set) {
		return fmt.Errorf("%s was written with --view=%s, and the store has --view=%s: use another --name, or start over with --fresh", set.Dir, viewOfSet(set), cfg.View)
	}
	var mine []int
	switch tree := cfg.View == config.ViewJob; {
	case tree && launched(proc):
		mine = set.Share(proc.Rank, proc.Size)
	case tree:
	case !launched(proc):
		mine = set.Of(-1)
	case proc.Size != set.Ranks:
		return fmt.Errorf("%s has private files of %s (--view=rank): restore it with as many ranks, not %d", set.Dir, count(set.Ranks, "rank"), proc.Size)
	default:
		mine = set.Of(proc.Rank)
	}
	if from.need != nil {
		mine = slices.DeleteFunc(mine, func(i int) bool { return !slices.Contains(from.need, i) })
	}
	if len(mine) == 0 {
		return o.await()
	}
	if launched(proc) && !o.together { // otherwise the files have been checked before
		if err := from.check(ctx, mine); err != nil {
			return err
		}
	}
	m, err := openMount(cfg, proc, lineLogger(o.stderr))
	if err != nil {
		return err
	}
	return errors.Join(o.write(ctx, m.FS, from, mine), m.Close())
}

// await waits until all ranks have written their files, if startRanks has started them.
func (o *restoreOptions) await() error {
	if !o.together {
		return nil
	}
	return waitForRanks()
}

// write restores files. They are closed, and so become complete, when all of them are written. If any fails, all are
// removed.
func (o *restoreOptions) write(ctx context.Context, files vfs.FS, from origin, mine []int) (err error) {
	set := from.set
	var open []vfs.File
	defer func() {
		for _, f := range open {
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			for _, i := range mine[:len(open)] {
				_ = files.Unlink(microfs.RootIno, set.Files[i].Path) // it is incomplete
				rmdirs(files, set.Files[i].Path, set.Name)
			}
		}
	}()
	for _, i := range mine {
		f, err := create(files, &set.Files[i])
		if err != nil {
			return fmt.Errorf("%s: %w", set.Files[i].Path, err)
		}
		open = append(open, f)
		to := writeBehind(storeWriter{f}, set.Files[i].Size)
		if err := errors.Join(from.get(ctx, set, i, to, drain.Options{}), to.Close()); err != nil {
			return err
		}
		at := microfs.SetAttr{Atime: &set.Files[i].Modified, Mtime: &set.Files[i].Modified}
		if err := errors.Join(f.Sync(), f.SetAttr(at)); err != nil {
			return fmt.Errorf("%s: %w", set.Files[i].Path, err)
		}
	}
	return o.await()
}

// rmdirs removes empty directories above a file whose name contains the name of the checkpoint.
func rmdirs(files vfs.FS, file, name string) {
	for dir := path.Dir(file); dir != "/" && strings.Contains(dir, name); dir = path.Dir(dir) {
		_ = files.Rmdir(microfs.RootIno, dir) // fails if another process still has files there
	}
}

// create creates a file of the set in the store, and the directories above it.
func create(files vfs.FS, f *drain.File) (vfs.File, error) {
	for i, c := range f.Path {
		if c == '/' && i > 0 {
			if err := files.Mkdir(microfs.RootIno, f.Path[:i], 0o777); err != nil && !errors.Is(err, syscall.EEXIST) {
				return nil, err
			}
		}
	}
	to, err := files.Open(microfs.RootIno, f.Path, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_TRUNC, uint32(f.Mode))
	if err != nil {
		return nil, err
	}
	if err := to.Truncate(f.Size); err != nil {
		return nil, errors.Join(err, to.Close())
	}
	return to, nil
}

// A storeWriter makes a vfs.File an io.WriterAt.
type storeWriter struct{ vfs.File }

// WriteAt writes all of p.
func (w storeWriter) WriteAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		m, err := w.File.WriteAt([][]byte{p[n:]}, off+int64(n))
		if err != nil {
			return n, fmt.Errorf("writing it to the store: %w", err) // the rest of the message names where it was read
		}
		n += m
	}
	return n, nil
}
