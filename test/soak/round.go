package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"nvmecr/internal/demo"
)

const (
	program = "soak-rank"
	tagName = "SOAK_JOB"
	mount   = "/nvmecr"
	// patience is how long a job may take to begin, or to end on request: data on a lost connection is not written for minutes.
	patience = 5 * time.Minute
)

// A round is one or more jobs on a testbed, one after the other, under one
// launcher.
type round struct {
	*testbed
	number   int
	launcher string
	programs map[string]string // by launcher
	random   *rand.Rand
	dir      string
	jobs     int

	indexKilled bool // in the round
}

// play starts jobs, injects faults until its time is over, ends the jobs, and reads the journals.
func (r *round) play(long time.Duration) error {
	r.dir = filepath.Join(r.stage.Dir, fmt.Sprintf("round%d", r.number))
	if err := os.MkdirAll(filepath.Join(r.dir, "readback"), 0o700); err != nil {
		return err
	}
	r.tally.add(&r.tally.Rounds, 1)
	if r.mirrors() && r.number > 1 {
		if err := r.level(); err != nil {
			return err
		}
	}
	if r.timeout = r.patience(); r.relay != nil && !r.tree && !r.mirrors() && r.random.IntN(4) == 0 { // the index would give up for all ranks
		r.timeout = impatient
	}
	r.faults.short = r.timeout == impatient
	job, err := r.start()
	if err == nil {
		err = r.chaos(job, long)
	}
	return errors.Join(err, r.check())
}

// level makes a run copy the data that one of two targets lacks. From then on the other target may be lost.
func (r *round) level() error {
	if err := r.alone("true"); err != nil {
		return fmt.Errorf("copying to a target what its mirror has: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	said, err := r.command(ctx, "checkpoints").CombinedOutput()
	if err != nil || !bytes.Contains(said, []byte("mirrored: all of the store is on two targets")) {
		return fmt.Errorf("the targets are not mirrors of one another: %w\n%s", errors.Join(ctx.Err(), err), said)
	}
	r.server = r.servers[r.random.IntN(len(r.servers))]
	return nil
}

func (r *round) start() (*run, error) {
	r.jobs++
	ranks := r.ranks
	if r.tree { // any rank may play any actor
		ranks = 1 + r.random.IntN(r.ranks+1)
	}
	args := []string{r.programs[r.launcher], mount, r.dir, strconv.FormatUint(r.random.Uint64(), 10), strconv.Itoa(r.number)}
	if r.launcher == "sh" {
		args = append([]string{"sh", filepath.Join(r.stage.Dir, "ranks.sh"), strconv.Itoa(ranks)}, args...)
	} else {
		args = demo.MPIRun(r.launcher, ranks, args...)
	}
	j := &run{said: filepath.Join(r.dir, fmt.Sprintf("job%d.said", r.jobs)), tag: fmt.Sprintf("%s.%d.%d", filepath.Base(r.stage.Dir), r.number, r.jobs)}
	r.tally.note("round %d, job %d on %s under %s", r.number, r.jobs, r.name, r.launcher)
	var err error
	env := []string{tagName + "=" + j.tag}
	if r.tree {
		env = append(env, fmt.Sprintf("SOAK_TREE=%d", r.ranks), "SOAK_SHARED="+r.sharedDir())
		if err := os.MkdirAll(r.sharedDir(), 0o700); err != nil {
			return nil, err
		}
	}
	j.Job, err = r.stage.Start(r.run(args...), env...)
	return j, err
}

// chaos injects faults into job, and into its successors, until the time is over. Then the last job ends or is killed.
func (r *round) chaos(job *run, long time.Duration) (err error) {
	c := &chaos{testbed: r.testbed, random: r.random, job: job, errs: make(chan error, 100)}
	defer func() {
		c.job.kill()
		err = errors.Join(err, c.job.sane())
		c.later.Wait()
		close(c.errs)
		for e := range c.errs {
			err = errors.Join(err, e)
		}
	}()
	if err := r.awaitReached(c.job); err != nil {
		return err
	}
	for end := time.Now().Add(long); time.Now().Before(end); {
		time.Sleep(between(r.random, 10*time.Millisecond, 900*time.Millisecond))
		c.inject()
		if c.job.injected && r.launcher != "sh" {
			c.job.awaitEnd(2 * time.Second) // mpirun ends the other ranks
		}
		if err := r.again(c); err != nil {
			return err
		}
	}
	c.later.Wait()
	if r.random.IntN(4) == 0 {
		r.tally.event("jobs killed, launcher and all", min(1, c.job.kill()))
		return c.job.sane()
	}
	return r.stop(c.job)
}

// awaitReached waits until every rank has opened its partition once: before that there may be nothing to read from outside.
func (r *round) awaitReached(job *run) error {
	for _, w := range r.histories {
		name := filepath.Join(r.dir, fmt.Sprintf("r%d.a%d.journal", w.rank, w.number))
		for begin := time.Now(); !w.reached; time.Sleep(5 * time.Millisecond) {
			text, _ := os.ReadFile(name) // will exist
			if bytes.Contains(text, []byte("\n= readback")) {
				break
			}
			if job.Ended() || time.Since(begin) > patience {
				return fmt.Errorf("rank %d does not reach the mount: %w", w.rank, job.Wait(ended()))
			}
		}
	}
	return nil
}

// again starts a new job after the end of the last one.
func (r *round) again(c *chaos) error {
	if !c.job.Ended() {
		return nil
	}
	err := c.job.Wait(context.Background())
	c.job.kill() // kills remaining processes
	if e := c.job.sane(); e != nil {
		return e
	}
	if err != nil && !c.job.injected {
		if !r.faults.excused(true, time.Now().UnixNano()) {
			return fmt.Errorf("the job ended though nothing of it was killed: %w", err)
		}
		r.tally.event("jobs that ended at their start for want of the target", 1)
		r.tally.note("%v", err)
	}
	c.job, err = r.start()
	return err
}

// stop lets the job end by itself.
func (r *round) stop(job *run) error {
	if err := os.WriteFile(filepath.Join(r.dir, "stop"), nil, 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errors.New("it hangs"))
	defer cancel()
	begin := time.Now()
	for rankless := 0; !job.Ended() && ctx.Err() == nil; job.awaitEnd(time.Second) {
		if rankless++; len(job.ranks()) > 0 {
			rankless = 0
		}
		// PMIx has a deadlock at the end of an mpirun that lost a rank.
		if rankless > 20 && job.injected {
			r.tally.event("launchers killed that hung without ranks", min(1, job.kill()))
		}
	}
	err := job.Wait(ctx)
	r.tally.note("the job took %s to stop", time.Since(begin))
	if e := job.sane(); e != nil {
		return errors.Join(err, e)
	}
	if err != nil && !job.injected && !r.faults.excused(true, time.Now().UnixNano()) {
		return fmt.Errorf("the job did not end well though nothing of it was killed: %w", err)
	}
	return nil
}

// awaitEnd waits for the end of the job, for a limited time.
func (r *run) awaitEnd(long time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	_ = r.Wait(ctx) // its status is checked later
}

// crashed matches messages of a process that crashed by itself. (MPI libraries report a fatal error if another rank is killed.)
var crashed = regexp.MustCompile(`(?i)panic:|fatal error:|segmentation|signal 11|signal 6|sigsegv|sigabrt|corrupt`)

// sane fails if the output of the job shows a crash, and keeps the output.
func (r *run) sane() error {
	if err := os.WriteFile(r.said, []byte(r.Stdout.Tail(1<<20)+r.Stderr.Tail(1<<20)), 0o600); err != nil {
		return err
	}
	if said := crashed.FindString(r.Stderr.Tail(1 << 20)); said != "" {
		return fmt.Errorf("a process of the job crashed, or found damage (%q):\n%s", said, r.Stderr.Tail(200))
	}
	return nil
}

// ended returns a canceled context.
func ended() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("it still runs"))
	return ctx
}

// check reads the journals and checks the store from outside.
func (r *round) check() error {
	c, err := r.judgeCalls()
	if err != nil {
		return err
	}
	if r.tree {
		if err := r.fromInside(c); err != nil {
			return err
		}
	}
	if err := r.fromOutside(c); err != nil {
		return err
	}
	r.faults.over()
	// Only files of failures are kept.
	return os.RemoveAll(filepath.Join(r.dir, "readback"))
}

// judgeCalls reads the journals, and checks that calls that failed had a fault as their reason, while the faults are known.
func (r *round) judgeCalls() (*checker, error) {
	c := &checker{dir: r.dir, excused: r.faults.excused, whole: r.whole(), tree: r.tree, tally: r.tally, histories: r.histories}
	if err := errors.Join(c.readJournals(), r.failedShared()); err != nil {
		return nil, err
	}
	r.indexKilled = r.faults.withIndex()
	if r.relay == nil {
		// No target runs now: use the file.
		r.faults.over()
	}
	return c, nil
}

// fromInside compares the files as a job without ranks. Its index adopts unclosed data of ranks that were killed together with their
// index.
func (r *round) fromInside(c *checker) error {
	inside := filepath.Join(r.dir, "inside")
	if err := r.alone("cp", "-r", mount+"/.", inside); err != nil {
		return err
	}
	return errors.Join(r.compare(c, inside, "a job without ranks"), os.RemoveAll(inside))
}

func (r *round) fromOutside(c *checker) error {
	dest := filepath.Join(r.dir, "outside")
	if err := os.Mkdir(dest, 0o700); err != nil {
		return err
	}
	if _, err := r.call("cp", "/", dest); err != nil {
		return err
	}
	if err := r.compare(c, dest, "nvmecr cp"); err != nil {
		return err
	}
	if err := r.marks(); err != nil {
		return err
	}
	for _, check := range checks(r.stage) {
		if _, err := r.call(check); err != nil {
			return err
		}
		r.tally.add(&r.tally.Checks, 1)
	}
	return os.RemoveAll(dest)
}

// compare compares a copy of the whole store.
func (r *round) compare(c *checker, dest, who string) error {
	for _, w := range r.histories {
		copied := r.home(dest, w.rank)
		m, n, differences, err := c.find(w, copied)
		if err != nil {
			return err
		}
		if m == nil {
			return fmt.Errorf("what %s found (%s) is not what was acknowledged:\n%s", who, copied, differences)
		}
		r.tally.add(&r.tally.Outside, n)
	}
	if !r.tree {
		return nil
	}
	return r.judgeShared(dest, who)
}

// alone runs a command as a job without ranks.
func (r *round) alone(argv ...string) error {
	job, err := r.stage.Start(r.run(argv...))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errors.New("it hangs"))
	defer cancel()
	return job.Wait(ctx)
}

// marks compares the output of nvmecr ls for files that must be complete, or must not be.
func (r *round) marks() error {
	text, err := r.call("ls", "--recursive", "--json", "/")
	if err != nil {
		return err
	}
	var entries []struct {
		Rank     int
		Path     string
		Complete bool
	}
	if err := json.Unmarshal(text, &entries); err != nil {
		return fmt.Errorf("nvmecr ls: %w", err)
	}
	for _, e := range entries {
		for _, w := range r.histories {
			home, here := "/", w.rank == e.Rank
			if r.tree {
				home, here = r.home("/", w.rank)+"/", true
			}
			name, found := strings.CutPrefix(e.Path, fmt.Sprintf("%sa%d/", home, w.number))
			f := w.model.names[name]
			if !found || !here || w.pending != nil || f == nil || f.state == unknown {
				continue
			}
			if !e.Complete && f.state == complete && r.indexKilled {
				f.forgetState() // another writer may have died before: the next index does not know the order
				continue
			}
			if e.Complete != (f.state == complete) {
				return fmt.Errorf("rank %d, %s: nvmecr ls says complete: %t, it must be %t", e.Rank, e.Path, e.Complete, !e.Complete)
			}
			r.tally.add(&r.tally.Marks, 1)
		}
	}
	return nil
}

// last starts a job that only reads its files back, so that no operation stays in doubt.
func (r *round) last() error {
	r.dir = filepath.Join(r.stage.Dir, fmt.Sprintf("round%d", r.number))
	if err := os.MkdirAll(filepath.Join(r.dir, "readback"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.dir, "stop"), nil, 0o600); err != nil {
		return err
	}
	r.timeout = r.patience()
	job, err := r.start()
	if err == nil {
		err = r.stop(job)
	}
	if err = errors.Join(err, r.check()); err != nil {
		return err
	}
	for _, w := range r.histories {
		if w.pending != nil || w.killed {
			return fmt.Errorf("rank %d, actor %d was not read back at the end", w.rank, w.number)
		}
	}
	return nil
}
