package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"syscall"

	"nvmecr/bench/stats"
	"nvmecr/bench/workers"
	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/nvmf"

	"github.com/google/uuid"
)

// A side of a comparison has ranks, and a place for their data.
type side struct {
	name  string
	group *workers.Group
	// path returns the path of a rank's k-th checkpoint.
	path func(rank, k int) string
	// part, if not nil, returns the location of a rank's pieces in a file of several
	// ranks: first, first+step, and so on.
	part func(w work, rank int) (first, step nvmf.Bytes)
	// cold, if not nil, is called before a read, so that the data is not in the memory
	// of this host.
	cold func() error
	// clear, if not nil, is called before a write. It removes the file that will be
	// written.
	clear func(ctx context.Context, k int) error
	// partner, if not nil, stores a second copy of each checkpoint. The copy is part of
	// writing the checkpoint.
	partner *side
	// memory says that the files are in the memory of the rank's host, as on tmpfs.
	memory bool
}

// work is the work of all ranks of a side: each rank writes or reads a checkpoint.
type work struct {
	size, transfer nvmf.Bytes
	ranks          int // number of ranks that take part; 0: all
}

func (s *side) write(ctx context.Context, w work, k int) (workers.Round, error) {
	if s.clear != nil {
		if err := s.clear(ctx, k); err != nil {
			return nil, err
		}
	}
	r, err := s.do(ctx, "write", w, k, 1)
	if err != nil || s.partner == nil {
		return r, err
	}
	second, err := s.partner.do(ctx, "write", w, k, 1)
	return append(r, second...), err
}

func (s *side) read(ctx context.Context, w work, k int) (workers.Round, error) {
	if s.cold != nil {
		if err := s.cold(); err != nil {
			return nil, err
		}
	}
	return s.do(ctx, "read", w, k, 0)
}

func (s *side) do(ctx context.Context, what string, w work, k, flag int) (workers.Round, error) {
	round, err := s.group.Do(ctx, func(rank int) string {
		if w.ranks > 0 && rank >= w.ranks {
			return ""
		}
		line := fmt.Sprintf("%d %d %d %d ", uint64(w.size), uint64(w.transfer), k, flag)
		if s.part == nil {
			return what + " " + line + s.path(rank, k)
		}
		first, step := s.part(w, rank)
		return fmt.Sprintf("%s-part %s%d %d %s", what, line, uint64(first), uint64(step), s.path(rank, k))
	})
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", s.name, what, err)
	}
	return round, nil
}

// taken has the measured rounds of a side.
type taken struct {
	write, read []workers.Round
	cached      bool // a read may come from the memory of the rank's host
	memory      bool // the side's files are in the memory of the rank's host
}

// inTurns has all sides write and then read, round after round. Each round begins with
// another side.
func (e *Env) inTurns(ctx context.Context, what string, w work, reading bool, sides ...*side) (map[*side]*taken, error) {
	all := make(map[*side]*taken)
	for _, s := range sides {
		all[s] = &taken{cached: s.cold == nil, memory: s.memory}
	}
	for round := range e.Warm + e.Rounds {
		e.progress(what, round, e.Warm+e.Rounds)
		for i := range sides {
			s := sides[(round+i)%len(sides)]
			r, err := s.write(ctx, w, round)
			if err != nil {
				return nil, err
			}
			if round >= e.Warm {
				all[s].write = append(all[s].write, r)
			}
		}
		for i := range sides {
			s := sides[(round+i)%len(sides)]
			if !reading {
				continue
			}
			r, err := s.read(ctx, w, round)
			if err != nil {
				return nil, err
			}
			if round >= e.Warm {
				all[s].read = append(all[s].read, r)
			}
		}
	}
	return all, nil
}

// spans returns the seconds of each round until its slowest rank has ended.
func spans(rounds []workers.Round) stats.Sample {
	s := make(stats.Sample, len(rounds))
	for i, r := range rounds {
		s[i] = r.Span().Seconds()
	}
	return s
}

// medians returns the seconds of the median call of each round, as the median over the ranks.
func medians(rounds []workers.Round) stats.Sample {
	s := make(stats.Sample, len(rounds))
	for i, r := range rounds {
		s[i] = r.Sample("p50").Median() / 1e9
	}
	return s
}

// An application has ranks under the preload with their own store.
type application struct {
	env   *Env
	cfg   *config.Config
	group *workers.Group
	// pin is the core to which the ranks are bound from the beginning; -1: none.
	pin int
	// mounted has the time that the ranks took to mount their partitions.
	mounted workers.Round
	// server is the server of the run if its ranks have one tree: it has the index.
	server *daemon
}

// storeName is the name of the benchmark's store. A store of an earlier benchmark is overwritten;
// stores with other names are refused.
const storeName = "nvmecr-bench"

// pinned is passed like a setting. Its value is the core to which the ranks are bound
// before the runtime is loaded.
const pinned = "pinned"

// startApplication starts ranks over the targets, with settings "name=value" in addition to the
// user's.
func (e *Env) startApplication(ctx context.Context, targets []nvmf.TransportID, settings ...string) (*application, error) {
	cfg := config.Default()
	if err := cfg.Adopt(e.Config.Values()); err != nil {
		return nil, err
	}
	err, pin := cfg.Set("name", storeName), -1
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		if name == pinned {
			pin, err = strconv.Atoi(value)
			continue
		}
		err = errors.Join(err, cfg.Set(name, value))
	}
	if err != nil {
		return nil, err
	}
	cfg.Targets = targets
	a := &application{env: e, cfg: cfg, pin: pin}
	if cfg.Run, err = store.NewRun(uuid.Nil); err != nil {
		return nil, err
	}
	if err := errors.Join(store.Reset(ctx, cfg), store.MakeCopyAreas(ctx, cfg)); err != nil { // like `nvmecr run`
		return nil, err
	}
	if err := a.start(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *application) start(ctx context.Context) (err error) {
	if a.cfg.View == config.ViewJob {
		if a.server, err = a.env.startServer(a.cfg); err != nil {
			return err
		}
	}
	return a.startRanks(ctx)
}

// startRanks starts only the ranks.
func (a *application) startRanks(ctx context.Context) error {
	env, err := a.env.Under(a.cfg, base())
	if err != nil {
		return err
	}
	if a.group, err = a.env.startGroup(ctx, env, a.env.Rank); err != nil {
		return err
	}
	if a.pin >= 0 {
		if _, err := a.group.DoAll(ctx, fmt.Sprintf("pin %d", a.pin)); err != nil {
			return err
		}
	}
	// Formatting and mounting end before anything is timed.
	a.mounted, err = a.group.DoAll(ctx, "memory "+path.Join(a.cfg.Mount, "absent"))
	return err
}

// stop ends the processes.
func (a *application) stop() error {
	err := a.group.Stop()
	if a.server != nil {
		err = errors.Join(err, a.server.Close())
	}
	return err
}

// restart ends the processes and starts new ones, as the next run of the store.
func (a *application) restart(ctx context.Context) error {
	if err := a.stop(); err != nil {
		return err
	}
	run, err := store.NewRun(a.cfg.Run)
	if err != nil {
		return err
	}
	a.cfg.Run = run
	return a.start(ctx)
}

// Close ends the ranks and releases the store.
func (a *application) Close() error {
	err := a.stop()
	ctx, cancel := context.WithTimeout(context.Background(), targetEnd)
	defer cancel()
	_, e := store.Release(ctx, a.cfg)
	return errors.Join(err, e)
}

// checkpoints returns the names of a rank's checkpoints: two that alternate.
func checkpoints(dir string) func(rank, k int) string {
	return func(rank, k int) string { return path.Join(dir, fmt.Sprintf("ckpt.%d.%d", rank, k%2)) }
}

func (a *application) side(name string) *side {
	return &side{name: name, group: a.group, path: checkpoints(a.cfg.Mount)}
}

// raw has ranks with one queue each.
type raw struct{ group *workers.Group }

func (e *Env) startRaw(ctx context.Context, id nvmf.TransportID) (*raw, error) {
	c, err := e.startGroup(ctx, base(), e.Bench, "rank-raw", "--driver", string(e.Config.Driver), "--namespace", id.String())
	if err != nil {
		return nil, err
	}
	return &raw{c}, nil
}

func (r *raw) side(name string) *side {
	return &side{name: name, group: r.group, path: func(int, int) string { return "-" }}
}

func (r *raw) Close() error { return r.group.Stop() }

// sockets has both ends of the plain TCP connections of the sockets baseline, one for each rank.
type sockets struct {
	group  *workers.Group
	server *exec.Cmd
	stdin  io.Closer
	where  string
}

// startSockets starts both ends. The receiving end has memory of the given size.
func (e *Env) startSockets(ctx context.Context, ranks int, size nvmf.Bytes) (*sockets, error) {
	s := &sockets{server: exec.Command(e.Rank, "--serve-sockets", strconv.FormatUint(uint64(size), 10), strconv.Itoa(ranks))}
	s.server.Env, s.server.Stderr = base(), os.Stderr
	s.server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	mode := ""
	if 2*ranks <= cores() {
		s.server.Env, mode = append(s.server.Env, "NVMECR_BENCH_SPIN=1"), ":spin"
	}
	stdin, err := s.server.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := s.server.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.server.Start(); err != nil {
		return nil, err
	}
	s.stdin = stdin
	var port int
	if _, err := fmt.Fscanln(stdout, &port); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.where = fmt.Sprintf("tcp:127.0.0.1:%d%s", port, mode)
	local := *e
	local.Launch, local.Agents, local.Ranks = nil, nil, ranks
	if s.group, err = local.startGroup(ctx, base(), e.Rank); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *sockets) side(name string) *side {
	return &side{name: name, group: s.group, path: func(int, int) string { return s.where }}
}

// Close stops both ends.
func (s *sockets) Close() error {
	var err error
	if s.group != nil {
		err = s.group.Stop()
	}
	s.stdin.Close()
	return errors.Join(err, s.server.Wait())
}
