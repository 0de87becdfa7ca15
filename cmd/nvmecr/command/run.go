package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"nvmecr/drain"
	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/parttable"
	"nvmecr/internal/preload"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

// targetSettings are the settings that a run adopts from the last run of its name: the targets, and how to connect to them.
var targetSettings = []string{"target", "hostnqn", "dhchap-secret", "dhchap-ctrl-secret", "tls-psk", "header-digest", "data-digest"}

// levelSettings are adopted whatever the targets are.
var levelSettings = []string{"level2", "level2-every", "level2-pattern", "compress", "incremental", "copies", "copies-sync"}

// formatSettings are the settings that cannot change after formatting.
var formatSettings = []string{"hugeblock", "data-checksum", "view"}

// targetExit is how long the target of a killed run may take to end. It has nothing to write: acknowledged data is in
// the file.
const targetExit = 30 * time.Second

type runOptions struct {
	cfg       *config.Config
	stderr    io.Writer
	formatted map[string]string // the recorded values of fixed; empty for a new store
	namespace bool              // the command has executed itself in a user namespace
	external  bool              // the targets outlive the run
	index     *os.File          // socket at which other hosts reach the index of the tree; nil if there is none
	recorded  map[string]string // the recorded settings of the last run
	lease     *store.Lease      // nil on the embedded target, and if the run has joined another one
	oneLevel  bool              // only the job copies from and to other levels
	rebuilds  bool              // the job of the run restores files from copies
	step      bool              // Slurm starts the processes, as tasks of a step
	locked    error             // why the run does not have the lock of the state directory; nil if it has
	joined    bool              // the run is part of another run of the job, which has the lease
}

func newRun() *cobra.Command {
	o := &runOptions{cfg: config.Default()}
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a job on checkpoint storage of its own",
		Long: `Runs COMMAND, mostly a launcher, with nvmecr preloaded: files that its processes
write under the mount go to the partition of their rank in the store. A later run
of the same name finds them, also when this one is killed.

Without --target, and unless the last run of the name had one, the store is a
file under $XDG_STATE_HOME/nvmecr/NAME, served by an embedded target
that only processes of this host can reach.

The exit status is that of COMMAND; 1 or 2 if it could not be started.`,
		Example: `  nvmecr run -- mpirun -n 4 ./app
  nvmecr run --name melt --size 8G -- mpirun -n 4 lmp -in melt.in
  nvmecr run --target "trtype:TCP traddr:10.0.0.5 subnqn:nqn.2014-08.org.example:a ns:1" -- srun -n 64 ./app`,
		Args: cli.Args(func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no COMMAND to run: nvmecr run [flags] -- COMMAND [ARGUMENT...]")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.stderr = cmd.ErrOrStderr()
			return o.run(cmd.Context(), args)
		},
	}
	o.cfg.BindFlags(cmd.Flags())
	// Flags behind COMMAND are for COMMAND.
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func (o *runOptions) run(ctx context.Context, argv []string) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := o.cfg.Resolve(); err != nil {
		return cli.UsageError{Err: err}
	}
	if o.cfg.Job == "" {
		o.cfg.Job = launchedJob(os.Getenv)
	}
	if err := checkCommand(argv, os.Getenv, o.cfg.Job != ""); err != nil {
		return err
	}
	library, err := preload.Library()
	if err != nil {
		return err
	}
	program, err := findProgram(argv[0], mayMountAt(o.cfg))
	if _, e := config.ParseSwitch(argv[0]); err != nil && e == nil {
		return cli.UsageError{Err: fmt.Errorf("%w; to give a switch a value write --SWITCH=%s", err, argv[0])}
	}
	if err != nil {
		return err
	}
	if err := o.checkMounts(program, library); err != nil {
		return err
	}
	dir, err := store.OpenStateDir(o.cfg.Name)
	if err != nil {
		return err
	}
	if err := o.enterNamespace(dir); err != nil {
		return err
	}
	code, err := o.withStore(ctx, dir, argv, func() (int, error) {
		jobArgv, env := preload.Propagate(o.cfg, argv, preload.Environ(o.cfg, os.Environ(), library))
		at := surroundings{unprivileged: o.namespace}
		mountAt(&at, o.cfg)
		return o.runDrained(jobArgv, env, at)
	})
	if err != nil {
		return err
	}
	if code != 0 {
		return cli.Status(code)
	}
	return nil
}

// withStore prepares the store, calls job, and closes the store again. It returns the status of the job. argv is the
// command of the job; nil if there is none.
func (o *runOptions) withStore(ctx context.Context, dir *store.StateDir, argv []string, job func() (int, error)) (int, error) {
	lock, err := lockStore(dir)
	switch {
	case err == nil:
		defer lock.Unlock()
	case !o.leaseDecides(dir, err):
		return 0, err
	}
	o.locked = err
	defer func() {
		// Remove the directory of a store that could not be created.
		if dir.Made && !dir.Recorded() {
			_ = dir.Remove()
		}
	}()
	stop, err := o.prepare(ctx, dir, lock, argv)
	if err != nil {
		return 0, err
	}
	defer stop()
	leaveLevel2, err := o.takeLevel2(ctx)
	if err != nil {
		return 0, err
	}
	defer leaveLevel2()
	leave, err := o.serve()
	if err != nil {
		return 0, err
	}
	defer leave()
	if o.lease != nil && o.cfg.Job != "" { // other runs of the job can read the secret of the run from the targets now
		o.lease.Open(o.cfg)
	}
	begin := time.Now()
	code, err := job()
	if err == nil && !o.joined {
		o.summarize(ctx, dir, begin, code)
	}
	return code, err
}

// runDrained is runJob with copies and a second level: the newest checkpoint is restored before the job begins, and
// the checkpoints of the job are copied.
func (o *runOptions) runDrained(argv, env []string, at surroundings) (int, error) {
	if err := o.stage(env, at); err != nil {
		return 0, err
	}
	d, err := o.startDrainer()
	if err != nil {
		return 0, err
	}
	defer d.finish()
	defer d.copyOnSignal()()
	return runJob(argv, env, at)
}

// serve starts nvmecr serve for the processes of the run on this host, unless another run of the job has started it
// here. leave ends it.
func (o *runOptions) serve() (leave func(), err error) {
	group := store.LockGroup(o.cfg.Run)
	if o.joined && owner.InUse(group) {
		return func() {}, joinServeProcess(o.cfg)
	}
	if err := owner.Prepare(group); err != nil {
		return nil, err
	}
	s, err := o.startSupervisor()
	if err != nil {
		owner.RemoveGroup(group)
		return nil, err
	}
	return func() {
		last, lingers := s.stop()
		switch {
		case lingers && o.cfg.Job != "" && !o.joined: // other runs of the job still need the lease
			<-last.ended
			owner.RemoveGroup(group)
		case lingers:
			owner.EndRun(group)
		default:
			owner.RemoveGroup(group)
		}
	}, nil
}

// leaseDecides reports whether a run may continue without the lock of dir, because the lease on the targets decides
// which run has the store. Hosts can share dir by a network file system. Then the lock would stop a run that takes
// the store over, and a run on another host after the crash of the first.
func (o *runOptions) leaseDecides(dir *store.StateDir, err error) bool {
	if !errors.As(err, new(*store.LockedError)) {
		return false
	}
	if o.cfg.Job != "" { // another run of the job has the lock; the lease decides which of the two writes
		return true
	}
	record, err := dir.Load()
	return err == nil && !record.Embedded && (len(o.cfg.Targets) == 0 || o.sameTargets(record))
}

// sameTargets reports whether the settings name the targets of the record.
func (o *runOptions) sameTargets(record *store.Record) bool {
	if record.Embedded {
		return len(o.cfg.Targets) == 0
	}
	return record.Settings["target"] == o.cfg.Values()["target"]
}

// lockStore takes the lock of dir. After a run was killed, its embedded target holds the lock until it ends, which
// takes a moment; lockStore waits for that.
func lockStore(dir *store.StateDir) (*store.DirLock, error) {
	for begin := time.Now(); ; {
		lock, err := dir.Lock()
		var locked *store.LockedError
		if !errors.As(err, &locked) || !locked.Outlived() {
			return lock, err
		}
		if time.Since(begin) > targetExit {
			return nil, fmt.Errorf("store %q: its last run, process %d, was killed, and the target of that run has not ended (stopped, perhaps: see `pgrep -af 'nvmecr target'`): continue it with kill -CONT, or kill it; acknowledged data is kept",
				locked.Name, locked.Holder.PID)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// prepare checks that every target can be reached and contains nothing but this store, and announces the store. stop
// ends what prepare has started.
func (o *runOptions) prepare(ctx context.Context, dir *store.StateDir, lock *store.DirLock, argv []string) (stop func(), err error) {
	if err := o.adopt(dir); err != nil {
		return nil, err
	}
	if err := checkLevel2(o.cfg); err != nil {
		return nil, err
	}
	if err := checkCopies(o.cfg); err != nil {
		return nil, err
	}
	embedded := len(o.cfg.Targets) == 0
	o.external = !embedded
	if embedded {
		if err := o.prepareImage(dir, argv); err != nil {
			return nil, err
		}
	}
	stop = func() {}
	if !embedded {
		asked := o.cfg.View
		if o.lease, err = store.TakeOrJoin(ctx, o.cfg, lineLogger(o.stderr)); err != nil {
			return nil, err
		}
		if o.joined = o.lease == nil; o.joined {
			return stop, o.announceJoined(asked)
		}
		stop = o.lease.End
		if o.locked != nil && o.cfg.Job == "" && !o.lease.Whole() {
			stop()
			return nil, o.locked
		}
	}
	ranks, err := o.check(ctx)
	if err != nil {
		stop()
		return nil, err
	}
	where := joinTargets(o.cfg.Targets)
	if embedded {
		where = dir.Image()
		if stop, err = o.serveImage(dir, lock); err != nil {
			return nil, err
		}
	}
	o.announce(where, embedded, ranks)
	if lock != nil { // otherwise another run of the job has the lock and records the same
		err = o.record(dir, embedded)
	}
	if err == nil {
		o.index, err = listenForTree(o.cfg)
	}
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// announceJoined prints that the run has joined another one. It refuses a --view that differs from that of the other
// run.
func (o *runOptions) announceJoined(asked config.View) error {
	if o.cfg.Given("view") && asked != o.cfg.View {
		return fmt.Errorf("--view=%s: job %q has store %q open with --view=%s already; leave --view out, or say it where the job begins (in a job of Slurm: NVMECR_VIEW=%[1]s sbatch ...)",
			asked, o.cfg.Job, o.cfg.Name, o.cfg.View)
	}
	if o.step { // runs on many nodes; the first one has announced the store
		return nil
	}
	fmt.Fprintf(o.stderr, "nvmecr: store %q at %s: joined job %q\n", o.cfg.Name, o.cfg.Mount, o.cfg.Job)
	return nil
}

// checkEmbedded refuses runs that the embedded target cannot serve.
func (o *runOptions) checkEmbedded(dir *store.StateDir, argv []string) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	if err := checkHosts(argv, os.Getenv, host); err != nil {
		return err
	}
	if dir.Made && !o.cfg.Fresh {
		return checkRequeued(o.cfg.Name, dir.Path, os.Getenv)
	}
	return nil
}

// check prepares the targets and returns the ranks that have partitions on them.
func (o *runOptions) check(ctx context.Context) ([]store.RankInfo, error) {
	if err := o.checkShared(); err != nil {
		return nil, err
	}
	if err := o.checkFresh(); err != nil {
		return nil, err
	}
	if o.cfg.Fresh {
		if err := store.Reset(ctx, o.cfg); err != nil {
			return nil, err
		}
	}
	ranks, err := store.Ranks(ctx, o.cfg)
	areas := errors.Is(err, store.ErrOnlyCopies) || slices.ContainsFunc(ranks, func(i store.RankInfo) bool { return i.Copies })
	if errors.Is(err, parttable.ErrNoTable) {
		ranks, err = nil, nil
	}
	if err == nil && areas && (o.rebuilds || !o.told("copies")) {
		err = o.adoptCopies(ctx)
	}
	if err == nil {
		err = store.ResolveMapping(o.cfg, ranks)
	}
	if err == nil && len(ranks) > 0 {
		err = o.checkFixed(ranks[0])
	}
	if err == nil && o.cfg.Copies != config.CopiesNone {
		err = store.MakeCopyAreas(ctx, o.cfg)
	}
	return ranks, err
}

// checkShared refuses --view=job on targets that one process only can open: other processes could not read their
// data. If the view is not given it becomes that of ranks.
func (o *runOptions) checkShared() error {
	private := func(t nvmf.TransportID) bool { return t.Transport == nvmf.Mem || t.Transport == nvmf.PCIe }
	i := slices.IndexFunc(o.cfg.Targets, private)
	switch {
	case i < 0 || o.cfg.View != config.ViewJob:
		return nil
	case o.cfg.Given("view"):
		return fmt.Errorf("--view=job: target %s can be opened by one process only, and one tree needs a target that all processes reach: serve it with nvmecr target and name that target, or leave --view out", o.cfg.Targets[i])
	}
	o.cfg.View = config.ViewRank
	return nil
}

// record records the targets in the state directory, unless they end with their processes.
func (o *runOptions) record(dir *store.StateDir, embedded bool) error {
	for _, t := range o.cfg.Targets {
		if t.Transport == nvmf.Mem {
			fmt.Fprintln(o.stderr, "nvmecr: mem: is memory of each process: what is written there is gone when the process ends, and nothing is recorded")
			return nil
		}
	}
	return dir.Record(o.cfg, embedded)
}

// checkFixed refuses settings that differ from those that the store was formatted with.
func (o *runOptions) checkFixed(found store.RankInfo) error {
	const remedy = "that was fixed when it was formatted: leave --%s out, start over with --fresh, or use another --name"
	if o.cfg.Given("hugeblock") && o.cfg.Hugeblock != found.Hugeblock {
		return fmt.Errorf("store %q has hugeblocks of %s, --hugeblock says %s; "+remedy, o.cfg.Name, found.Hugeblock, o.cfg.Hugeblock, "hugeblock")
	}
	o.cfg.Hugeblock = found.Hugeblock
	view := config.View(found.Tree.String())
	if o.cfg.Given("view") && o.cfg.View != view {
		return fmt.Errorf("store %q has --view=%s, now it is to be %s; "+remedy, o.cfg.Name, view, o.cfg.View, "view")
	}
	o.cfg.View = view
	if o.cfg.Copies != config.CopiesNone && !found.Copies {
		return fmt.Errorf("store %q was formatted without a copy area; leave --copies out, or use another --name; or copy out what is needed (nvmecr cp), and start over with --fresh", o.cfg.Name)
	}
	const sums = "data-checksum"
	if now := o.cfg.Values()[sums]; o.cfg.Given(sums) && o.formatted[sums] != "" && o.formatted[sums] != now {
		return fmt.Errorf("store %q has --data-checksum=%s, now it is to be %s; "+remedy, o.cfg.Name, o.formatted[sums], now, sums)
	}
	return nil
}

// announce prints the line about the place of the store, and a warning if ranks have lost their partitions.
func (o *runOptions) announce(where string, embedded bool, ranks []store.RankInfo) {
	size := ""
	if embedded {
		size = o.cfg.Size.String() + " "
	}
	past := "new"
	if len(ranks) > 0 {
		past = "of " + count(len(ranks), "rank")
	}
	fmt.Fprintf(o.stderr, "nvmecr: store %q (%s) at %s: %sin %s\n", o.cfg.Name, past, o.cfg.Mount, size, where)
	if missing := store.Missing(ranks); len(missing) > 0 {
		fmt.Fprintf(o.stderr, "nvmecr: store %q: no target has the partitions of %d of %d ranks (the first is rank %d): either they have written nothing, or their target was lost and replaced, and what they wrote is left only in copies and on a second level\n",
			o.cfg.Name, len(missing), ranks[0].JobSize, missing[0])
	}
}

// adopt completes the settings with those that the last run recorded: the sticky ones, and, if the targets are the
// same, the fixed ones.
func (o *runOptions) adopt(dir *store.StateDir) error {
	record, err := dir.Load()
	if errors.Is(err, fs.ErrNotExist) {
		o.cfg.Run, err = store.NewRun(uuid.Nil)
		return err
	}
	if err != nil {
		return err
	}
	if o.cfg.Run, err = store.NewRun(record.Run); err != nil {
		return err
	}
	o.recorded = record.Settings
	if err := o.cfg.Adopt(selectSettings(record.Settings, levelSettings)); err != nil {
		return err
	}
	if !record.Embedded {
		if err := o.cfg.Adopt(selectSettings(record.Settings, targetSettings)); err != nil {
			return err
		}
	}
	if !o.sameTargets(record) || o.cfg.Fresh {
		return nil
	}
	o.formatted = selectSettings(record.Settings, formatSettings)
	return o.cfg.Adopt(o.formatted)
}

// told reports whether the user has given a setting, for this run or for the last run of the store.
func (o *runOptions) told(setting string) bool {
	_, recorded := o.recorded[setting]
	return recorded || o.cfg.Given(setting)
}

// adoptCopies takes the setting for copies from the copies on the targets, for a store whose last run was on another host. Otherwise a
// target that was replaced would be formatted without a copy area, and the files lost with the old one would not be restored.
func (o *runOptions) adoptCopies(ctx context.Context) error {
	if o.cfg.Copies != config.CopiesNone || o.cfg.CopiesSync || len(o.cfg.Targets) < 2 {
		return nil
	}
	areas := openCopies(ctx, o.cfg, true, func(error) {}) // the drainer opens the areas again and prints errors
	sets, _ := areas.Sets()                               // errors are about damaged sets
	if err := areas.close(); err != nil {
		return err
	}
	o.cfg.Copies = config.CopiesPartner
	var newest time.Time
	for i := range sets {
		if s := &sets[i]; s.Drained.After(newest) {
			newest = s.Drained
			if o.cfg.Copies = config.CopiesPartner; s.Code != (drain.Code{}) {
				o.cfg.Copies = config.Copies(s.Code.String())
			}
		}
	}
	return checkShards(o.cfg)
}

// selectSettings returns the values of the named settings.
func selectSettings(settings map[string]string, names []string) map[string]string {
	values := make(map[string]string)
	for _, n := range names {
		if v, ok := settings[n]; ok {
			values[n] = v
		}
	}
	return values
}

func joinTargets(targets []nvmf.TransportID) string {
	var s []string
	for _, t := range targets {
		s = append(s, t.String())
	}
	return strings.Join(s, ", ")
}
