package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"nvmecr/internal/config"
	"nvmecr/internal/demo"
	"nvmecr/nvmf"
)

// A testbed is a store, what serves it, and what its ranks were acknowledged.
type testbed struct {
	name      string
	size      string // of the namespace
	ranks     int
	tree      bool   // all ranks have one
	copies    string // the value of --copies of a store whose checkpoints are copied in the background
	stage     *demo.Stage
	tally     *tally
	histories []*history

	*server           // that faults are done to; of the embedded testbed an empty one
	servers []*server // of the testbed with targets of its own: several are mirrors of one another

	faults  faults
	timeout time.Duration // how long a rank waits for its target
}

// A server is a target, behind a relay.
type server struct {
	relay   *relay
	image   string
	address string // of the target
	mu      sync.Mutex
	target  *demo.Job
}

const (
	// mirrored ranks wait a quarter of it for one target, and go on with the other one.
	mirrored = 8 * time.Second
	// patient ranks wait for whatever is done to their target.
	patient = 2 * time.Minute
	// impatient ones give up.
	impatient = 2 * time.Second
)

func newTestbed(stage *demo.Stage, t *tally, name, size string, ranks int) *testbed {
	f := &testbed{name: name, size: size, ranks: ranks, stage: stage, tally: t, timeout: patient, server: new(server)}
	for rank := range ranks {
		for n := range actors {
			f.histories = append(f.histories, &history{rank: rank, number: n, model: newModel()})
		}
	}
	return f
}

// whole is the largest write that is all there or not at all: one that fits a
// page of the log even if each hugeblock of it lies elsewhere. Where space is
// short every write may be cut where it runs out.
func (f *testbed) whole() int64 {
	if f.size == tight {
		return 0
	}
	return 1 << 20
}

// tight is the size of a namespace that the ranks fill.
const tight = "32M"

// external gives the testbed so many targets, and a relay before each.
func (f *testbed) external(targets int) error {
	for n := range targets {
		r, err := newRelay()
		if err != nil {
			return err
		}
		f.server = &server{relay: r, address: "127.0.0.1:0", image: filepath.Join(f.stage.Dir, fmt.Sprintf("%s%d.img", f.name, n))}
		f.servers = append(f.servers, f.server)
		if err := f.serve(); err != nil {
			return err
		}
	}
	return nil
}

// patience is how long ranks wait that do not give up.
func (f *testbed) patience() time.Duration {
	if f.mirrors() {
		return mirrored
	}
	return patient
}

func (f *testbed) mirrors() bool { return len(f.servers) > 1 && f.copies == "" }

func (f *testbed) close() {
	for _, s := range f.servers {
		s.relay.close()
	}
}

// end ends the targets.
func (f *testbed) end() (err error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errors.New("it does not end"))
	defer cancel()
	for _, s := range f.servers {
		s.mu.Lock()
		if s.target != nil {
			s.target.Interrupt()
			err = errors.Join(err, s.target.Wait(ctx))
		}
		s.mu.Unlock()
	}
	return err
}

// serve starts the target, on the port it had. The caller holds f.mu, or is
// the only one that knows f.
func (f *testbed) serve() error {
	namespace := "file:" + f.image + "?size=" + f.size
	var last error
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(20 * time.Millisecond) {
		job, err := f.stage.Start([]string{f.stage.Nvmecr, "target", "--listen", f.address, "--namespace", namespace})
		if err != nil {
			return err
		}
		for len(job.Stdout.Lines()) == 0 && !job.Ended() {
			time.Sleep(time.Millisecond)
		}
		if lines := job.Stdout.Lines(); len(lines) > 0 {
			id, err := nvmf.ParseTransportID(lines[0])
			if err != nil {
				return err
			}
			f.target, f.address = job, net.JoinHostPort("127.0.0.1", id.Service)
			f.relay.pass(f.address)
			return nil
		}
		last = job.Wait(context.Background()) // the port, or the file, is still the killed one's
	}
	return fmt.Errorf("the target does not come back: %w", last)
}

// flags are those by which the testbed is found.
func (f *testbed) flags() []string {
	if f.relay == nil {
		return []string{"--name", f.name}
	}
	flags := []string{"--name", f.name}
	for _, s := range f.servers {
		flags = append(flags, "--target", "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:"+s.relay.port()+" subnqn:nqn.2014-08.org.nvmecr:target ns:1")
	}
	return flags
}

// run is the command line that runs argv on the testbed.
func (f *testbed) run(argv ...string) []string {
	line := append([]string{f.stage.Nvmecr, "run", "--timeout", f.timeout.String()}, f.flags()...)
	if f.relay == nil {
		line = append(line, "--size", f.size)
	}
	if f.mirrors() {
		line = append(line, "--copies=partner", "--copies-sync")
	}
	if f.copies != "" {
		line = append(line, "--copies="+f.copies)
	}
	view := config.ViewRank
	if f.tree {
		view = config.ViewJob
	}
	line = append(line, "--view="+string(view))
	return append(append(line, "--"), argv...)
}

// home is the directory of a rank, in a copy of all of the store.
func (f *testbed) home(copied string, rank int) string {
	switch {
	case f.tree:
		return filepath.Join(copied, fmt.Sprintf("r%d", rank))
	case f.ranks > 1:
		return filepath.Join(copied, fmt.Sprintf("rank%d", rank))
	}
	return copied
}

// call runs a command of nvmecr on the testbed to its end and returns what it
// prints.
func (f *testbed) call(command string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := f.command(ctx, command, args...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("nvmecr %s: %w\n%s%s", strings.Join(append([]string{command}, args...), " "), errors.Join(ctx.Err(), err), out, &complaint)
	}
	return out, err
}

// command is one of nvmecr on the testbed.
func (f *testbed) command(ctx context.Context, command string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, f.stage.Nvmecr, append(append([]string{command}, f.flags()...), args...)...)
	cmd.Env, cmd.Dir = f.stage.Environ(), f.stage.Dir
	if f.mirrors() {
		cmd.Env = append(cmd.Env, "NVMECR_COPIES_SYNC=on")
	}
	if f.copies != "" {
		cmd.Env = append(cmd.Env, "NVMECR_TIMEOUT="+patient.String()) // no target is away
	}
	return cmd
}

// faults are the times at which the target could not be reached.
type faults struct {
	mu  sync.Mutex
	all []fault
	// short says that ranks do not wait for the end of all of them.
	short bool
}

type fault struct {
	from, to time.Time // to is zero while it lasts
	last     bool      // the job that sees it does not live to see its end
	index    bool      // the index was killed: what had lost its name by then is lost whenever it is used
}

// grace is how long a fault is an excuse after it is over: connecting takes a
// while, and this machine has other things to do.
const grace = 5 * time.Second

func (f *faults) begin(last bool) (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := len(f.all)
	f.all = append(f.all, fault{from: time.Now(), last: last})
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.all[i].to = time.Now()
	}
}

// indexKilled is a fault that does not end.
func (f *faults) indexKilled() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, fault{from: time.Now(), index: true})
}

// withIndex says whether one of them was that the index was killed.
func (f *faults) withIndex() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.all, func(one fault) bool { return one.index })
}

// until is a fault that ends by itself.
func (f *faults) until(to time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, fault{from: time.Now(), to: to})
}

// excused says whether a failure at a time (nanoseconds since 1970) is what it
// must be: one of starting a job, which does not wait for a target, or of any
// call of a rank that was not patient, or is being killed with its target.
func (f *faults) excused(starting bool, at int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	when := time.Unix(0, at)
	for _, one := range f.all {
		if one.last && one.from.Before(when) && (one.to.IsZero() || when.Before(one.to)) {
			return true
		}
		if one.index && one.from.Before(when) {
			return true
		}
		during := one.from.Before(when) && (one.to.IsZero() || when.Before(one.to.Add(grace)))
		if starting && (during || f.short) || f.short && one.from.Before(when) {
			return true
		}
	}
	return false
}

// over forgets the faults: from here on there is no excuse.
func (f *faults) over() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all, f.short = nil, false
}

func between(random *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(random.Int64N(int64(high-low)))
}
