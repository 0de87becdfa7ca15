package command

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nvmecr/balancer/site"
	"nvmecr/internal/cli"
	"nvmecr/nvmf"
	"nvmecr/slurm"
)

type slurmOptions struct {
	state, runtime      string
	inventory, topology string
	capacity, retain    string
	grace               time.Duration
	json                bool
}

func newSlurm() *cobra.Command {
	o := &slurmOptions{}
	cmd := &cobra.Command{
		Use:   "slurm",
		Short: "Allocate checkpoint space to Slurm jobs",
		Long: `Commands for Slurm's hooks: a job gets namespaces on targets of the site's inventory when it starts, and they are freed when
it has ended. A job requests them by sbatch --checkpoint=nvmf:2,capacity=40G, or by --comment or --gres=nvmf:2.
See docs/slurm.md.`,
		Example: `  nvmecr slurm check
  nvmecr slurm status`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	o.bind(cmd.PersistentFlags())
	for _, hook := range []struct {
		name, short string
		run         func(cmd *cobra.Command, h *slurm.Hooks) error
	}{
		{"prolog-ctld", "PrologSlurmctld: make a job's namespaces", func(cmd *cobra.Command, h *slurm.Hooks) error {
			return ofJob(func(id uint32) error {
				return h.PrologController(cmd.Context(), id, cmp.Or(os.Getenv("SPANK_NVMECR_CHECKPOINT"), slurm.InComment(os.Getenv("SLURM_JOB_COMMENT"))))
			})
		}},
		{"prolog", "Prolog: write a job's key and settings on this node; never fails", func(cmd *cobra.Command, h *slurm.Hooks) error {
			return printOnly(cmd.ErrOrStderr(), ofJob(func(id uint32) error { return h.Prolog(id, o.runtime) }))
		}},
		{"task-prolog", "TaskProlog: print a job's variables", func(cmd *cobra.Command, _ *slurm.Hooks) error {
			return printOnly(cmd.ErrOrStderr(), ofJob(func(id uint32) error { return slurm.TaskProlog(cmd.OutOrStdout(), id, o.runtime) }))
		}},
		{"epilog", "Epilog: remove a job's key and settings from this node; never fails", func(cmd *cobra.Command, h *slurm.Hooks) error {
			return printOnly(cmd.ErrOrStderr(), ofJob(func(id uint32) error { return h.Epilog(id, o.runtime) }))
		}},
		{"epilog-ctld", "EpilogSlurmctld: note that a job has ended", func(_ *cobra.Command, h *slurm.Hooks) error { return ofJob(h.EpilogController) }},
		{"reconcile", "Free space that jobs no longer need: for cron, or a timer", func(cmd *cobra.Command, h *slurm.Hooks) error { return h.Reconcile(cmd.Context()) }},
		{"status", "List the leases, and namespaces without one", func(cmd *cobra.Command, h *slurm.Hooks) error { return o.status(cmd, h) }},
		{"check", "Examine the installation", func(cmd *cobra.Command, h *slurm.Hooks) error { return o.check(cmd, h) }},
	} {
		cmd.AddCommand(&cobra.Command{Use: hook.name, Short: hook.short, Example: "  nvmecr slurm " + hook.name, Args: cli.Args(cobra.NoArgs),
			RunE: func(cmd *cobra.Command, _ []string) error {
				ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
				defer stop()
				cmd.SetContext(ctx)
				h, err := o.hooks(cmd.ErrOrStderr(), hook.name)
				if err != nil {
					return err
				}
				return hook.run(cmd, h)
			}})
	}
	cmd.AddCommand(newSlurmStep(&o.runtime), &cobra.Command{
		Use: "request REQUEST", Short: "Check the syntax of a request, for the SPANK plugin", Example: "  nvmecr slurm request nvmf:2,capacity=40G", Hidden: true, Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			_, err := slurm.ParseRequest(args[0], slurm.Request{})
			return err
		},
	})
	return cmd
}

func (o *slurmOptions) bind(f *pflag.FlagSet) {
	f.StringVar(&o.state, "state", "/var/spool/nvmecr", "`DIRECTORY` of the leases, which the controller and the nodes share [NVMECR_STATE]")
	f.StringVar(&o.runtime, "runtime", "/run/nvmecr", "`DIRECTORY` of a node for what its jobs need [NVMECR_RUNTIME]")
	f.StringVar(&o.inventory, "inventory", inventoryFile, "`FILE` with the site's targets [NVMECR_INVENTORY]")
	f.StringVar(&o.topology, "topology", "", "`FILE` with the topology; without one that of /etc/slurm [NVMECR_TOPOLOGY]")
	f.StringVar(&o.capacity, "capacity", "10G", "`SIZE` on each target for jobs that request none [NVMECR_CAPACITY]")
	f.StringVar(&o.retain, "retain", "1d", "`TIME` to keep named space after the end of its job, for jobs that request none [NVMECR_RETAIN]")
	f.DurationVar(&o.grace, "grace", time.Minute, "`TIME` from the end of a job until its space may be freed: a job that is requeued after the loss of a node seems to have ended for a moment [NVMECR_GRACE]")
	cli.AddSwitch(f, &o.json, "json", "", "print JSON [NVMECR_JSON]")
}

// hooks returns the Hooks for a command. Commands on nodes, and at the end of a job, do without the inventory.
func (o *slurmOptions) hooks(stderr io.Writer, name string) (*slurm.Hooks, error) {
	h := &slurm.Hooks{State: o.state, Queue: slurm.Client{}, Targets: &slurm.Commands{}, Grace: o.grace, Logf: lineLogger(stderr), Now: time.Now}
	switch name {
	case "prolog", "epilog", "task-prolog", "epilog-ctld":
		return h, nil
	case "prolog-ctld": // called for each job of the cluster: an error must fail only those that request space
		h.Unusable = o.read(h)
		return h, nil
	}
	return h, o.read(h)
}

// read reads the files of the site and the defaults of requests.
func (o *slurmOptions) read(h *slurm.Hooks) (err error) {
	if h.Defaults.Capacity, err = nvmf.ParseSize(o.capacity); err != nil {
		return cli.UsageError{Err: fmt.Errorf("--capacity: %w", err)}
	}
	if h.Defaults.Retain, err = slurm.ParseRetain(o.retain); err != nil {
		return cli.UsageError{Err: fmt.Errorf("--retain: %w", err)}
	}
	if h.Network, err = (&planOptions{topology: o.topology}).network(os.Getenv); err != nil {
		return err
	}
	h.Inventory, err = site.Load(o.inventory)
	return err
}

// ofJob calls a hook with the job id of the environment.
func ofJob(hook func(id uint32) error) error {
	id, err := strconv.ParseUint(os.Getenv("SLURM_JOB_ID"), 10, 32)
	if err != nil {
		return cli.UsageError{Err: fmt.Errorf("SLURM_JOB_ID=%q: Slurm calls this", os.Getenv("SLURM_JOB_ID"))}
	}
	return hook(uint32(id))
}

// printOnly prints an error and returns nil. Slurm takes a node out of service if its Prolog or Epilog fails.
func printOnly(stderr io.Writer, err error) error {
	if err != nil {
		fmt.Fprintln(stderr, cli.OneLine(err))
	}
	return nil
}
