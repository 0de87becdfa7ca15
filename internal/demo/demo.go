package demo

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvmecr/checkpoint"
	"nvmecr/internal/config"
	"nvmecr/nvmf"
)

//go:embed melt.in
var melt string

// The job: LAMMPS on this many ranks, with this number of steps.
const (
	ranks = 4
	steps = 1200
	name  = "demo" // name of the store
)

// work is the size of the job: a box of 4*cells^3 atoms, and a checkpoint in every so many steps.
type work struct{ cells, every int }

var (
	shown = work{cells: 20, every: 200}
	// brief takes a third of the time. It has more intervals, so that the job is killed as many seconds before its
	// end.
	brief = work{cells: 14, every: 100}
)

// restarts is the pattern of the files of "restart N melt.*.%" in LAMMPS.
const restarts = "melt.{step}.*"

// Options of the demonstration.
type Options struct {
	Nvmecr string // the command
	Seed   int64  // of the random instant
	// Target is the transport id of a namespace of another target,
	// whose content is overwritten; "" for the one that nvmecr brings along.
	Target string
	// Brief asks for a smaller job, for tests.
	Brief bool
	// Env has additional variables of all processes, for tests.
	Env []string
}

// demonstration is one run of the demonstration.
type demonstration struct {
	*Stage
	work
	out    io.Writer
	random *rand.Rand
	target string         // Options.Target
	cfg    *config.Config // for reading the store from outside
}

// Run runs the demonstration and prints its steps on out. It fails if a result differs from the undisturbed run. It
// leaves nothing behind, also when ctx ends.
func Run(ctx context.Context, out io.Writer, o Options) (err error) {
	for _, program := range []string{"lmp", launcher()} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("the demonstration needs LAMMPS (lmp) and OpenMPI's mpirun: %w; on Debian, `make deps` installs both", err)
		}
	}
	stage, err := NewStage(o.Nvmecr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stage.Close()) }()
	stage.Env = o.Env
	cfg, err := stage.Config(name)
	if o.Target != "" {
		cfg = config.Default()
		err = errors.Join(cfg.Set("name", name), cfg.Set("target", o.Target))
	}
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(stage.Dir, "melt.in"), []byte(melt), 0o600); err != nil {
		return err
	}
	d := &demonstration{
		Stage: stage, work: shown, out: out, cfg: cfg, target: o.Target,
		random: rand.New(rand.NewPCG(uint64(o.Seed), 0)),
	}
	if o.Brief {
		d.work = brief
	}
	d.say("LAMMPS, Lennard-Jones melt of %d atoms on %d ranks, %d steps, a checkpoint every %d. Seed %d.",
		4*d.cells*d.cells*d.cells, ranks, steps, d.every, o.Seed)
	return d.tell(ctx)
}

func (d *demonstration) say(format string, args ...any) {
	fmt.Fprintf(d.out, format+"\n", args...)
}

func (d *demonstration) tell(ctx context.Context) error {
	reference, err := d.undisturbed(ctx)
	if err != nil {
		return fmt.Errorf("undisturbed run: %w", err)
	}
	before, err := d.killed(ctx)
	if err != nil {
		return fmt.Errorf("run to be killed: %w", err)
	}
	all, err := Survey(ctx, d.cfg, ranks, restarts)
	if err != nil {
		return fmt.Errorf("reading the store after the kill: %w", err)
	}
	d.sayCheckpoints(all)
	from, ok := checkpoint.Newest(all)
	if !ok {
		return errors.New("no checkpoint is complete in every rank")
	}
	step, err := strconv.Atoi(from.Name)
	if err != nil {
		return err
	}
	after, err := d.restarted(ctx, from, step)
	if err != nil {
		return fmt.Errorf("restart from step %d: %w", step, err)
	}
	return d.judge(reference, before, after, step)
}

// launcher returns Debian's name for the mpirun of LAMMPS, or the name on other systems.
func launcher() string {
	if _, err := exec.LookPath("mpirun.openmpi"); err == nil {
		return "mpirun.openmpi"
	}
	return "mpirun"
}

// lammps is a command line of the melt.
func (w work) lammps(dir string, from int) []string {
	return MPIRun(launcher(), ranks, "lmp", "-in", "melt.in", "-log", "none",
		"-var", "dir", dir, "-var", "from", fmt.Sprint(from), "-var", "cells", fmt.Sprint(w.cells),
		"-var", "every", fmt.Sprint(w.every), "-var", "steps", fmt.Sprint(steps))
}

// undisturbed runs the job without nvmecr, as a reference.
func (d *demonstration) undisturbed(ctx context.Context) (Thermo, error) {
	dir := filepath.Join(d.Dir, "undisturbed")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	job, err := d.Start(d.lammps(dir, 0))
	if err != nil {
		return nil, err
	}
	if err := job.Wait(ctx); err != nil {
		return nil, err
	}
	d.say("\n1. Undisturbed, without nvmecr, checkpoints in a local directory: %.1f s.", time.Since(job.Started).Seconds())
	return readThermo(job.Stdout.Lines()), os.RemoveAll(dir)
}

// killed starts the job under nvmecr and kills it. It returns its output.
func (d *demonstration) killed(ctx context.Context) (Thermo, error) {
	flags, where, killed := []string{"--size", "256M"}, d.Image(name), "ranks, mpirun, nvmecr and its target"
	if d.target != "" {
		flags, where, killed = []string{"--target", d.target}, d.target, "ranks, mpirun and nvmecr, not the target"
	}
	job, err := d.Start(append(d.RunFlags(name, flags...), d.lammps("/nvmecr", 0)...))
	if err != nil {
		return nil, err
	}
	d.say("\n2. The same under `nvmecr run`, checkpoints under /nvmecr, one tree for all ranks: each writes into its partition of\n   %s.", where)
	known, err := d.awaitInstant(ctx, job)
	if err != nil {
		return nil, err
	}
	at := time.Since(job.Started)
	n, err := d.Kill(known...)
	if err != nil {
		return nil, err
	}
	d.say("   After %.3f s all of it is killed (SIGKILL): %s, %d processes.", at.Seconds(), killed, n)
	return readThermo(job.Stdout.Lines()), nil
}

// awaitInstant waits for two complete checkpoints, then for a random time
// within the next interval, then for a checkpoint to be under way, but no
// longer than one more interval. It returns the processes to kill.
func (d *demonstration) awaitInstant(ctx context.Context, job *Job) ([]int, error) {
	var all []checkpoint.Set
	for complete := 0; complete < 2; {
		if err := d.look(ctx, job, 20*time.Millisecond, &all); err != nil {
			return nil, err
		}
		complete = Complete(all)
	}
	interval := all[1].Begun().Sub(all[0].Begun())
	random := time.Duration(d.random.Int64N(int64(interval)))
	if err := sleep(ctx, random); err != nil {
		return nil, err
	}
	if err := d.look(ctx, job, 0, &all); err != nil {
		return nil, err
	}
	known := d.Processes()
	last := all[len(all)-1]
	for begin := time.Now(); last.Complete() && !d.begun(ctx, last.Name) && time.Since(begin) < interval*5/4; {
		if err := sleep(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
	if job.Ended() {
		return nil, fmt.Errorf("it ended before it could be killed: %w", job.Wait(ctx))
	}
	return known, nil
}

// begun reports whether a checkpoint has been begun after the one of step.
func (d *demonstration) begun(ctx context.Context, step string) bool {
	sets, err := Survey(ctx, d.cfg, ranks, restarts)
	if err != nil {
		return false // changed meanwhile
	}
	at := slices.IndexFunc(sets, func(s checkpoint.Set) bool { return s.Name == step })
	return at >= 0 && at < len(sets)-1
}

// look lists the checkpoints while the job runs, after a pause. It tries again if the store is not formatted yet, or
// changes while it is read.
func (d *demonstration) look(ctx context.Context, job *Job, pause time.Duration, all *[]checkpoint.Set) error {
	for {
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		found, err := Survey(ctx, d.cfg, ranks, restarts)
		if err == nil && len(found) > 0 {
			*all = found
			return nil
		}
		if job.Ended() {
			return fmt.Errorf("it ended before it could be killed: %w", errors.Join(err, job.Wait(ctx)))
		}
	}
}

func (d *demonstration) sayCheckpoints(all []checkpoint.Set) {
	d.say("   What the store holds, read from outside:")
	for i := range all {
		c := &all[i]
		if !c.Complete() {
			var missing []string
			for _, p := range c.Missing {
				switch {
				case p.Path == "":
					missing = append(missing, p.String())
				case p.Rank < 0: // no data of it is published yet
					missing = append(missing, path.Base(p.Path))
				default:
					missing = append(missing, fmt.Sprintf("%s of rank %d", path.Base(p.Path), p.Rank))
				}
			}
			d.say("     step %-5s incomplete: %s", c.Name, strings.Join(missing, ", "))
			continue
		}
		d.say("     step %-5s complete, %.1f MiB in %.1f ms: %.0f MiB/s", c.Name,
			mib(c), took(c).Seconds()*1000, mib(c)/took(c).Seconds())
	}
}

func mib(c *checkpoint.Set) float64 { return float64(c.Size()) / float64(nvmf.MiB) }

// restarted runs the job again from a checkpoint to its end.
func (d *demonstration) restarted(ctx context.Context, from *checkpoint.Set, step int) (Thermo, error) {
	var flags []string // the target is recorded, except for other targets
	if d.target != "" {
		flags = []string{"--target", d.target}
	}
	job, err := d.Start(append(d.RunFlags(name, flags...), d.lammps("/nvmecr", step)...))
	if err != nil {
		return nil, err
	}
	d.say("\n3. Started again, from step %d, the newest that is complete in all ranks.", step)
	for !job.Ended() && readThermo(job.Stdout.Lines()).last() < 0 {
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return nil, err
		}
	}
	back := time.Since(job.Started)
	if err := job.Wait(ctx); err != nil {
		return nil, err
	}
	d.say("   Back at step %d after %.2f s (launch, recovery of %d partitions, %.1f MiB read); at the end after %.1f s.",
		step, back.Seconds(), ranks, mib(from), time.Since(job.Started).Seconds())
	return readThermo(job.Stdout.Lines()), nil
}

// judge compares both parts of the run with the reference.
func (d *demonstration) judge(reference, before, after Thermo, from int) error {
	if err := before.compare(reference, 0, before.last()); err != nil {
		return fmt.Errorf("the output before the kill is wrong: %w", err)
	}
	if err := after.compare(reference, from, steps); err != nil {
		return fmt.Errorf("the output after the restart is wrong: %w", err)
	}
	d.say("\n4. The thermodynamic output equals that of the undisturbed run to the last digit:\n"+
		"   steps 0 to %d before the kill, %d to %d after the restart. The last line:\n   %s",
		before.last(), from, steps, after[steps])
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
