package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/provision/dial"
)

type adminOptions struct {
	provisioner string
	json        bool
	hosts       []string
	keys        string // file
}

func newAdmin() *cobra.Command {
	o := &adminOptions{}
	cmd := &cobra.Command{
		Use:   "admin",
		Short: "Give jobs namespaces of their own, on a target",
		Long: `Makes namespaces for jobs on a target, exposes each to the hosts of its job and
to no other, limits their rate, deletes them. The target is one of

  nvmecr:SOCKET      nvmecr target --admin SOCKET --pool ...
  spdk:SOCKET        SPDK: ?listen=ADDRESS:PORT, &store=NAME of the logical volume
                     store if it has several, &keys=DIRECTORY for --dhchap-keys
  nvmet:DIRECTORY    Linux, by its configfs, /sys/kernel/config/nvmet: ?dir=DIRECTORY
                     for files, &listen=ADDRESS:PORT; &device=PATH for a whole device

Every command can be repeated: it does what is missing. The hosts of a job are
named by their NQNs, which nvmecr run takes from /etc/nvme/hostnqn or --hostnqn.
See docs/administration.md.`,
		Example: `  nvmecr admin --provisioner nvmecr:/run/nvmecr.sock create melt 10G --host "$(cat /etc/nvme/hostnqn)"
  nvmecr admin --provisioner "spdk:/var/tmp/spdk.sock?listen=10.0.0.5:4420" list`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&o.provisioner, "provisioner", "", "`TARGET` to administer: nvmecr:SOCKET, spdk:SOCKET?..., nvmet:DIRECTORY?... [NVMECR_PROVISIONER]")
	cmd.AddCommand(o.newCreate(), o.newExpose(), o.newLimit(), o.newDelete(), o.newList())
	return cmd
}

func (o *adminOptions) newCreate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create JOB SIZE",
		Short: "Make a job's namespace, of zeros, and print what --target takes",
		Long: `Makes the namespace of a job and prints it in the form that nvmecr run --target takes. A
namespace of that job and size which exists already is kept; one of another size is an error.
No host can connect to it until it is exposed, with --host or later.`,
		Example: `  nvmecr admin create melt 10G
  nvmecr run --name melt --target "$(nvmecr admin create melt 10G --host NQN)" -- mpirun ./app`,
		Args: cli.Args(cobra.ExactArgs(2)),
	}
	cmd.Flags().StringArrayVar(&o.hosts, "host", nil, "`NQN` of a host to expose it to, repeatable; these and no other [NVMECR_HOST]")
	o.addKeys(cmd)
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON [NVMECR_JSON]")
	cmd.RunE = o.with(func(ctx context.Context, p provision.Provisioner, args []string, w io.Writer) error {
		keys, err := o.readKeys(o.hosts)
		if err != nil {
			return err
		}
		size, err := nvmf.ParseSize(args[1])
		if err != nil {
			return cli.UsageError{Err: err}
		}
		if err := checkExposure(args[0], o.hosts, keys); err != nil {
			return err
		}
		n, err := p.Create(ctx, args[0], size)
		if err == nil && len(o.hosts) > 0 {
			if err = p.Expose(ctx, args[0], o.hosts, keys); err == nil {
				n.Hosts, err = provision.CheckHosts(args[0], o.hosts)
				n.Authenticate = n.Authenticate || keys != nil
			}
		}
		switch {
		case err != nil:
			return err
		case o.json:
			return printJSON(w, n)
		case len(n.Targets) == 0:
			return fmt.Errorf("job %s: the namespace exists, but the target listens on no address", n.Job)
		}
		_, err = fmt.Fprintln(w, n.Targets[0])
		return err
	})
	return cmd
}

// checkExposure refuses hosts and keys that Expose would refuse, before a namespace is created.
func checkExposure(job string, hosts []string, keys map[string]dhchap.Keys) error {
	_, err := provision.CheckHosts(job, hosts)
	if err == nil && keys != nil {
		err = provision.CheckKeys(job, hosts, keys, func(string) bool { return false }, false)
	}
	return err
}

func (o *adminOptions) newExpose() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "expose JOB [NQN...]",
		Short: "Say which hosts may use a job's namespace",
		Long: `Lets these hosts connect to a job's namespace, and no other: hosts that may no
longer are cut off. Without a host no host can connect.

With --dhchap-keys these hosts have to authenticate, with keys such as nvmecr
keygen prints. Without it, hosts that may connect already keep their keys. A namespace
that requires keys can be exposed without them only after it was exposed to no host. When SPDK
or Linux has restarted, the keys have to be given again.`,
		Example: `  nvmecr admin expose melt nqn.2014-08.org.nvmexpress:uuid:... nqn.2014-08.org.nvmexpress:uuid:...`,
		Args:    cli.Args(cobra.MinimumNArgs(1)),
		RunE: o.with(func(ctx context.Context, p provision.Provisioner, args []string, _ io.Writer) error {
			keys, err := o.readKeys(args[1:])
			if err != nil {
				return err
			}
			return p.Expose(ctx, args[0], args[1:], keys)
		}),
	}
	o.addKeys(cmd)
	return cmd
}

func (o *adminOptions) addKeys(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.keys, "dhchap-keys", "", "`FILE` with a line HOSTNQN HOSTKEY [TARGETKEY] for each of these hosts, perhaps others too; - is the standard input [NVMECR_DHCHAP_KEYS]")
}

// readKeys reads the file of --dhchap-keys. It returns nil without the flag. The variable NVMECR_DHCHAP_KEYS has no
// effect on a command that names no host.
func (o *adminOptions) readKeys(hosts []string) (map[string]dhchap.Keys, error) {
	switch {
	case o.keys == "", len(hosts) == 0 && o.keys == os.Getenv("NVMECR_DHCHAP_KEYS"):
		return nil, nil
	case len(hosts) == 0:
		return nil, cli.UsageError{Err: errors.New("--dhchap-keys without a host: name the hosts whose keys are to be taken from that file")}
	}
	keys, err := func() (map[string]dhchap.Keys, error) {
		if o.keys == "-" {
			return config.ReadKeysFrom(os.Stdin)
		}
		return config.ReadKeys(o.keys)
	}()
	if err != nil {
		return nil, fmt.Errorf("--dhchap-keys: %w", err)
	}
	return keys, nil
}

func (o *adminOptions) newLimit() *cobra.Command {
	return &cobra.Command{
		Use:   "limit JOB RATE",
		Short: "Limit what a job reads and writes in a second",
		Long: `Limits what all hosts of a job together read and write in a second, to 1M or
more; off takes the limit away. Linux's target has no limits.`,
		Example: `  nvmecr admin limit melt 500M
  nvmecr admin limit melt off`,
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: o.with(func(ctx context.Context, p provision.Provisioner, args []string, _ io.Writer) error {
			var rate nvmf.Bytes
			if args[1] != "off" && args[1] != "0" {
				var err error
				if rate, err = nvmf.ParseSize(args[1]); err != nil {
					return cli.UsageError{Err: fmt.Errorf("limit: %w, nor off", err)}
				}
			}
			return p.Limit(ctx, args[0], rate)
		}),
	}
}

func (o *adminOptions) newDelete() *cobra.Command {
	return &cobra.Command{
		Use:     "delete JOB",
		Short:   "Cut off a job's hosts and free its namespace, with its data",
		Example: `  nvmecr admin delete melt`,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: o.with(func(ctx context.Context, p provision.Provisioner, args []string, _ io.Writer) error {
			return p.Delete(ctx, args[0])
		}),
	}
}

func (o *adminOptions) newList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the namespaces of jobs",
		Example: `  nvmecr admin list --json`,
		Args:    cli.Args(cobra.NoArgs),
	}
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON [NVMECR_JSON]")
	cmd.RunE = o.with(func(ctx context.Context, p provision.Provisioner, _ []string, w io.Writer) error {
		list, err := p.List(ctx)
		if err != nil {
			return err
		}
		if o.json {
			return printJSON(w, list)
		}
		return printNamespaces(w, list)
	})
	return cmd
}

// with opens the provisioner for a subcommand.
func (o *adminOptions) with(do func(ctx context.Context, p provision.Provisioner, args []string, w io.Writer) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if o.provisioner == "" {
			return cli.UsageError{Err: errors.New("no --provisioner: say which target to administer, nvmecr:SOCKET, spdk:SOCKET?OPTIONS or nvmet:DIRECTORY?OPTIONS")}
		}
		p, err := dial.Open(o.provisioner)
		if err != nil {
			return cli.UsageError{Err: err}
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		err = errors.Join(do(ctx, p, args, cmd.OutOrStdout()), p.Close())
		if errors.Is(err, provision.ErrInvalid) {
			return cli.UsageError{Err: err}
		}
		return err
	}
}

func printNamespaces(w io.Writer, list []provision.Namespace) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "JOB\tSTATE\tSIZE\tLIMIT\tKEYS\tHOSTS\tTARGET")
	for _, n := range list {
		target, hosts, rate, keys := "-", "-", "-", "no"
		if len(n.Targets) > 0 {
			target = n.Targets[0].String()
		}
		if n.Problem != "" {
			target = n.Problem
		}
		if len(n.Hosts) > 0 {
			hosts = strings.Join(n.Hosts, ",")
		}
		if n.Authenticate {
			keys = "yes"
		}
		if n.Rate > 0 {
			rate = size(n.Rate) + "/s"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", n.Job, n.State, size(n.Size), rate, keys, hosts, target)
	}
	return t.Flush()
}
