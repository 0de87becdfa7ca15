package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"nvmecr/internal/demo"
	"nvmecr/internal/proc"
)

// An injection is a kind of fault.
type injection struct {
	name   string
	weight int
	do     func(*chaos) (times int)
}

// Faults of testbeds with a relay and an external target, and of others.
var (
	everywhere = []injection{
		{"ranks killed", 6, (*chaos).killRank},
		{"ranks frozen", 2, (*chaos).freezeRank},
		{"jobs killed, launcher and all", 1, (*chaos).killJob},
		{"launchers killed, ranks a little later", 1, (*chaos).killLauncher},
		{"targets frozen", 2, (*chaos).freezeTarget},
	}
	outside = []injection{
		{"targets killed and started again", 3, (*chaos).killTarget},
		{"connections cut", 3, (*chaos).cut},
		{"connections cut at a byte", 3, (*chaos).cutAtByte},
		{"network stalled", 2, (*chaos).stall},
		{"ranks killed while the network was stalled", 2, (*chaos).killStalled},
		{"ranks killed whose last commands came late", 2, (*chaos).killLate},
	}
)

// inTrees are additional faults if all ranks have one tree.
var inTrees = []injection{{"indexes killed", 4, (*chaos).killIndex}}

// onMirrors are additional faults if targets are mirrored.
var onMirrors = []injection{{"mirrored targets lost for good, and replaced", 4, (*chaos).loseTarget}}

// chaos injects faults into one job.
type chaos struct {
	*testbed
	random *rand.Rand
	job    *run
	later  sync.WaitGroup // faults that last longer than inject
	errs   chan error     // errors of repairing faults
}

// inject injects a random fault.
func (c *chaos) inject() {
	injections := everywhere
	if c.relay != nil {
		injections = append(append([]injection(nil), everywhere...), outside...)
	}
	if c.tree {
		injections = append(injections[:len(injections):len(injections)], inTrees...)
	}
	if c.mirrors() {
		injections = append(injections[:len(injections):len(injections)], onMirrors...)
	}
	total := 0
	for _, b := range injections {
		total += b.weight
	}
	n := c.random.IntN(total)
	c.job.remember()
	for _, b := range injections {
		if n -= b.weight; n < 0 {
			if times := b.do(c); times > 0 {
				c.tally.event(b.name, times)
			}
			return
		}
	}
}

func (c *chaos) someRank() (pid int, ok bool) {
	pids := c.job.ranks()
	if len(pids) == 0 {
		return 0, false
	}
	return pids[c.random.IntN(len(pids))], true
}

func (c *chaos) killRank() int {
	pid, ok := c.someRank()
	if !ok || syscall.Kill(pid, syscall.SIGKILL) != nil {
		return 0
	}
	c.job.injected = true
	return 1
}

// freeze stops a process for a time.
func (c *chaos) freeze(pid int, d time.Duration) bool {
	if syscall.Kill(pid, syscall.SIGSTOP) != nil {
		return false
	}
	c.later.Go(func() {
		time.Sleep(d)
		_ = syscall.Kill(pid, syscall.SIGCONT) // may have been killed
	})
	return true
}

func (c *chaos) freezeRank() int {
	pid, ok := c.someRank()
	if !ok || !c.freeze(pid, between(c.random, 50*time.Millisecond, 2*time.Second)) {
		return 0
	}
	return 1
}

func (c *chaos) killJob() int {
	defer c.faults.begin(c.relay == nil)() // an embedded target may be killed before the ranks
	c.job.injected = true
	return min(1, c.job.kill())
}

func (c *chaos) killLauncher() int {
	defer c.faults.begin(c.relay == nil)()
	c.job.injected = true
	c.job.Kill()
	time.Sleep(between(c.random, 0, 500*time.Millisecond))
	return min(1, c.job.kill())
}

func (c *chaos) freezeTarget() int {
	pid := 0
	if c.relay != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		pid = c.target.PID()
	} else {
		for _, p := range c.job.processes() {
			if line, err := os.ReadFile("/proc/" + strconv.Itoa(p) + "/cmdline"); err == nil && strings.Contains(string(line), "--until-eof") {
				pid = p
			}
		}
	}
	end := c.faults.begin(false)
	if pid == 0 || syscall.Kill(pid, syscall.SIGSTOP) != nil {
		end()
		return 0
	}
	d := between(c.random, 50*time.Millisecond, 3*time.Second)
	c.later.Go(func() {
		time.Sleep(d)
		_ = syscall.Kill(pid, syscall.SIGCONT)
		end()
		c.tally.note("the target goes on")
	})
	return 1
}

// killIndex kills the process with the index of the tree. A successor is started.
func (c *chaos) killIndex() (killed int) {
	for _, p := range c.job.processes() {
		line, _ := os.ReadFile("/proc/" + strconv.Itoa(p) + "/cmdline") // may have ended
		if strings.HasPrefix(string(line), c.stage.Nvmecr+"\x00serve\x00") {
			c.faults.indexKilled()
			c.job.injected = true
			if syscall.Kill(p, syscall.SIGKILL) == nil {
				killed = 1
			}
		}
	}
	return killed
}

func (c *chaos) killTarget() int { return c.replaceTarget(func() error { return nil }) }

// loseTarget replaces a target by an empty one. The target is down for a shorter or longer time than ranks wait.
func (c *chaos) loseTarget() int {
	image, longer := c.image, between(c.random, 0, c.timeout/2)
	return c.replaceTarget(func() error {
		time.Sleep(longer)
		return os.Remove(image)
	})
}

// replaceTarget kills the target, calls before, and starts the target again.
func (c *chaos) replaceTarget(before func() error) int {
	if !c.mu.TryLock() {
		return 0 // down already
	}
	end := c.faults.begin(false)
	c.target.Kill()
	d := between(c.random, 0, 2*time.Second)
	if c.timeout == impatient {
		d += time.Duration(c.random.IntN(2)) * impatient
	}
	c.later.Go(func() {
		defer c.mu.Unlock()
		defer end()
		_ = c.target.Wait(context.Background()) // killed
		time.Sleep(d)
		if err := errors.Join(before(), c.serve()); err != nil {
			c.errs <- err
		}
		c.tally.note("the target is back")
	})
	return 1
}

func (c *chaos) cut() int {
	defer c.faults.begin(false)()
	return c.relay.cut([]int{1, -1}[c.random.IntN(2)])
}

func (c *chaos) cutAtByte() int {
	// The time of their arrival is unknown.
	c.faults.until(time.Now().Add(grace))
	return c.relay.cutAfter(c.random, []int64{100, 10_000, 1 << 20}[c.random.IntN(3)])
}

func (c *chaos) stall() int {
	end := c.faults.begin(false)
	d := between(c.random, 20*time.Millisecond, 2*time.Second)
	c.later.Go(func() {
		c.relay.stall(d)
		end()
		c.tally.note("the network goes on")
	})
	return 1
}

// killStalled kills a rank while its last writes are in flight, and delays these.
func (c *chaos) killStalled() int {
	c.stall()
	time.Sleep(between(c.random, 0, 20*time.Millisecond))
	return c.killRank()
}

// killLate kills a rank. Its last commands arrive when another process has its partition.
func (c *chaos) killLate() int {
	end := c.faults.begin(false)
	release := c.relay.hold()
	time.Sleep(between(c.random, 0, 20*time.Millisecond))
	killed := c.killRank()
	d := between(c.random, 200*time.Millisecond, 3*time.Second)
	c.later.Go(func() {
		time.Sleep(d)
		release()
		end()
		c.tally.note("held connections go on")
	})
	return killed
}

// A run is a started job with all its processes.
type run struct {
	*demo.Job
	tag      string
	said     string // file with its output
	injected bool   // a process of it was killed
	shared   map[string]bool
}

// sharedMemory matches the files of ranks that are killed while MPI starts.
var sharedMemory = regexp.MustCompile(`/dev/shm/(mpich_shar_tmp|ucx_shm_posix_)\w+`)

// remember records the shared memory of the ranks.
func (r *run) remember() {
	if r.shared == nil {
		r.shared = map[string]bool{}
	}
	for _, p := range r.processes() {
		maps, _ := os.ReadFile("/proc/" + strconv.Itoa(p) + "/maps") // it may have ended
		for _, name := range sharedMemory.FindAllString(string(maps), -1) {
			r.shared[name] = true
		}
	}
}

func (r *run) processes() []int { return proc.WithEnv(tagName, r.tag) }

// ranks returns its processes that are ranks.
func (r *run) ranks() (pids []int) {
	for _, p := range r.processes() {
		if comm, err := os.ReadFile("/proc/" + strconv.Itoa(p) + "/comm"); err == nil && strings.HasPrefix(string(comm), program) {
			pids = append(pids, p)
		}
	}
	return pids
}

// kill kills all processes and waits for their end. It returns their number.
func (r *run) kill() int {
	r.remember()
	defer func() {
		for name := range r.shared {
			_ = os.Remove(name) // most are removed already
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n, _ := proc.KillWithEnv(ctx, tagName, r.tag)
	return n
}
