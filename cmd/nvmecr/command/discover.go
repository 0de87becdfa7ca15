package command

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

type discoverOptions struct {
	cfg  *config.Config
	json bool
}

func newDiscover() *cobra.Command {
	o := &discoverOptions{cfg: config.Default()}
	cmd := &cobra.Command{
		Use:   "discover [flags] ADDRESS[:PORT]",
		Short: "Ask a discovery service which subsystems this host may use",
		Long: `Asks the NVMe/TCP discovery service at ADDRESS, port 8009 where none is given, and
prints the subsystems that it names for this host, each in the form that --target takes, without
the namespace, which is 1 unless ns:N is added. Targets answer discovery at their own port, too.`,
		Example: `  nvmecr discover 10.0.0.5
  nvmecr discover [fd00::5]:4420 --hostnqn nqn.2014-08.org.example:host`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.discover(cmd.Context(), cmd.OutOrStdout(), args[0])
		},
	}
	o.cfg.BindFlags(cmd.Flags(), "timeout", "hostnqn", "dhchap-secret", "dhchap-ctrl-secret", "tls-psk", "header-digest", "data-digest")
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON [NVMECR_JSON]")
	return cmd
}

// discoveryPort is the well-known port of discovery services over TCP.
const discoveryPort = "8009"

// A discovered subsystem is an entry of the discovery log page.
type discovered struct {
	Target string `json:"target"`
	SubNQN string `json:"subnqn"`
	TLS    bool   `json:"tls"`
}

func (o *discoverOptions) discover(ctx context.Context, w io.Writer, address string) error {
	if err := o.cfg.Resolve(); err != nil {
		return cli.UsageError{Err: err}
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		host, port = address, discoveryPort
		if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
			host = host[1 : n-1]
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return cli.UsageError{Err: fmt.Errorf("%q is not a port", port)}
	}
	entries, err := store.Discover(ctx, o.cfg, addressOf(host, port))
	if err != nil {
		return err
	}
	list := make([]discovered, 0, len(entries))
	for i := range entries {
		if d, ok := describeEntry(&entries[i]); ok {
			list = append(list, d)
		}
	}
	if o.json {
		return printJSON(w, list)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, d := range list {
		more := ""
		if d.TLS {
			more = "\tneeds --tls-psk"
		}
		fmt.Fprintf(t, "%s%s\n", printable(d.Target), more)
	}
	return t.Flush()
}

// describeEntry returns false for entries that are no NVM subsystem, or not reachable over TCP or RDMA.
func describeEntry(e *nvme.DiscoveryEntry) (discovered, bool) {
	transports := map[uint8]nvmf.Transport{nvme.TransportTCP: nvmf.TCP, nvme.TransportRDMA: nvmf.RDMA}
	transport, ok := transports[e.TransportType()]
	if !ok || e.Subtype() != nvme.SubtypeNVM {
		return discovered{}, false
	}
	id := addressOf(e.Address(), e.Service())
	id.Transport, id.SubNQN, id.NSID = transport, e.SubNQN(), 1
	return discovered{id.String(), e.SubNQN(), transport == nvmf.TCP && e.SecurityType() == nvme.SecurityTLS13}, true
}
