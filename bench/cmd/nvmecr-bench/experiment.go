package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/mattn/go-shellwords"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"nvmecr/bench"
	"nvmecr/bench/machine"
	"nvmecr/bench/model"
	"nvmecr/bench/progress"
	"nvmecr/bench/report"
	"nvmecr/bench/result"
	"nvmecr/bench/workers"
	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/installed"
	"nvmecr/internal/preload"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

type options struct {
	env    bench.Env
	size   string
	trans  string
	launch string
	peers  []string
	fabric string
	json   string
	meet   string
}

func newExperiment(x *bench.Experiment) *cobra.Command {
	o := &options{}
	o.env.Config = bench.DefaultConfig()
	cmd := &cobra.Command{
		Use:   x.Name + " [flags]",
		Short: x.Title,
		Args:  cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(func(ctx context.Context) error { return o.conduct(ctx, cmd, x) })
		},
	}
	o.bind(cmd.Flags())
	if x.Name == "goals" {
		cmd.Flags().StringVar(&o.env.Only, "only", "", "`PART` to measure: "+strings.Join(bench.GoalParts(), ", "))
	}
	return cmd
}

func (o *options) bind(f *pflag.FlagSet) {
	f.IntVarP(&o.env.Ranks, "ranks", "n", 0, "`NUMBER` of ranks to start on this host, default 4 [NVMECR_RANKS]")
	f.StringVar(&o.launch, "launch", "", "`COMMAND` that starts the ranks, such as \"srun -n 64\" [NVMECR_LAUNCH]")
	f.StringVar(&o.size, "size", "", "`SIZE` of a rank's checkpoint, default 128M, or less if memory is short")
	f.StringVar(&o.trans, "transfer", "", "`SIZE` of a write, default 1M [NVMECR_TRANSFER]")
	f.IntVar(&o.env.Count, "count", 0, "`NUMBER` of checkpoints that an application takes, default 10 [NVMECR_COUNT]")
	f.DurationVar(&o.env.Compute, "compute", 0, "`TIME` of a simulated compute phase, default 10 times that of a checkpoint [NVMECR_COMPUTE]")
	f.IntVar(&o.env.Names, "names", 0, "`NUMBER` of names for measuring the memory of a tree's index, default 100000 [NVMECR_NAMES]")
	f.IntVar(&o.env.Rounds, "rounds", 0, "`NUMBER` of times that everything is measured, default 9 [NVMECR_ROUNDS]")
	f.StringArrayVar(&o.peers, "peer", nil, "`PEER` to compare with, repeatable: dir:PATH, a directory of another file system [NVMECR_PEER]")
	f.StringVar(&o.env.RawTarget, "raw-target", "", "`NAMESPACE` that the raw side may overwrite, if --target is given [NVMECR_RAW_TARGET]")
	f.StringVar(&o.env.SPDK, "spdk", "", "`DIRECTORY` of SPDK's programs; by default PATH is searched [NVMECR_SPDK]")
	f.StringVar(&o.env.SPDKTarget, "spdk-target", "", "`NAMESPACE` of an SPDK target that may be overwritten; by default a target is started [NVMECR_SPDK_TARGET]")
	f.StringVar(&o.env.IOR, "ior", "", "path of the `PROGRAM` IOR; by default PATH is searched [NVMECR_IOR]")
	f.StringVar(&o.json, "json", "", "`FILE` for the result as JSON [NVMECR_JSON]")
	f.StringVar(&o.fabric, "fabric", "", "`HARDWARE` of the large jobs that the experiment scale computes, such as \""+model.FabricSyntax+"\", which is the paper's and the default [NVMECR_FABRIC]")
	f.StringVar(&o.meet, "rendezvous", ".", "shared `DIRECTORY` in which the processes of mpirun or srun find each other [NVMECR_RENDEZVOUS]")
	cli.AddSwitch(f, &o.env.Quick, "quick", "", "measure only enough to show that everything works [NVMECR_QUICK]")
	o.env.Config.BindFlags(f, benchSettings()...)
}

// benchSettings returns the names of the store's settings that the benchmark accepts.
func benchSettings() []string {
	var names []string
	for name := range config.Default().Values() {
		if name != "name" {
			names = append(names, name)
		}
	}
	return names
}

// run calls conduct in the process that coordinates the ranks. In a job of mpirun or srun the other
// processes become ranks, or agents that start ranks.
func (o *options) run(conduct func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if strings.TrimSpace(o.launch) == "" {
		if place, ok, err := workers.InJob(); ok || err != nil {
			return errors.Join(err, o.inJob(ctx, place, conduct))
		}
	}
	return conduct(ctx)
}

// inJob runs one of the processes that mpirun or srun has started. Rank 0 coordinates, and prints.
func (o *options) inJob(ctx context.Context, place store.Proc, conduct func(context.Context) error) (err error) {
	file, err := workers.Rendezvous(o.meet)
	if err != nil {
		return err
	}
	if place.Rank > 0 {
		return workers.Join(ctx, file, place)
	}
	if o.env.Agents, err = workers.Gather(ctx, file, place); err != nil {
		return err
	}
	defer o.env.Agents.Close()
	o.env.Ranks = place.Size
	return conduct(ctx)
}

// conduct runs one experiment and prints its result.
func (o *options) conduct(ctx context.Context, cmd *cobra.Command, x *bench.Experiment) error {
	r, err := o.measure(ctx, cmd, func(ctx context.Context, r *result.Report) error {
		res, err := x.Measure(ctx, &o.env)
		if err == nil {
			r.Results = append(r.Results, res)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := report.Text(cmd.OutOrStdout(), r); err != nil {
		return err
	}
	return o.save(r)
}

// measure prepares the environment and calls fill to fill a report.
func (o *options) measure(ctx context.Context, cmd *cobra.Command, fill func(context.Context, *result.Report) error) (r *result.Report, err error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if err := o.env.Open(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, o.env.Close()) }()
	screen, _ := cmd.ErrOrStderr().(*os.File)
	bar := progress.Start(screen)
	defer bar.End()
	o.env.Progress = bar.Show
	r = &result.Report{Program: "nvmecr " + cli.Version(), Command: strings.Join(append([]string{"nvmecr bench"}, os.Args[1:]...), " "), Began: time.Now(), Machine: machine.Describe(ctx)}
	return r, fill(ctx, r)
}

// complete converts the flags to the values that the experiments need.
func (o *options) complete() (err error) {
	if err := o.env.Config.Resolve(); err != nil {
		return cli.UsageError{Err: err}
	}
	for _, s := range []struct {
		flag, text string
		to         *nvmf.Bytes
	}{{"size", o.size, &o.env.Size}, {"transfer", o.trans, &o.env.Transfer}} {
		if s.text == "" {
			continue
		}
		if *s.to, err = nvmf.ParseSize(s.text); err != nil {
			return cli.UsageError{Err: fmt.Errorf("--%s: %w", s.flag, err)}
		}
	}
	if err := o.env.Check(); err != nil {
		return cli.UsageError{Err: err}
	}
	if o.json != "" {
		if err := unix.Access(filepath.Dir(o.json), unix.W_OK); err != nil {
			return fmt.Errorf("--json %s: %w", o.json, err)
		}
	}
	if o.env.Fabric, err = model.ParseFabric(o.fabric); err != nil {
		return cli.UsageError{Err: fmt.Errorf("--fabric: %w", err)}
	}
	for _, p := range o.peers {
		dir, ok := strings.CutPrefix(p, "dir:")
		if !ok || dir == "" {
			return cli.UsageError{Err: fmt.Errorf("--peer %s: is not dir:PATH", p)}
		}
		o.env.Peers = append(o.env.Peers, bench.Peer{Name: dir, Dir: dir})
	}
	if o.env.Launch, err = shellwords.Parse(o.launch); err != nil {
		return cli.UsageError{Err: fmt.Errorf("--launch %s: %w", o.launch, err)}
	}
	for _, p := range []struct {
		name string
		to   *string
	}{{"nvmecr", &o.env.Nvmecr}, {"nvmecr-bench", &o.env.Bench}, {"nvmecr-bench-rank", &o.env.Rank}} {
		if *p.to, err = installed.Find(p.name); err != nil {
			return err
		}
	}
	library, err := preload.Library()
	if err != nil {
		return err
	}
	o.env.Under = func(cfg *config.Config, base []string) ([]string, error) {
		return preload.Environ(cfg, base, library), nil
	}
	return nil
}

func (o *options) save(r *result.Report) error {
	if o.json == "" {
		return nil
	}
	f, err := os.Create(o.json)
	if err != nil {
		return err
	}
	return errors.Join(r.Write(f), f.Close())
}
