package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"nvmecr/internal/demo"
)

const (
	// kept is the number of checkpoints in a store: the job removes older ones.
	kept = 3
	// copied is the time-out of a store with copies.
	copied = 20 * time.Second
	// storeRounds is the number of rounds of a store with copies.
	storeRounds = 6
)

// A copying is a store with copies on other targets, and the promises of its listings.
type copying struct {
	*testbed
	random  *rand.Rand
	bears   promises
	spoilt  map[int]bool // steps whose failed write may have left closed, incomplete files
	step    int          // last step
	down    []*server    // killed or stopped
	dir     string       // directory of the round
	removed int          // steps up to this one are removed

	job   *run
	asked int
}

// copyRounds runs rounds on stores with copies until its time is over.
func copyRounds(out io.Writer, stage *demo.Stage, t *tally, o options) (err error) {
	if err := unpack(stage.Dir); err != nil {
		return err
	}
	end, random := time.Now().Add(o.long), rand.New(rand.NewPCG(o.seed, 0))
	for n := 0; time.Now().Before(end); n++ {
		if err := copyStore(out, stage, t, n, rand.New(rand.NewPCG(o.seed, random.Uint64())), end); err != nil {
			return err
		}
	}
	return nil
}

// copyStore runs the rounds of one store.
func copyStore(out io.Writer, stage *demo.Stage, t *tally, n int, random *rand.Rand, end time.Time) (err error) {
	kind := []struct {
		copies  string
		targets int
	}{{"partner", 2}, {"partner", 3}, {"partner", 4}, {"rs:2+1", 3}, {"rs:2+1", 4}, {"rs:2+2", 4}, {"rs:1+2", 3}}[random.IntN(7)]
	first := []int{0, 1000}[random.IntN(2)] // small steps are numbers of ranks, too
	c := &copying{random: random, bears: promises{}, spoilt: map[int]bool{}, step: first, removed: first}
	c.testbed = newTestbed(stage, t, fmt.Sprint("copies", n), "512M", kind.targets+random.IntN(2))
	c.copies, c.tree, c.timeout = kind.copies, random.IntN(2) == 0, copied
	defer func() {
		for _, s := range c.down {
			s.target.Kill() // a stopped one does not end by itself
		}
		c.close()
		err = errors.Join(err, c.end())
		if err == nil {
			for _, s := range c.servers {
				err = errors.Join(err, os.Remove(s.image))
			}
		}
	}()
	if err := c.external(kind.targets); err != nil {
		return err
	}
	fmt.Fprintf(out, "Store %d: --copies %s, %d targets, %d ranks, tree %t.\n", n, kind.copies, kind.targets, c.ranks, c.tree)
	for round := 0; round < storeRounds && time.Now().Before(end); round++ {
		begin := time.Now()
		said, err := c.play(round)
		fmt.Fprintf(out, "round %d.%d: %s, %.1f s\n", n, round, said, time.Since(begin).Seconds())
		if err != nil {
			return fmt.Errorf("store %d, round %d: %w", n, round, err)
		}
		t.add(&t.Rounds, 1)
	}
	return nil
}

// play writes checkpoints, loses targets, and checks the remaining data.
func (c *copying) play(round int) (said string, err error) {
	c.dir = filepath.Join(c.stage.Dir, fmt.Sprintf("%s.%d", c.name, round))
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return "", err
	}
	when, after := []string{"start", "write", "copy", "rest"}[c.random.IntN(4)], []string{"killed", "read", "written", "ended"}[c.random.IntN(4)]
	lost := c.victims(1 + c.random.IntN(c.tolerates()+1))
	said = fmt.Sprintf("%d lost at %s, then %s", len(lost), when, after)
	c.tally.note("store %s, round %d: %s", c.name, round, said)
	err = c.work(when, lost)
	if err == nil {
		err = c.aftermath(after)
	}
	if err = errors.Join(err, c.stopJob()); err != nil {
		return said, err
	}
	if err := c.replace(); err != nil {
		return said, err
	}
	for c.random.IntN(2) == 0 {
		said += ", rebuild stopped"
		if err := c.disturbRebuild(); err != nil {
			return said, err
		}
	}
	return said, c.judge()
}

// tolerates returns how many targets a protected checkpoint may lose.
func (c *copying) tolerates() int {
	if _, m, ok := strings.Cut(c.copies, "+"); ok {
		n, _ := strconv.Atoi(m) // matches digits
		return n
	}
	return 1
}

func (c *copying) victims(n int) (some []*server) {
	for _, i := range c.random.Perm(len(c.servers))[:n] {
		some = append(some, c.servers[i])
	}
	return some
}

// work starts a job that writes checkpoints, and kills or stops targets.
func (c *copying) work(when string, lost []*server) (err error) {
	if err := c.startJob(); err != nil {
		return err
	}
	if when == "start" {
		time.Sleep(between(c.random, 0, time.Second))
		return c.strike(lost)
	}
	for ; c.removed < c.step-kept; c.removed++ {
		if status, err := c.ask("remove", c.removed+1); err != nil || status != 0 {
			return fmt.Errorf("removing %d: status %d: %w", c.removed+1, status, err)
		}
	}
	for range 1 + c.random.IntN(2) {
		if err := c.write(); err != nil {
			return err
		}
		if err := c.look(); err != nil {
			return err
		}
	}
	switch when {
	case "write":
		wrote := make(chan error)
		c.step++
		go func() { wrote <- c.writeStep(c.step, true) }()
		time.Sleep(between(c.random, 0, 400*time.Millisecond))
		return errors.Join(c.strike(lost), <-wrote)
	case "copy":
		if err := c.write(); err != nil {
			return err
		}
		time.Sleep(between(c.random, 0, time.Second))
	case "rest":
		if err := c.awaitProtected(); err != nil {
			return err
		}
	}
	return c.strike(lost)
}

// startJob starts the job, which executes requests.
func (c *copying) startJob() (err error) {
	c.asked = 0
	c.job = &run{said: filepath.Join(c.dir, "job.said"), tag: fmt.Sprintf("%s.%s", filepath.Base(c.stage.Dir), filepath.Base(c.dir))}
	argv := c.run("sh", filepath.Join(c.stage.Dir, "checkpoints.sh"), c.contents(), c.dir, strconv.Itoa(c.ranks), strconv.FormatBool(c.tree))
	c.job.Job, err = c.stage.Start(argv, tagName+"="+c.job.tag)
	return err
}

// contents returns the directory with the expected content of checkpoints.
func (c *copying) contents() string { return filepath.Join(c.stage.Dir, c.name+".contents") }

// ask makes a request to the job. The status is -1 if the job has ended without executing it.
func (c *copying) ask(verb string, step int) (status int, err error) {
	c.asked++
	name := filepath.Join(c.dir, fmt.Sprint("do.", c.asked))
	if err := os.WriteFile(name+".new", fmt.Appendf(nil, "%s %d\n", verb, step), 0o600); err != nil {
		return 0, err
	}
	if err := os.Rename(name+".new", name); err != nil {
		return 0, err
	}
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(10 * time.Millisecond) {
		ended := c.job.Ended()
		for _, line := range c.job.Stdout.Lines() {
			if text, ok := strings.CutPrefix(line, fmt.Sprint(c.asked, " ")); ok {
				return strconv.Atoi(text)
			}
		}
		if ended {
			return -1, nil
		}
	}
	return 0, fmt.Errorf("the job hangs, at %s %d", verb, step)
}

// write makes the job write the next checkpoint, and copy it.
func (c *copying) write() error {
	c.step++
	if err := c.writeStep(c.step, false); err != nil {
		return err
	}
	c.tally.note("%d is written", c.step)
	if c.random.IntN(4) > 0 {
		if err := syscall.Kill(c.job.PID(), syscall.SIGUSR1); err != nil {
			return err
		}
		c.tally.event("checkpoints copied at once", 1)
	}
	return nil
}

// writeStep makes the job write a checkpoint, which may fail if targets are lost.
func (c *copying) writeStep(step int, struck bool) error {
	if err := c.makeContents(step); err != nil {
		return err
	}
	status, err := c.ask("write", step)
	switch {
	case err != nil:
		return err
	case status != 0 && struck:
		c.spoilt[step] = true
		return nil
	case status != 0:
		return fmt.Errorf("writing %d: status %d, and no target was lost", step, status)
	}
	c.tally.add(&c.tally.Operations, 1)
	return nil
}

// makeContents creates the expected content of a checkpoint.
func (c *copying) makeContents(step int) error {
	dir := filepath.Join(c.contents(), strconv.Itoa(step))
	err := os.MkdirAll(dir, 0o700)
	file := func(name string, actor uint8, size int) {
		b := make([]byte, size)
		source{actor, uint32(step)}.fill(b, 0)
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), b, 0o600))
		c.tally.add(&c.tally.Written, int64(size))
	}
	random := rand.New(rand.NewPCG(uint64(step), c.random.Uint64()))
	for rank := range c.ranks {
		file(strconv.Itoa(rank), uint8(1+rank), []int{random.IntN(1000), random.IntN(300_000), random.IntN(3_000_000)}[random.IntN(3)])
	}
	if c.tree {
		file("all", common, c.ranks*(1+random.IntN(400_000)))
	}
	return err
}

// strike kills targets, or stops them.
func (c *copying) strike(lost []*server) error {
	for _, s := range lost {
		signal := []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP}[c.random.IntN(2)]
		c.tally.note("%v to the target of %s", signal, s.image)
		if err := syscall.Kill(s.target.PID(), signal); err != nil {
			return err
		}
		c.down = append(c.down, s)
		time.Sleep(between(c.random, 0, 500*time.Millisecond))
	}
	c.tally.event(fmt.Sprintf("%d targets lost of --copies %s", len(lost), c.copies), 1)
	return nil
}

// aftermath makes the job do something after the loss of targets.
func (c *copying) aftermath(what string) error {
	switch what {
	case "killed":
		time.Sleep(between(c.random, 0, 500*time.Millisecond))
	case "read":
		return c.readOn()
	case "written":
		c.step++
		return c.writeStep(c.step, true)
	case "ended":
		_, err := c.ask("end", 0)
		return err
	}
	return nil
}

// readOn reads, in the running job, checkpoints that were listed as protected against this number of losses.
func (c *copying) readOn() error {
	for step, bears := range c.bears {
		if bears < 0 {
			continue
		}
		status, err := c.ask("read", step)
		if err != nil {
			return err
		}
		promised := c.tree && len(c.down) <= bears && !slices.Contains(c.down, c.servers[0])
		if promised && status != 0 || status == 1 {
			return fmt.Errorf("%d, which bears the loss of %d targets, is read in the job after that of %d with status %d:\n%s", step, bears, len(c.down), status, c.job.Stderr.Tail(60))
		}
		c.tally.event(fmt.Sprintf("checkpoints read in a job that had lost a target, status %d", status), 1)
	}
	return nil
}

// stopJob ends the job in any state.
func (c *copying) stopJob() error {
	if c.job == nil || c.job.Job == nil {
		return nil
	}
	c.job.kill()
	c.tally.note("the job said:\n%s", c.job.Stderr.Tail(60))
	return c.job.sane()
}

// replace starts the targets again, some with their data, some empty.
func (c *copying) replace() error {
	for _, s := range c.down {
		s.target.Kill()
		_ = s.target.Wait(context.Background()) // it was killed
		if c.random.IntN(4) > 0 {
			c.tally.note("%s is lost for good", s.image)
			if err := os.Remove(s.image); err != nil {
				return err
			}
			c.bears.lose()
			c.tally.event("targets replaced by empty ones", 1)
		}
		c.server = s
		if err := c.serve(); err != nil {
			return err
		}
	}
	c.down = nil
	return nil
}

// awaitProtected waits until the newest checkpoint is protected.
func (c *copying) awaitProtected() error {
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(200 * time.Millisecond) {
		if err := c.look(); err != nil {
			return err
		}
		if c.bears[c.step] == c.tolerates() {
			return nil
		}
	}
	return fmt.Errorf("%d is not copied:\n%s", c.step, c.job.Stderr.Tail(60))
}

// disturbRebuild starts a command that restores, and kills it, or loses a target meanwhile.
func (c *copying) disturbRebuild() error {
	if err := c.look(); err != nil {
		return err
	}
	line := append([]string{c.stage.Nvmecr, "rebuild", "--timeout", c.timeout.String()}, c.flags()...)
	if c.random.IntN(2) == 0 {
		line = c.run("true")
	}
	job, err := c.start(line)
	if err != nil {
		return err
	}
	time.Sleep(between(c.random, 0, 2500*time.Millisecond))
	if c.random.IntN(2) == 0 {
		if err := c.strike(c.victims(1)); err != nil {
			return err
		}
		if time.Sleep(between(c.random, 0, time.Second)); c.random.IntN(2) == 0 {
			if job.awaitEnd(patience); !job.Ended() {
				return fmt.Errorf("a rebuild hangs that has lost a target:\n%s", job.Stderr.Tail(60))
			}
		}
	}
	job.kill()
	c.tally.note("a disturbed rebuild:\n%s", job.Stderr.Tail(60))
	c.tally.event("rebuilds disturbed", 1)
	return errors.Join(job.sane(), c.replace())
}

func (c *copying) start(line []string) (*run, error) {
	job := &run{said: filepath.Join(c.dir, "rebuild.said"), tag: fmt.Sprintf("%s.%s.rebuild", filepath.Base(c.stage.Dir), filepath.Base(c.dir))}
	var err error
	job.Job, err = c.stage.Start(line, tagName+"="+job.tag)
	return job, err
}

// judge rebuilds, and compares all checkpoints that are then listed as complete.
func (c *copying) judge() error {
	c.tally.note("after the losses: %v", c.bears)
	job, err := c.start(append([]string{c.stage.Nvmecr, "rebuild", "--timeout", c.timeout.String()}, c.flags()...))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errors.New("it hangs"))
	defer cancel()
	err = job.Wait(ctx)
	c.tally.note("rebuild: %v\n%s%s", err, job.Stdout.Tail(60), job.Stderr.Tail(60))
	if err = errors.Join(err, job.sane()); err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	if err := c.look(); err != nil {
		return err
	}
	newest := c.bears.newest()
	if newest > 0 && c.bears[newest] != c.tolerates() {
		return fmt.Errorf("the newest checkpoint, %d, is not protected after a rebuild: %v\n%s", newest, c.bears, job.Stderr.Tail(60))
	}
	latest, err := c.call("latest", "ck.{step}.*")
	if got, _ := strconv.Atoi(strings.TrimSpace(string(latest))); got != newest && (newest > 0 || got > c.step-kept) { // older ones may exist, too
		return fmt.Errorf("nvmecr latest prints %q, the newest complete checkpoint is %d: %w", latest, newest, err)
	}
	return c.compareAll()
}
