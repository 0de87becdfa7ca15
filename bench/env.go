package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"nvmecr/bench/model"
	"nvmecr/bench/workers"
	"nvmecr/internal/config"
	"nvmecr/nvmf"
)

// An Env describes what the experiments run on, and how much they do. Zero fields get
// values that suit the machine when the first experiment runs.
type Env struct {
	// Nvmecr, Bench and Rank are the paths of three programs: the two commands, and the
	// rank program in C.
	Nvmecr, Bench, Rank string
	// Under returns base with the preload and the settings of cfg, as for a job of `nvmecr run`.
	Under func(cfg *config.Config, base []string) ([]string, error)
	// Config has the settings of the store, and its targets. Without targets the
	// benchmark starts a target process with a namespace in memory.
	Config *config.Config
	// RawTarget is a namespace that the raw side may overwrite. If it is empty, and the
	// user has named no targets, the benchmark's own target has another namespace for
	// the raw side.
	RawTarget string

	// Ranks are started on this host, unless Launch or Agents is set.
	Ranks  int
	Launch []string
	Agents *workers.Agents

	// Size is the size of a rank's checkpoint, written in pieces of Transfer.
	Size, Transfer nvmf.Bytes
	// Count is the number of checkpoints that an application takes.
	Count int
	// Rounds is the number of times that each side of a comparison does its work. Warm
	// rounds come first and do not count.
	Rounds, Warm int
	// Fixed says that a report must not adapt Rounds to the available time.
	Fixed bool
	// Peers are directories of file systems to compare with.
	Peers []Peer
	// Fabric has the bandwidths for the model of large jobs. If the bandwidth of its
	// targets is 0, the paper's fabric is used.
	Fabric model.Fabric
	// SPDK is the directory of SPDK's programs; if it is empty, PATH is searched.
	// SPDKTarget is a namespace of an SPDK target that may be overwritten; if it is
	// empty, the benchmark starts a target.
	SPDK, SPDKTarget string
	// IOR is the path of IOR; if it is empty, PATH is searched.
	IOR string
	// Names is the number of names for measuring the memory of an index; 0 means
	// usualNames.
	Names int
	// Quick leaves out everything that is not needed to see the ratios.
	Quick bool

	// Only is the name of the only part of the goals to measure.
	Only string

	// Progress is called with the current step and the finished part of the experiment, from 0 to
	// 1. It may be nil.
	Progress func(what string, part float64)

	// Compute is the length of a compute phase; 0 means 10 times that of a checkpoint.
	Compute time.Duration

	// until is the time after which no further part of the goals begins; zero means
	// never.
	until time.Time

	scratch string  // directory for the duration of the run
	claims  *claims // scratch, and directories in other places
}

// A Peer is a directory of another file system.
type Peer struct {
	Name string // for readers, such as "XFS on a loop device"
	Dir  string
}

// block is the unit of sizes, since a raw rank transfers whole blocks.
const block = 4 * nvmf.KiB

// Check returns an error for the first invalid setting. The error names its flag.
func (e *Env) Check() error {
	for _, n := range []struct {
		flag  string
		value int64
	}{{"ranks", int64(e.Ranks)}, {"rounds", int64(e.Rounds)}, {"count", int64(e.Count)}, {"compute", int64(e.Compute)}, {"names", int64(e.Names)}} {
		if n.value < 0 {
			return fmt.Errorf("--%s: is negative", n.flag)
		}
	}
	for _, n := range []struct {
		flag  string
		value nvmf.Bytes
	}{{"size", e.Size}, {"transfer", e.Transfer}} {
		if n.value%block != 0 {
			return fmt.Errorf("--%s: %s is no multiple of %s", n.flag, n.value, block)
		}
	}
	if t := cmp.Or(e.Transfer, usualTransfer); e.Size > t && e.Size%t != 0 {
		return fmt.Errorf("--size: %s is no multiple of the %s of a write (--transfer)", e.Size, t)
	}
	if e.Only != "" && !slices.Contains(GoalParts(), e.Only) {
		return fmt.Errorf("--only %s: there is no such part; there are %s", e.Only, strings.Join(GoalParts(), ", "))
	}
	if e.SPDK != "" {
		if _, err := e.findSPDK(spdkPerf); err != nil {
			return fmt.Errorf("--spdk: %w", err)
		}
	}
	if e.IOR != "" {
		if _, err := exec.LookPath(e.IOR); err != nil {
			return fmt.Errorf("--ior: %w", err)
		}
	}
	return nil
}

// Default values. There are few rounds if the benchmark is to be quick.
const (
	usualRanks    = 4
	usualSize     = 128 * nvmf.MiB
	usualTransfer = nvmf.MiB
	usualCount    = 10
	usualRounds   = 9
	quickRounds   = 3
)

// DefaultConfig returns the default settings of the store. Each rank has its own files,
// like the ranks of the peers.
func DefaultConfig() *config.Config {
	c := config.Default()
	c.View = config.ViewRank
	return c
}

// complete sets the zero fields.
func (e *Env) complete() {
	if e.Config == nil {
		e.Config = DefaultConfig()
	}
	rounds := usualRounds
	if e.Quick {
		rounds = quickRounds
	}
	e.Ranks, e.Count = cmp.Or(e.Ranks, usualRanks), cmp.Or(e.Count, usualCount)
	e.Rounds, e.Warm = cmp.Or(e.Rounds, rounds), cmp.Or(e.Warm, 2)
	e.Transfer = cmp.Or(e.Transfer, usualTransfer)
	if e.Size == 0 {
		e.Size = max(whole(e.affordable(usualSize), e.Transfer), e.Transfer)
	}
	e.Transfer = min(e.Transfer, e.Size)
}

// whole returns the largest multiple of unit that is at most n.
func whole(n, unit nvmf.Bytes) nvmf.Bytes { return n - n%unit }

// affordable returns the size of a checkpoint: wanted, or less if two namespaces and
// the memory of the sockets baseline would take more than half of the free memory.
func (e *Env) affordable(wanted nvmf.Bytes) nvmf.Bytes {
	free := freeMemory()
	for wanted > 8*nvmf.MiB && 3*e.namespace(wanted) > free/2 {
		wanted /= 2
	}
	return wanted
}

// namespace returns the size of a namespace for all ranks: two checkpoints of each, and the
// metadata of the file system.
func (e *Env) namespace(size nvmf.Bytes) nvmf.Bytes {
	return nvmf.Bytes(e.Ranks) * (2*size + 64*nvmf.MiB)
}

// freeMemory returns the available memory of the kernel, or 1 GiB if it is unknown.
func freeMemory() nvmf.Bytes {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nvmf.GiB
	}
	for _, line := range strings.Split(string(text), "\n") {
		var kib nvmf.Bytes
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d", &kib); n == 1 {
			return kib * nvmf.KiB
		}
	}
	return nvmf.GiB
}

// Open prepares the environment. Close must be called afterwards.
func (e *Env) Open(ctx context.Context) (err error) {
	e.claims = &claims{}
	if e.scratch, err = e.claims.in(os.TempDir()); err != nil {
		return err
	}
	if len(e.Launch) > 0 {
		if err := e.countLaunched(ctx); err != nil {
			return errors.Join(err, e.Close())
		}
	}
	e.complete()
	return nil
}

// countLaunched asks the launcher how many ranks it starts.
func (e *Env) countLaunched(ctx context.Context) error {
	c, err := e.startGroup(ctx, base(), e.Rank)
	if err != nil {
		return fmt.Errorf("--launch: %w", err)
	}
	e.Ranks = c.Size()
	return c.Stop()
}

// Close removes the files and directories of the experiments.
func (e *Env) Close() error {
	if e.claims == nil {
		return nil
	}
	return e.claims.close()
}

// progress reports the finished part of an experiment.
func (e *Env) progress(what string, done, all int) {
	if e.Progress != nil && all > 0 {
		e.Progress(what, float64(done)/float64(all))
	}
}

// within returns an environment that reports its progress as the i-th of n parts.
func (e *Env) within(i, n int) *Env {
	o := *e
	if e.Progress != nil {
		o.Progress = func(what string, part float64) { e.Progress(what, (float64(i)+part)/float64(n)) }
	}
	return &o
}

// with returns an environment for another number of ranks.
func (e *Env) with(ranks int) *Env {
	o := *e
	o.Ranks = ranks
	return &o
}

// rankCount returns a number of ranks as text.
func rankCount(n int) string {
	if n == 1 {
		return "1 rank"
	}
	return fmt.Sprintf("%d ranks", n)
}

// base returns the environment of child processes: that of this process without
// nvmecr's settings and preload.
func base() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "NVMECR_") && !strings.HasPrefix(kv, "LD_PRELOAD=") {
			env = append(env, kv)
		}
	}
	return env
}

// remote reports whether ranks may be on other hosts.
func (e *Env) remote() bool { return len(e.Launch) > 0 || e.Agents != nil }

// startGroup starts ranks of a program.
func (e *Env) startGroup(ctx context.Context, env []string, argv ...string) (*workers.Group, error) {
	return workers.Start(ctx, workers.Options{Argv: argv, Env: env, Ranks: e.Ranks, Launch: e.Launch, Agents: e.Agents})
}

// cores returns the number of processors that this process may use.
func cores() int { return runtime.NumCPU() }

// closeAll closes in reverse order and joins the errors.
func closeAll(closers []io.Closer) error {
	var errs []error
	for i := len(closers) - 1; i >= 0; i-- {
		errs = append(errs, closers[i].Close())
	}
	return errors.Join(errs...)
}
