package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/bench"
	"nvmecr/bench/report"
	"nvmecr/bench/result"
	"nvmecr/internal/cli"
)

type reportOptions struct {
	options
	out    string
	within time.Duration
	only   []string
}

func newReport() *cobra.Command {
	o := &reportOptions{}
	o.env.Config = bench.DefaultConfig()
	var names []string
	for _, x := range bench.Experiments {
		names = append(names, x.Name)
	}
	cmd := &cobra.Command{
		Use:   "report [flags]",
		Short: "Run all experiments and write a page with the results",
		Long: `Runs all experiments, as thoroughly as --time allows. Writes report.html, a page
with plots that needs no other files, report.md with its pictures in plots, the
tables as CSV in tables, and report.json. All are written after each experiment,
so that an interrupted run leaves the results so far.`,
		Example: `  nvmecr bench report --time 20m --out measured
  nvmecr bench report --only imbalance,scale`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.env.Fixed = cmd.Flags().Changed("rounds")
			return o.run(func(ctx context.Context) error { return o.report(ctx, cmd) })
		},
	}
	o.bind(cmd.Flags())
	cmd.Flags().StringVar(&o.out, "out", "nvmecr-report", "`DIRECTORY` for the pages [NVMECR_OUT]")
	cmd.Flags().DurationVar(&o.within, "time", 30*time.Minute, "approximate `TIME` for all experiments [NVMECR_TIME]")
	cmd.Flags().StringSliceVar(&o.only, "only", nil, "`NAMES` of the only experiments to run: "+strings.Join(names, ",")+" [NVMECR_ONLY]")
	return cmd
}

// chosen returns the experiments that --only names, or all.
func (o *reportOptions) chosen() ([]bench.Experiment, error) {
	if len(o.only) == 0 {
		return bench.Experiments, nil
	}
	var chosen []bench.Experiment
	for _, name := range o.only {
		found := false
		for _, x := range bench.Experiments {
			if x.Name == name {
				chosen, found = append(chosen, x), true
			}
		}
		if !found {
			return nil, cli.UsageError{Err: fmt.Errorf("--only %s: there is no such experiment", name)}
		}
	}
	return chosen, nil
}

// report runs the experiments and writes the pages.
func (o *reportOptions) report(ctx context.Context, cmd *cobra.Command) error {
	experiments, err := o.chosen()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o777); err != nil { // fails before the measurements, which take half an hour
		return fmt.Errorf("--out: %w", err)
	}
	r, err := o.measure(ctx, cmd, func(ctx context.Context, r *result.Report) error {
		ctx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		err := o.env.All(ctx, experiments, o.within, func(res *result.Result) {
			r.Results = append(r.Results, res)
			if err := report.Save(o.out, r); err != nil {
				stop(err) // no further results can be saved
			}
		})
		return cmp.Or(err, context.Cause(ctx))
	})
	if err != nil {
		return err
	}
	if err := o.save(r); err != nil {
		return err
	}
	return o.summary(cmd.OutOrStdout(), r)
}

// summary prints the findings in a few lines, and the location of the report.
func (o *reportOptions) summary(w io.Writer, r *result.Report) error {
	if err := report.Summary(w, r); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nAll of it is in %s, report.md, report.json, and as CSV in tables.\n", filepath.Join(o.out, "report.html"))
	return err
}
