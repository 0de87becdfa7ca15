package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strconv"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/bench/workers"
	"nvmecr/internal/proc"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

// ior is IOR, the benchmark of parallel file systems (github.com/hpc/ior). If it is
// installed, it does the work of the benchmark's rank in the same directories, so that
// a reader need not trust that rank.
type ior struct {
	env     *Env
	launch  []string // starts one process for each rank
	program string
	extra   []string // additional environment for the launcher
}

// findIOR returns IOR with its launcher, or the reason why there is none.
func (e *Env) findIOR() (*ior, error) {
	if e.Agents != nil {
		return nil, errors.New("it is an MPI program and cannot be started by processes of a job: leave mpirun or srun out and name it with --launch")
	}
	name := "ior"
	if e.IOR != "" {
		name = e.IOR
	}
	program, err := exec.LookPath(name)
	if err != nil {
		return nil, errors.New("ior is not in PATH; name the program with --ior")
	}
	x := &ior{env: e, launch: e.Launch, program: program}
	if len(x.launch) > 0 {
		return x, nil
	}
	mpirun, err := exec.LookPath("mpirun")
	if err != nil {
		return nil, errors.New("mpirun, which starts it, is not in PATH")
	}
	x.launch = []string{mpirun, "-n", strconv.Itoa(e.Ranks)}
	x.extra = likeOurRanks()
	return x, nil
}

// likeOurRanks returns variables that make Open MPI start processes as a group does:
// more than there are cores if necessary, and without binding to cores. Open MPI 5
// reads the variables of PRRTE. Other launchers do so by default.
func likeOurRanks() []string {
	env := []string{
		"OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_hwloc_base_binding_policy=none",
		"PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe", "PRTE_MCA_hwloc_default_binding_policy=none",
	}
	if os.Geteuid() == 0 { // the benchmark runs as root
		env = append(env, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	}
	return env
}

// An iorError is a failure of IOR. Everything else can be measured without IOR.
type iorError struct{ error }

// Unwrap returns the cause.
func (e *iorError) Unwrap() error { return e.error }

// move has IOR write a file for each rank in dir, including fsync, or read it in new
// processes and remove it. It returns IOR's MiB/s from the first open to the last
// close.
func (x *ior) move(ctx context.Context, env []string, dir string, w work, read bool) (rate float64, err error) {
	defer func() {
		if err != nil {
			err = &iorError{err}
		}
	}()
	argv := []string{x.program, "-a", "POSIX", "-F", "-t", bytesOf(w.transfer), "-b", bytesOf(w.size), "-o", path.Join(dir, "ior"), "-O", "summaryFormat=JSON"}
	if read {
		argv = append(argv, "-r")
	} else {
		argv = append(argv, "-w", "-e", "-k")
	}
	cmd := workers.Command(x.launch, argv, append(env[:len(env):len(env)], x.extra...))
	cmd.Dir = x.env.scratch
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, func() { proc.KillTree(cmd.Process.Pid) })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, lastLine(append(out.Bytes(), said.Bytes()...)))
	}
	rate, tasks, err := parseIOR(out.Bytes())
	if err == nil && tasks != x.env.Ranks {
		err = fmt.Errorf("it ran as %d processes, not as %d: it is built for another MPI than %s is of", tasks, x.env.Ranks, x.launch[0])
	}
	return rate, err
}

func bytesOf(n nvmf.Bytes) string { return strconv.FormatUint(uint64(n), 10) }

// parseIOR returns the MiB/s and the number of processes in IOR's summary.
func parseIOR(out []byte) (rate float64, tasks int, err error) {
	var r struct {
		Summary []struct {
			Rate  float64 `json:"bwMeanMIB"`
			Tasks int     `json:"numTasks"`
		} `json:"summary"`
	}
	if at := bytes.IndexByte(out, '{'); at >= 0 { // after the output of launchers
		err = json.NewDecoder(bytes.NewReader(out[at:])).Decode(&r)
	}
	if err != nil || len(r.Summary) != 1 || !(r.Summary[0].Rate > 0) {
		return 0, 0, errors.Join(fmt.Errorf("it printed no summary: %s", lastLine(out)), err)
	}
	return r.Summary[0].Rate, r.Summary[0].Tasks, nil
}

// iorRates are the MiB/s that our rank and IOR have measured on a side.
type iorRates struct{ write, read, iorWrite, iorRead stats.Sample }

// besideIOR adds a table with the results of IOR and of the benchmark's rank, in turns,
// on all sides that are directories. Each turn starts new processes of the application.
func (b *testbed) besideIOR(ctx context.Context, res *result.Result, a *application, all []*side) error {
	if b.env.Quick && b.env.IOR == "" {
		return nil
	}
	x, err := b.env.findIOR()
	if err != nil {
		res.NotMeasured("IOR", "%s", err)
		return nil
	}
	var sides []*side
	for _, s := range all {
		if s.group == a.group {
			sides = append(sides, s)
		}
	}
	t := &iorTrial{ior: x, app: a, sides: sides, rates: make(map[*side]*iorRates)}
	for _, s := range sides {
		t.rates[s] = &iorRates{}
	}
	rounds := max(1, b.env.Rounds/2)
	for round := range 1 + rounds { // the first warms up
		for i := range sides {
			b.env.progress("IOR", round*len(sides)+i, (1+rounds)*len(sides))
			err := t.round(ctx, sides[(round+i)%len(sides)], round)
			var failed *iorError
			if errors.As(err, &failed) && ctx.Err() == nil {
				res.NotMeasured("IOR", "%s", err)
				return t.remove(ctx)
			}
			if err != nil {
				return err
			}
		}
	}
	res.Tables = append(res.Tables, t.table())
	return nil
}

// iorTrial has IOR, our ranks, and the sides that are directories.
type iorTrial struct {
	*ior
	app   *application
	sides []*side
	rates map[*side]*iorRates
}

// round does the work once on one side.
func (t *iorTrial) round(ctx context.Context, s *side, round int) error {
	w := work{size: t.env.Size, transfer: t.env.Transfer}
	total := float64(t.app.group.Size()) * float64(w.size) / float64(nvmf.MiB)
	written, err := s.write(ctx, w, round)
	if err != nil {
		return err
	}
	back, err := s.read(ctx, w, round)
	if err != nil {
		return err
	}
	var rates [2]float64
	for i, read := range []bool{false, true} {
		if rates[i], err = t.once(ctx, s, w, read); err != nil {
			return fmt.Errorf("on %s: %w", s.name, err)
		}
	}
	if round > 0 {
		r := t.rates[s]
		r.write, r.read = append(r.write, total/written.Span().Seconds()), append(r.read, total/back.Span().Seconds())
		r.iorWrite, r.iorRead = append(r.iorWrite, rates[0]), append(r.iorRead, rates[1])
	}
	return nil
}

// once has IOR write or read. On nvmecr's mount IOR is the next run of the store, after
// the application's processes have ended. On other sides it runs without nvmecr.
func (t *iorTrial) once(ctx context.Context, s *side, w work, read bool) (float64, error) {
	if s.cold != nil && read {
		if err := s.cold(); err != nil {
			return 0, err
		}
	}
	dir := path.Dir(s.path(0, 0))
	if dir != t.app.cfg.Mount {
		return t.move(ctx, base(), dir, w, read)
	}
	if !read { // a partition has space for two checkpoints of the application, or for this file
		for k := range 2 {
			if _, err := t.app.group.Do(ctx, func(rank int) string { return "unlink " + s.path(rank, k) }); err != nil {
				return 0, err
			}
		}
	}
	env, err := t.app.yield()
	if err != nil {
		return 0, err
	}
	rate, failed := t.move(ctx, env, dir, w, read)
	if err := t.app.restart(ctx); err != nil {
		return 0, errors.Join(failed, err)
	}
	for _, o := range t.sides {
		o.group = t.app.group
	}
	return rate, failed
}

// remove removes the files that a failed IOR has left.
func (t *iorTrial) remove(ctx context.Context) error {
	for _, s := range t.sides {
		dir := path.Dir(s.path(0, 0))
		if _, err := s.group.Do(ctx, func(rank int) string { return "unlink " + path.Join(dir, fmt.Sprintf("ior.%08d", rank)) }); err != nil {
			return err
		}
	}
	return nil
}

// yield ends the ranks and returns the environment of other ranks of the store.
func (a *application) yield() ([]string, error) {
	if err := a.group.Stop(); err != nil {
		return nil, err
	}
	run, err := store.NewRun(a.cfg.Run)
	if err != nil {
		return nil, err
	}
	a.cfg.Run = run
	return a.env.Under(a.cfg, base())
}

// table shows both measurements, and their ratio.
func (t *iorTrial) table() result.Table {
	table := result.Table{
		Title: fmt.Sprintf("The same by IOR: %s, a file of %s each in pieces of %s, open, fsync and close included", rankCount(t.app.group.Size()), t.env.Size, t.env.Transfer),
		Rows:  "side", Columns: []result.Column{
			{Name: "write, our rank", Unit: "MiB/s"}, {Name: "write, IOR", Unit: "MiB/s"}, {Name: "IOR over ours", Unit: result.Ratio},
			{Name: "read, our rank", Unit: "MiB/s"}, {Name: "read, IOR", Unit: "MiB/s"}, {Name: "IOR over ours", Unit: result.Ratio},
		},
		Note: "Each run of IOR is new processes, under the preload on nvmecr's side alone. What it reads is what an earlier run of it wrote; page caches are dropped before as for our rank.",
	}
	for _, s := range t.sides {
		r := t.rates[s]
		table.Add(s.name, result.Number(result.Middle(r.write)), result.Number(result.Middle(r.iorWrite)), alike(r.iorWrite, r.write),
			result.Number(result.Middle(r.read)), result.Number(result.Middle(r.iorRead)), alike(r.iorRead, r.read))
	}
	return table
}

// alike returns the median of the ratios of the rounds.
func alike(ior, ours stats.Sample) result.Cell {
	ratios, err := stats.Ratios(ior, ours)
	if err != nil {
		return result.None()
	}
	return result.Number(result.Middle(ratios))
}
