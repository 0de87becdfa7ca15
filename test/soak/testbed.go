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
	"sync/atomic"
	"time"

	"nvmecr/internal/config"
	"nvmecr/internal/demo"
	"nvmecr/nvmf"
)

// A testbed is a store, with its targets, and with the acknowledged operations of its ranks.
type testbed struct {
	name      string
	size      string // size of the namespace
	ranks     int
	tree      bool   // all ranks have one
	copies    string // the value of --copies of a store whose checkpoints are copied in the background
	stage     *demo.Stage
	tally     *tally
	histories []*history

	*server           // the target that gets faults; empty on the embedded testbed
	servers []*server // external targets; several ones mirror each other

	faults  faults
	timeout time.Duration // time-out of ranks
}

// A server is a target, behind a relay.
type server struct {
	relay   *relay
	image   string
	address string // address of the target
	mu      sync.Mutex
	target  *demo.Job
}

const (
	// mirrored is the time-out with mirrors. Ranks wait a quarter of it for one target, and continue with the other one.
	mirrored = 8 * time.Second
	// patient is a time-out that is longer than any fault.
	patient = 2 * time.Minute
	// impatient is a time-out after which ranks give up.
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

// whole returns the size of the largest atomic write: one that fits a page of the log even if each of its hugeblocks is in a separate
// extent. If space is short, a write may be short anywhere.
func (f *testbed) whole() int64 {
	if f.size == tight {
		return 0
	}
	return 1 << 20
}

// tight is the size of a namespace that the ranks can fill.
const tight = "32M"

// addresses counts the addresses of targets. On its own address no other process takes the port of a target that was killed.
var addresses atomic.Uint32

// external adds targets to the testbed, each behind a relay.
func (f *testbed) external(targets int) error {
	for n := range targets {
		r, err := newRelay()
		if err != nil {
			return err
		}
		f.server = &server{relay: r, address: fmt.Sprintf("127.0.2.%d:0", addresses.Add(1)), image: filepath.Join(f.stage.Dir, fmt.Sprintf("%s%d.img", f.name, n))}
		f.servers = append(f.servers, f.server)
		if err := f.serve(); err != nil {
			return err
		}
	}
	return nil
}

// patience returns the time-out of ranks that do not give up.
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

// serve starts the target on its previous port. The caller holds f.mu, or has the only reference to f.
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
			f.target, f.address = job, net.JoinHostPort(id.Address, id.Service)
			f.relay.pass(f.address)
			return nil
		}
		last = job.Wait(context.Background()) // the killed target still has the port or the file
	}
	return fmt.Errorf("the target does not come back: %w", last)
}

// flags returns the flags that name the testbed.
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

// run returns the command line that runs argv on the testbed.
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

// home returns the directory of a rank in a copy of the store.
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

// command returns a command of nvmecr on the testbed.
func (f *testbed) command(ctx context.Context, command string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, f.stage.Nvmecr, append(append([]string{command}, f.flags()...), args...)...)
	cmd.Env, cmd.Dir = f.stage.Environ(), f.stage.Dir
	if f.mirrors() {
		cmd.Env = append(cmd.Env, "NVMECR_COPIES_SYNC=on")
	}
	if f.copies != "" {
		cmd.Env = append(cmd.Env, "NVMECR_TIMEOUT="+patient.String()) // all targets are up
	}
	return cmd
}

// faults are the periods in which the target could not be reached.
type faults struct {
	mu  sync.Mutex
	all []fault
	// short is true if ranks do not wait for the end of each fault.
	short bool
}

type fault struct {
	from, to time.Time // to is zero while it lasts
	last     bool      // the job does not survive the fault
	index    bool      // the index was killed: unlinked open files are lost permanently
}

// grace is how long after its end a fault excuses failures: connecting takes a while on a busy machine.
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

// indexKilled records a fault without an end.
func (f *faults) indexKilled() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, fault{from: time.Now(), index: true})
}

// withIndex reports whether the index was killed.
func (f *faults) withIndex() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.all, func(one fault) bool { return one.index })
}

// until records a fault that ends by itself.
func (f *faults) until(to time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, fault{from: time.Now(), to: to})
}

// excused reports whether a failure at a time (nanoseconds since 1970) is expected: of starting a job, which does not wait for a target;
// or of a call of a rank that is not patient, or that is killed together with its target.
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

// over removes all faults: later failures have no excuse.
func (f *faults) over() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all, f.short = nil, false
}

func between(random *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(random.Int64N(int64(high-low)))
}
