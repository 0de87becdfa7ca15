package main

import (
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"nvmecr/internal/demo"
)

//go:embed testdata/rank.c testdata/operations.h testdata/shared.h testdata/ranks.sh testdata/checkpoints.sh
var sources embed.FS

func main() {
	var o options
	minutes := flag.Float64("minutes", 1, "how long")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano())%1_000_000, "of the chaos")
	flag.IntVar(&o.ranks, "ranks", 3, "ranks")
	flag.StringVar(&o.nvmecr, "nvmecr", "bin/nvmecr", "the command")
	flag.DurationVar(&o.round, "round", 8*time.Second, "how long a round is, on average")
	flag.StringVar(&o.size, "size", "", "of the namespaces; one of several by default")
	flag.BoolVar(&o.tree, "tree", false, "one tree for all ranks (--view=job), which take turns at its files")
	flag.BoolVar(&o.mirrors, "mirrors", false, "two targets that mirror one another (--copies-sync): one of them is lost for good, too")
	flag.BoolVar(&o.copies, "copies", false, "stores whose checkpoints are copied to other targets (--copies), which are lost for good")
	flag.Parse()
	o.long = time.Duration(*minutes * float64(time.Minute))
	o.keep = true
	if err := soak(os.Stdout, o); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

type options struct {
	nvmecr  string
	long    time.Duration
	round   time.Duration
	seed    uint64
	ranks   int
	size    string
	tree    bool // all ranks have one tree
	mirrors bool // two targets that mirror one another
	copies  bool // stores with copies made in the background
	keep    bool // keep the files after a failure
}

// soak runs rounds until its time is over, and prints the table on out.
func soak(out io.Writer, o options) (err error) {
	begin := time.Now()
	nvmecr, err := filepath.Abs(o.nvmecr)
	if err != nil {
		return err
	}
	stage, err := demo.NewStage(nvmecr)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Soak of %s, %d ranks with %d actors each, seed %d, in %s.\n", o.long, o.ranks, actors, o.seed, stage.Dir)
	log, err := os.Create(filepath.Join(stage.Dir, "log"))
	if err != nil {
		return errors.Join(err, stage.Close())
	}
	defer log.Close()
	t := newTally(log)
	if o.copies {
		err = copyRounds(out, stage, t, o)
	} else {
		err = rounds(out, stage, t, o)
	}
	if left := stage.Processes(); len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("processes were left behind: %v", left))
	}
	t.print(out, time.Since(begin))
	if err != nil && o.keep {
		fmt.Fprintf(out, "FAIL, seed %d; the evidence is in %s\n", o.seed, stage.Dir)
		return errors.Join(err, stage.Leave())
	}
	if e := stage.Close(); err == nil && e == nil {
		fmt.Fprintf(out, "PASS, seed %d\n", o.seed)
	} else {
		err = errors.Join(err, e)
		fmt.Fprintf(out, "FAIL, seed %d\n", o.seed)
	}
	return err
}

func rounds(out io.Writer, stage *demo.Stage, t *tally, o options) (err error) {
	random := rand.New(rand.NewPCG(o.seed, 0))
	programs, launchers, err := build(stage.Dir)
	if err != nil {
		return err
	}
	external := newTestbed(stage, t, "external", o.storeSize(random), o.ranks)
	embedded := newTestbed(stage, t, "embedded", o.storeSize(random), o.ranks)
	external.tree, embedded.tree = o.tree, o.tree
	testbeds := []*testbed{external, embedded, external}
	if o.mirrors {
		testbeds = testbeds[:1]
	}
	defer func() {
		external.close()
		err = errors.Join(err, external.end())
	}()
	if err := external.external(1 + oneIf(o.mirrors)); err != nil {
		return err
	}
	fmt.Fprintf(out, "Stores of %s and %s; launchers %v.\n", external.size, embedded.size, launchers)

	number := 0
	next := func(f *testbed) *round {
		number++
		return &round{
			testbed: f, number: number, launcher: launchers[random.IntN(len(launchers))], programs: programs,
			random: rand.New(rand.NewPCG(o.seed, uint64(number))),
		}
	}
	for end := time.Now().Add(o.long); time.Now().Before(end); {
		r := next(testbeds[number%len(testbeds)])
		begin := time.Now()
		if err := r.play(between(random, o.round/2, o.round*3/2)); err != nil {
			return fmt.Errorf("round %d, %s, %s: %w", r.number, r.name, r.launcher, err)
		}
		fmt.Fprintf(out, "round %d: %s, %s, %d jobs, %.1f s\n", r.number, r.name, r.launcher, r.jobs, time.Since(begin).Seconds())
		_ = os.RemoveAll(filepath.Join(stage.Dir, fmt.Sprintf("round%d", number-20)))
	}
	for _, f := range []*testbed{external, embedded} {
		if f.histories[0].starts == 0 {
			continue
		}
		r := next(f)
		if err := r.last(); err != nil {
			return fmt.Errorf("last look at %s, %s: %w", r.name, r.launcher, err)
		}
	}
	return nil
}

// storeSize returns the size of a testbed's store.
func (o *options) storeSize(random *rand.Rand) string {
	switch {
	case o.size != "":
		return o.size
	case o.mirrors: // half of the namespace
		return []string{"512M", "8G"}[oneIf(o.tree)]
	case o.tree: // a job of one rank has 1/16 of it, and no write may be short for want of space; if the index is full, a close fails
		return []string{"2G", "4G"}[random.IntN(2)]
	}
	return []string{tight, "96M", "256M"}[random.IntN(3)]
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// unpack writes the programs of the jobs to a directory.
func unpack(dir string) error {
	files, err := fs.Sub(sources, "testdata")
	if err != nil {
		return err
	}
	return os.CopyFS(dir, files)
}

// build compiles the rank for each launcher that is installed.
func build(dir string) (programs map[string]string, launchers []string, err error) {
	err = unpack(dir)
	source := filepath.Join(dir, "rank.c")
	programs = map[string]string{}
	for _, c := range []struct{ launcher, compiler, flag string }{
		{"sh", "gcc", "-USOAK_MPI"},
		{"mpirun.openmpi", "mpicc.openmpi", "-DSOAK_MPI"},
		{"mpirun.mpich", "mpicc.mpich", "-DSOAK_MPI"},
	} {
		if _, e := exec.LookPath(c.compiler); e != nil {
			continue
		}
		name := filepath.Join(dir, program+"."+c.launcher)
		if text, e := exec.Command(c.compiler, "-O2", "-pthread", c.flag, "-o", name, source).CombinedOutput(); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w\n%s", c.compiler, e, text))
		}
		programs[c.launcher] = name
		launchers = append(launchers, c.launcher)
	}
	if len(launchers) == 0 {
		err = errors.Join(err, errors.New("no C compiler: make deps"))
	}
	return programs, launchers, err
}

// checks returns the available commands that check a store.
func checks(s *demo.Stage) []string {
	offered.Do(func() {
		help, _ := exec.Command(s.Nvmecr, "help").CombinedOutput() // errors are found elsewhere
		for _, name := range []string{"fsck", "verify"} {
			if regexp.MustCompile(`(?m)^\s+` + name + `\s`).Match(help) {
				offeredChecks = append(offeredChecks, name)
			}
		}
	})
	return offeredChecks
}

var (
	offered       sync.Once
	offeredChecks []string
)
