package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"nvmecr/balancer/hostlist"
	"nvmecr/balancer/placement"
	"nvmecr/balancer/site"
	"nvmecr/balancer/topology"
	"nvmecr/internal/cli"
	"nvmecr/nvmf"
)

// Default paths of a site's files.
var (
	topologyFiles = []string{"/etc/slurm/topology.yaml", "/etc/slurm/topology.conf"} // in the order in which Slurm looks
	inventoryFile = "/etc/nvmecr/site.yaml"
)

type planOptions struct {
	nodes, perNode      string
	ranks, devices      int
	topology, inventory string
	bandwidth, capacity string
	strict, json        bool
	explain             bool
	svg                 string
}

func newPlan() *cobra.Command {
	o := &planOptions{}
	cmd := &cobra.Command{
		Use:   "plan [flags]",
		Short: "Choose the storage targets of a job, outside of its failure domains",
		Long: `Chooses targets of the site's inventory for a job on NODES, by the topology of the network, and
prints the options with which nvmecr run uses them. A rank and its data are placed where no
switch, and no other failure domain of the inventory, is common to both; of these targets the
nearest are used, with equal loads. If there are no such targets, the plan satisfies as many of these rules
as possible, and warns about the others; with --strict there is no plan then.

The same input gives the same plan. The exit status is 1 where there is none.`,
		Example: `  nvmecr plan --nodes 'cn[1-4]' --ranks 112 --devices 2 --explain
  nvmecr plan --nodes 'cn[1-4]' --ranks 112 --svg plan.svg
  nvmecr plan                                # in a job of Slurm: its own nodes and tasks`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), os.Getenv)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.nodes, "nodes", "", "`LIST` of the job's nodes, such as cn[1-4],gpu1; without one that of SLURM_JOB_NODELIST [NVMECR_NODES]")
	f.IntVar(&o.ranks, "ranks", 0, "`NUMBER` of ranks of the job, which fill the nodes in their order, each with as many; without one that of SLURM_NTASKS [NVMECR_RANKS]")
	f.StringVar(&o.perNode, "ranks-per-node", "", "`LIST` of how many ranks each node has, such as 28(x3),14; without one, and --ranks, that of SLURM_TASKS_PER_NODE [NVMECR_RANKS_PER_NODE]")
	f.IntVar(&o.devices, "devices", 0, "`NUMBER` of targets; without one as many as --rank-bandwidth needs, else one for 112 ranks [NVMECR_DEVICES]")
	f.StringVar(&o.bandwidth, "rank-bandwidth", "", "`SIZE` that a rank writes in a second, such as 100MB [NVMECR_RANK_BANDWIDTH]")
	f.StringVar(&o.capacity, "rank-capacity", "", "`SIZE` that a rank needs, such as 10GB: targets without space for their ranks are left out [NVMECR_RANK_CAPACITY]")
	f.StringVar(&o.topology, "topology", "", "`FILE` with the topology, Slurm's topology.conf or topology.yaml; without one that of /etc/slurm [NVMECR_TOPOLOGY]")
	f.StringVar(&o.inventory, "inventory", inventoryFile, "`FILE` with the site's targets [NVMECR_INVENTORY]")
	cli.AddSwitch(f, &o.strict, "strict", "", "fail if every plan has a failure domain with ranks and their data [NVMECR_STRICT]")
	cli.AddSwitch(f, &o.explain, "explain", "", "print the targets of each node, and what each failure loses [NVMECR_EXPLAIN]")
	cli.AddSwitch(f, &o.json, "json", "", "print JSON [NVMECR_JSON]")
	f.StringVar(&o.svg, "svg", "", "`FILE` to draw the plan into [NVMECR_SVG]")
	return cmd
}

func (o *planOptions) run(stdout, stderr io.Writer, getenv func(string) string) error {
	job, err := o.job(getenv)
	if err != nil {
		return cli.UsageError{Err: err}
	}
	net, err := o.network(getenv)
	if err != nil {
		return err
	}
	inv, err := site.Load(o.inventory)
	if err != nil {
		return err
	}
	plan, err := placement.New(job, net, inv)
	if err != nil {
		return err
	}
	for _, w := range plan.Warnings {
		fmt.Fprintf(stderr, "nvmecr: %s\n", w)
	}
	if o.svg != "" {
		if err := draw(plan, o.svg); err != nil {
			return err
		}
	}
	switch {
	case o.json:
		return printJSON(stdout, jsonPlan(job, plan))
	case o.explain:
		if err := plan.Explain(stdout); err != nil {
			return err
		}
		fmt.Fprintln(stdout)
	}
	return printRun(stdout, plan)
}

// printRun prints the options of nvmecr run, one per line.
func printRun(w io.Writer, plan *placement.Plan) error {
	for _, t := range plan.Targets {
		if t.Target.Target == "" {
			return fmt.Errorf("target %s has no namespace of its own in the inventory: its admin command makes them for jobs, as nvmecr slurm does", t.Name)
		}
		if _, err := fmt.Fprintf(w, "--target %q\n", t.Target.Target); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "--mapping %q\n", plan.Mapping())
	return err
}

func draw(plan *placement.Plan, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(plan.SVG(f), f.Close())
}

// job reads the ranks and their hosts from the options, else from Slurm's job.
func (o *planOptions) job(getenv func(string) string) (job placement.Job, err error) {
	list := cmp.Or(o.nodes, getenv("SLURM_JOB_NODELIST"))
	if list == "" {
		return job, errors.New("no nodes: outside of a Slurm job name the nodes of the job with --nodes")
	}
	nodes, err := hostlist.Expand(list)
	if err != nil {
		return job, err
	}
	perNode := o.perNode
	if perNode == "" && o.ranks == 0 {
		perNode = getenv("SLURM_TASKS_PER_NODE")
	}
	if job.Hosts, err = spread(nodes, o.ranks, perNode); err != nil {
		return job, err
	}
	job.Targets, job.Strict = o.devices, o.strict
	if job.Targets < 0 {
		return job, fmt.Errorf("--devices %d", job.Targets)
	}
	if job.RankBandwidth, err = bytesOf("--rank-bandwidth", o.bandwidth); err != nil {
		return job, err
	}
	job.RankCapacity, err = bytesOf("--rank-capacity", o.capacity)
	return job, err
}

// spread assigns numbers of ranks to the nodes: from a list as in SLURM_TASKS_PER_NODE, or in equal parts with one
// more on the first nodes. Nodes without ranks are left out.
func spread(nodes []string, ranks int, perNode string) (hosts []placement.Host, err error) {
	counts := make([]int, 0, len(nodes))
	switch {
	case perNode != "":
		if counts, err = tasksPerNode(perNode, len(nodes)); err != nil {
			return nil, err
		}
	case ranks > 0:
		for i := range nodes {
			counts = append(counts, (ranks+len(nodes)-1-i)/len(nodes))
		}
	default:
		return nil, errors.New("no number of ranks: outside of a Slurm job name it with --ranks or --ranks-per-node")
	}
	for i, name := range nodes {
		if counts[i] > 0 {
			hosts = append(hosts, placement.Host{Name: name, Ranks: counts[i]})
		}
	}
	return hosts, nil
}

// tasksPerNode parses a list such as 28(x3),14. A single number applies to all nodes.
func tasksPerNode(list string, nodes int) (counts []int, err error) {
	for _, part := range strings.Split(list, ",") {
		text, times := part, 1
		if number, rest, ok := strings.Cut(part, "(x"); ok {
			text = number
			times, err = strconv.Atoi(strings.TrimSuffix(rest, ")"))
		}
		n, e := strconv.Atoi(text)
		if err != nil || e != nil || n < 0 || times < 1 || times > nodes-len(counts) {
			return nil, fmt.Errorf("%q is not the numbers of ranks of %d nodes, as in 28(x3),14", list, nodes)
		}
		for range times {
			counts = append(counts, n)
		}
	}
	if !strings.ContainsAny(list, ",(") {
		counts = slices.Repeat(counts, nodes)
	}
	if len(counts) != nodes {
		return nil, fmt.Errorf("%q has the ranks of %d nodes, and there are %d", list, len(counts), nodes)
	}
	return counts, nil
}

func bytesOf(option, text string) (nvmf.Bytes, error) {
	if text == "" {
		return 0, nil
	}
	n, err := humanize.ParseBytes(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is not a size such as 100MB or 10GiB", option, text)
	}
	return nvmf.Bytes(n), nil
}

// network reads the topology. If there is no file, Slurm's variables give the address of this node.
func (o *planOptions) network(getenv func(string) string) (*topology.Topology, error) {
	if o.topology != "" {
		return topology.Load(o.topology)
	}
	for _, path := range topologyFiles {
		net, err := topology.Load(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return net, err
		}
	}
	net := new(topology.Topology)
	if address := getenv("SLURM_TOPOLOGY_ADDR"); address != "" {
		return net, net.AddAddress(address, getenv("SLURM_TOPOLOGY_ADDR_PATTERN"))
	}
	return nil, fmt.Errorf("none of %s exists: name the file with --topology: %w", strings.Join(topologyFiles, ", "), fs.ErrNotExist)
}

// plannedJSON is a plan as JSON.
type plannedJSON struct {
	Kind     string              `json:"kind"`
	Domains  []string            `json:"domains"` // that the plan respects
	Ranks    int                 `json:"ranks"`
	Hops     int                 `json:"switches"` // the sum over all ranks
	Targets  []plannedTarget     `json:"targets"`
	Hosts    []plannedHost       `json:"hosts"`
	Mapping  string              `json:"mapping"`
	Failures []placement.Failure `json:"failures"`
	Warnings []string            `json:"warnings"`
}

type plannedTarget struct {
	Name   string `json:"name"`
	Target string `json:"target"`
	Ranks  int    `json:"ranks"`
}

type plannedHost struct {
	Name   string         `json:"name"`
	Shares []plannedShare `json:"shares"` // of the host's ranks, in their order
}

type plannedShare struct {
	Target   string `json:"target"`
	Ranks    int    `json:"ranks"`
	Switches int    `json:"switches"`
}

func jsonPlan(job placement.Job, p *placement.Plan) plannedJSON {
	j := plannedJSON{Kind: p.Kind.String(), Domains: p.Domains, Ranks: p.Ranks(), Hops: p.Hops, Mapping: p.Mapping().String(), Failures: p.Failures(), Warnings: p.Warnings}
	for _, t := range p.Targets {
		j.Targets = append(j.Targets, plannedTarget{t.Name, t.Target.Target, t.Ranks})
	}
	for i, h := range job.Hosts {
		host := plannedHost{Name: h.Name}
		for _, s := range p.Host(i) {
			host.Shares = append(host.Shares, plannedShare{p.Targets[s.Target].Name, s.Ranks, s.Hops})
		}
		j.Hosts = append(j.Hosts, host)
	}
	return j
}
