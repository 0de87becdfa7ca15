package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/proc"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

// sticky are the settings a run takes over from the last one of its name: what
// the data lies on and how to get there.
var sticky = []string{"target", "hostnqn", "header-digest", "data-digest"}

// lastWords is how long the target of a killed run may take to end.
const lastWords = 30 * time.Second

type runOptions struct {
	cfg    *config.Config
	stderr io.Writer
}

func newRun() *cobra.Command {
	o := &runOptions{cfg: config.Default()}
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a job on checkpoint storage of its own",
		Long: `Runs COMMAND, mostly a launcher, with nvmecr preloaded: what its processes
write under the mount goes to their rank's partition of the store. A later run
of the same name finds it again, also when this one is killed.

Without --target, and unless the last run of the name had one, the store is a
file under $XDG_STATE_HOME/nvmecr/NAME, served by a target of this command's
own that only processes of this host can reach.

The exit status is that of COMMAND; 1 or 2 if it could not be started.`,
		Example: `  nvmecr run -- mpirun -n 4 ./app
  nvmecr run --name melt --size 8G -- mpirun -n 4 lmp -in melt.in
  nvmecr run --target "trtype:TCP traddr:10.0.0.5 subnqn:nqn.2014-08.org.example:a ns:1" -- srun -n 64 ./app`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.stderr = cmd.ErrOrStderr()
			return o.run(cmd.Context(), args)
		},
	}
	o.cfg.BindFlags(cmd.Flags())
	// What follows COMMAND is COMMAND's.
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func (o *runOptions) run(ctx context.Context, argv []string) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := o.cfg.Resolve(); err != nil {
		return usageError{err}
	}
	library, err := findLibrary()
	if err != nil {
		return err
	}
	if _, err := findProgram(argv[0]); err != nil {
		return err
	}
	dir, err := store.OpenStateDir(o.cfg.Name)
	if err != nil {
		return err
	}
	lock, err := lockStore(dir)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	stop, err := o.prepare(ctx, dir, lock)
	if err != nil {
		return err
	}
	defer stop()

	code, err := runJob(carry(o.cfg, argv, environment(o.cfg, os.Environ(), library)))
	if err != nil {
		return err
	}
	if code != 0 {
		return statusError(code)
	}
	return nil
}

// lockStore takes the lock of dir. Where the run that had it was killed, its
// target still has it until everything is in the file: that is waited for.
func lockStore(dir *store.StateDir) (*store.DirLock, error) {
	for begin := time.Now(); ; {
		lock, err := dir.Lock()
		var locked *store.LockedError
		if !errors.As(err, &locked) || locked.PID == 0 || !proc.Ended(locked.PID) || time.Since(begin) > lastWords {
			return lock, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// prepare sees to it that every target is there and holds nothing but this
// store, and says so. stop ends what it started.
func (o *runOptions) prepare(ctx context.Context, dir *store.StateDir, lock *store.DirLock) (stop func(), err error) {
	if err := adopt(o.cfg, dir, sticky...); err != nil {
		return nil, err
	}
	stop = func() {}
	embedded := len(o.cfg.Targets) == 0
	where := ""
	if embedded {
		where = dir.Image()
		if err := o.makeImage(dir); err != nil {
			return nil, err
		}
		t, err := startEmbedded(o.cfg, dir, lock)
		if err != nil {
			return nil, err
		}
		stop = t.stop
		o.cfg.Targets = []nvmf.TransportID{t.id}
	}
	if err := o.check(ctx, dir, embedded, where); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

func (o *runOptions) check(ctx context.Context, dir *store.StateDir, embedded bool, where string) error {
	if o.cfg.Fresh {
		if err := store.Reset(ctx, o.cfg); err != nil {
			return err
		}
	}
	ranks, err := store.Ranks(ctx, o.cfg)
	if err != nil && !errors.Is(err, parttable.ErrNoTable) {
		return err
	}
	if where == "" {
		where = joinTargets(o.cfg.Targets)
	}
	o.announce(where, embedded, len(ranks))
	return dir.Record(o.cfg, embedded)
}

// announce prints the one line about where the data is.
func (o *runOptions) announce(where string, embedded bool, ranks int) {
	size := ""
	if embedded {
		size = o.cfg.Size.String() + " "
	}
	past := "new"
	if ranks > 0 {
		past = fmt.Sprintf("of %d ranks", ranks)
	}
	if ranks == 1 {
		past = "of 1 rank"
	}
	fmt.Fprintf(o.stderr, "nvmecr: store %q (%s) at %s: %sin %s\n", o.cfg.Name, past, o.cfg.Mount, size, where)
}

// makeImage makes the embedded target's backing file, or takes its size.
func (o *runOptions) makeImage(dir *store.StateDir) error {
	image := dir.Image()
	info, err := os.Stat(image)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && o.cfg.Fresh:
		// A new file: readers of the old one keep that.
		if err := os.Remove(image); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return createImage(image, o.cfg.Size)
	case err != nil:
		return err
	case o.cfg.Given("size") && nvmf.Bytes(info.Size()) != o.cfg.Size:
		return fmt.Errorf("store %q is %s large, --size says %s: leave --size out, start over with --fresh, or use another --name",
			o.cfg.Name, nvmf.Bytes(info.Size()), o.cfg.Size)
	}
	o.cfg.Size = nvmf.Bytes(info.Size())
	return nil
}

// adopt completes cfg with what the last run of the store recorded for the
// settings named.
func adopt(cfg *config.Config, dir *store.StateDir, names ...string) error {
	record, err := dir.Load()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if record.Embedded {
		return nil
	}
	values := make(map[string]string)
	for _, n := range names {
		if v, ok := record.Settings[n]; ok {
			values[n] = v
		}
	}
	return cfg.Adopt(values)
}
