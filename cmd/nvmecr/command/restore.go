package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"nvmecr/drain"
	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/posixshim"
)

type restoreOptions struct {
	levelReader
	name     string
	together bool // started by startRanks
	newer    bool // started by a run that begins
}

func newRestore() *cobra.Command {
	o := &restoreOptions{}
	cmd := &cobra.Command{
		Use:   "restore [flags] [PATTERN]",
		Short: "Copy a checkpoint back from the parallel file system",
		Long: `Copies a checkpoint from the directory --level2 into the store, the newest one unless
--checkpoint says which. Every byte is compared with its checksum. Until all of a rank's files are
there none of them counts as complete.

Outside of a job it starts a run of the store for it. In a job each rank copies its part:
mpirun -n 4 nvmecr restore ... copies from all hosts at once.`,
		Example: `  nvmecr restore --name melt --level2 /lustre/me
  nvmecr run --level2 /lustre/me -- sh -c 'mpirun -n 64 nvmecr restore && mpirun -n 64 ./app'`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			defer o.close()
			return o.restore(cmd, args)
		},
	}
	o.bind(cmd, "level2")
	cmd.Flags().StringVar(&o.name, "checkpoint", "", "the checkpoint `NAME`, as nvmecr checkpoints lists it [NVMECR_CHECKPOINT]")
	cli.AddSwitch(cmd.Flags(), &o.together, "together", "", "close the files when all ranks have written theirs")
	cli.AddSwitch(cmd.Flags(), &o.newer, "newer", "", "of each pattern copy what is newer than all that the store has")
	for _, name := range []string{"together", "newer"} {
		_ = cmd.Flags().MarkHidden(name) // it is there
	}
	return cmd
}

func (o *restoreOptions) restore(cmd *cobra.Command, args []string) error {
	if err := o.cfg.Resolve(); err != nil {
		return cli.UsageError{Err: err}
	}
	o.stderr = cmd.ErrOrStderr()
	if os.Getenv(config.RunVariable) == "" {
		return o.inRun(cmd, args)
	}
	cfg, err := config.FromEnv(os.Getenv)
	if err != nil {
		return err
	}
	place, err := store.PlaceFromEnv(os.Getenv)
	if err != nil {
		return err
	}
	if o.newer {
		return o.restoreNewer(cmd, cfg, place, first(args))
	}
	set, err := o.find(first(args))
	if err != nil {
		return err
	}
	if err := o.fetch(cmd.Context(), cfg, place, set); err != nil || launched(place) {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s of %s copied from %s to store %q\n", printable(set.Name),
		count(len(set.Files), "file"), size(nvmf.Bytes(set.Size())), printable(set.Dir), o.cfg.Name)
	return nil
}

// fetch copies a set: as a rank its part, otherwise as all ranks.
func (o *restoreOptions) fetch(ctx context.Context, cfg *config.Config, place store.Place, set *drain.Set) error {
	if !launched(place) {
		if err := startRanks(ctx, set, o.stderr); err != nil {
			return err
		}
	}
	return o.share(ctx, cfg, place, set)
}

// inRun starts a run of the store whose job is this command.
func (o *restoreOptions) inRun(cmd *cobra.Command, args []string) error {
	if err := o.locate(); err != nil {
		return err
	}
	set, err := o.find(first(args))
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if !o.cfg.Given("view") {
		o.cfg.View = viewOfSet(set)
	}
	run := &runOptions{cfg: o.cfg, stderr: o.stderr, oneLevel: true}
	return run.run(cmd.Context(), append([]string{self, "restore", "--checkpoint", set.Name}, args...))
}

// viewOfSet is that of a store which a set is restored to.
func viewOfSet(set *drain.Set) config.View {
	if set.Tree {
		return config.ViewJob
	}
	return config.ViewRank
}

// locate finds out where the second level of the store is, if nobody has said it.
func (o *restoreOptions) locate() error {
	if o.cfg.Level2 == "" {
		if _, err := locate(o.cfg); err != nil {
			return err
		}
	}
	return o.levelNeeded()
}

// find returns the checkpoint that is meant.
func (o *restoreOptions) find(pattern string) (*drain.Set, error) {
	if err := o.levelNeeded(); err != nil {
		return nil, err
	}
	drained, err := o.drained()
	if err != nil {
		return nil, err
	}
	list := drain.Both(nil, drained, o.patternInside(pattern))
	series, err := choose(list, "restore")
	if err != nil {
		return nil, err
	}
	for i := len(series.Checkpoints) - 1; i >= 0; i-- {
		if c := &series.Checkpoints[i]; o.name == "" || o.name == c.Name {
			return c.Drained, nil
		}
	}
	return nil, fmt.Errorf("%s has no checkpoint %s of %s; `nvmecr checkpoints` lists those that it has", o.cfg.Level2, o.name, series.Pattern)
}

// launched says whether a launcher has started the process, as a rank.
func launched(place store.Place) bool { return place.From != "" }

// share copies this process's part of the set.
func (o *restoreOptions) share(ctx context.Context, cfg *config.Config, place store.Place, set *drain.Set) error {
	if cfg.View != viewOfSet(set) {
		return fmt.Errorf("%s was written with --view=%s, and the store has --view=%s: use another --name, or start over with --fresh", set.Dir, viewOfSet(set), cfg.View)
	}
	var mine []int
	switch tree := cfg.View == config.ViewJob; {
	case tree && launched(place):
		mine = set.Share(place.Rank, place.Size)
	case tree:
	case !launched(place):
		mine = set.Of(-1)
	case place.Size != set.Ranks:
		return fmt.Errorf("%s is of %s, with files of its own for each: restore it with as many, not %d", set.Dir, count(set.Ranks, "rank"), place.Size)
	default:
		mine = set.Of(place.Rank)
	}
	if len(mine) == 0 {
		return o.await()
	}
	m, err := openInRun(cfg, place, sayer(o.stderr))
	if err != nil {
		return err
	}
	return errors.Join(o.write(ctx, m.FS, set, mine), m.Close())
}

// await returns when all have written their files, where that is known.
func (o *restoreOptions) await() error {
	if !o.together {
		return nil
	}
	return together()
}

// write copies files. They are closed, and so complete, when the last one is there; if that cannot be, none stays.
func (o *restoreOptions) write(ctx context.Context, files posixshim.FS, set *drain.Set, mine []int) (err error) {
	var open []posixshim.File
	defer func() {
		for _, f := range open {
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			for _, i := range mine[:len(open)] {
				_ = files.Unlink(microfs.RootIno, set.Files[i].Path) // it is not whole
			}
		}
	}()
	for _, i := range mine {
		f, err := create(files, &set.Files[i])
		if err != nil {
			return fmt.Errorf("%s: %w", set.Files[i].Path, err)
		}
		open = append(open, f)
		if err := o.level.Get(ctx, set, i, storeWriter{f}, drain.Options{}); err != nil {
			return err
		}
		at := microfs.SetAttr{Atime: &set.Files[i].Modified, Mtime: &set.Files[i].Modified}
		if err := errors.Join(f.Sync(), f.SetAttr(at)); err != nil {
			return fmt.Errorf("%s: %w", set.Files[i].Path, err)
		}
	}
	return o.await()
}

// create opens a file of the store for what the set has of it, with the directories above it.
func create(files posixshim.FS, f *drain.File) (posixshim.File, error) {
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

// A storeWriter is an io.WriterAt.
type storeWriter struct{ posixshim.File }

// WriteAt writes all of p.
func (w storeWriter) WriteAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		m, err := w.File.WriteAt([][]byte{p[n:]}, off+int64(n))
		if err != nil {
			return n, err
		}
		n += m
	}
	return n, nil
}
