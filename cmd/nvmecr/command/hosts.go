package command

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"nvmecr/internal/cli"
	"nvmecr/internal/store"
)

// Two kinds of runs are refused before anything is started: a run on the embedded target, which serves this host
// only, with ranks on other hosts; and a run that the launcher starts once for each rank. Both follow from variables
// and command lines of launchers.

// hostOptions are the options of launchers that name the hosts of ranks. Their values are lists of hosts, files with
// a host in each line, or numbers of hosts.
var hostOptions = []struct {
	launchers []string
	lists     []string
	files     []string
	counts    []string
	variables []string // path of such a file, used if no option names a host
	short     bool     // as in -N2
}{
	{
		launchers: []string{"mpirun", "mpiexec", "orterun", "prterun", "mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich", "mpiexec.mpich", "mpiexec.hydra"},
		lists:     []string{"-H", "-host", "--host", "-hosts", "--hosts"},
		files:     []string{"-f", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "-default-hostfile", "--default-hostfile"},
		variables: []string{"OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE"},
	},
	{launchers: []string{"srun"}, lists: []string{"-w", "--nodelist"}, counts: []string{"-N", "--nodes"}, short: true},
	{launchers: []string{"torchrun"}, counts: []string{"--nnodes"}},
}

// jobHosts are the variables in which batch systems name the file with the hosts of a job.
var jobHosts = []string{"PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "COBALT_NODEFILE"}

// checkCommand refuses commands that no run can start, whatever its targets. A launcher may start runs that are part
// of one job (--job-id).
func checkCommand(argv []string, getenv func(string) string, ofJob bool) error {
	switch filepath.Base(argv[0]) {
	case "sbatch":
		return cli.UsageError{Err: errors.New("sbatch returns when the job is queued, and the run would end with it: put nvmecr into the script, as `nvmecr run -- srun ./app`")}
	case "nvmecr":
		return nil
	}
	proc, err := store.ProcFromEnv(getenv)
	if err == nil && proc.Size > 1 && !ofJob {
		return cli.UsageError{Err: fmt.Errorf("this is rank %d of %d (%s), and each of them would be a run of its own: turn it round, and let one nvmecr start the launcher, "+
			"as `nvmecr run -- srun %s` or `nvmecr run -- mpirun -n %d %s`; or start one on each node, with --target and --job-id", proc.Rank, proc.Size, proc.From, argv[0], proc.Size, argv[0])}
	}
	return nil
}

// checkHosts refuses a run on the embedded target whose ranks are to be on other hosts.
func checkHosts(argv []string, getenv func(string) string, hostname string) error {
	const remedy = "a run without --target has a target of its own, which serves this host alone: name namespaces that all hosts reach with --target"
	others, named := otherHosts(argv, getenv, hostname)
	if len(others) > 0 {
		return cli.UsageError{Err: fmt.Errorf("%s is to start ranks on %s, and %s", argv[0], others[0], remedy)}
	}
	if named {
		return nil // the command names this host only
	}
	for _, variable := range []string{"SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"} {
		if n, err := strconv.Atoi(getenv(variable)); err == nil {
			if n > 1 {
				return cli.UsageError{Err: fmt.Errorf("the job has %d nodes (%s), and %s", n, variable, remedy)}
			}
			break
		}
	}
	for _, variable := range jobHosts {
		if _, others := withoutThisHost(hostsIn(getenv(variable)), hostname); len(others) > 0 {
			return cli.UsageError{Err: fmt.Errorf("the job has host %s, too (%s), and %s", others[0], variable, remedy)}
		}
	}
	return nil
}

// otherHosts returns the hosts named by a launcher's command line or variables that are not this one. named reports
// whether they name any host, or a number of hosts.
func otherHosts(argv []string, getenv func(string) string, hostname string) (others []string, named bool) {
	for _, l := range hostOptions {
		if !slices.Contains(l.launchers, filepath.Base(argv[0])) {
			continue
		}
		for _, o := range launcherOptions(argv, l.short) {
			var hosts []string
			switch {
			case slices.Contains(l.lists, o.name):
				hosts = strings.Split(o.value, ",")
			case slices.Contains(l.files, o.name):
				hosts = hostsIn(o.value)
			case slices.Contains(l.counts, o.name):
				n, err := strconv.Atoi(strings.SplitN(o.value, "-", 2)[0])
				named = named || err == nil
				if n > 1 {
					others = append(others, fmt.Sprintf("%d hosts", n))
				}
			}
			some, more := withoutThisHost(hosts, hostname)
			named, others = named || some, append(others, more...)
		}
		for _, variable := range l.variables {
			if !named {
				named, others = withoutThisHost(hostsIn(getenv(variable)), hostname)
			}
		}
	}
	return others, named
}

// withoutThisHost returns the hosts of a list that are not this one. named reports whether the list has any host.
func withoutThisHost(list []string, hostname string) (named bool, others []string) {
	for _, host := range list {
		host = strings.TrimSpace(host)
		if _, err := netip.ParseAddr(host); err != nil {
			host, _, _ = strings.Cut(host, ":") // :slots
		}
		named = named || host != ""
		if host != "" && !isThisHost(host, hostname) {
			others = append(others, host)
		}
	}
	return named, others
}

// A launcherOption is an option of a launcher, with the word that may be its value.
type launcherOption struct{ name, value string }

// launcherOptions returns the options before the program, and those behind each ":", which begins another program
// with options of its own. What follows a program is not examined: programs may have options -f or -H themselves.
// With short, -N2 is -N 2.
//
// Only of some options is it known whether they take a value. The word behind any other option counts as its value
// unless a file or a command of that name exists. Mistaking a value for the program would miss the hosts behind it;
// mistaking the program for a value would refuse a correct run.
func launcherOptions(argv []string, short bool) []launcherOption {
	var options []launcherOption
	for i := 1; i < len(argv); i++ {
		word := argv[i]
		if !strings.HasPrefix(word, "-") || word == "--" {
			next := slices.Index(argv[i:], ":")
			if next < 0 {
				break
			}
			i += next
			continue
		}
		name, value, joined := strings.Cut(word, "=")
		if short && len(word) > 2 && word[1] != '-' {
			name, value, joined = word[:2], word[2:], true
		}
		if following := argv[i+1:]; !joined && len(following) > 0 {
			n := valuesOf(name, following[0])
			if n > 0 {
				value = following[0]
			}
			i += n
		}
		options = append(options, launcherOption{name, value})
	}
	return options
}

// valuesOf returns how many words behind an option are its values; next is the first of these words.
func valuesOf(name, next string) int {
	switch strings.TrimLeft(name, "-") {
	case "mca", "gmca", "pmixmca", "prtemca", "env", "genv":
		return 2
	}
	for _, l := range hostOptions {
		if slices.Contains(l.lists, name) || slices.Contains(l.files, name) || slices.Contains(l.counts, name) {
			return 1
		}
	}
	if strings.HasPrefix(next, "-") {
		return 0
	}
	if info, err := os.Stat(next); err == nil && info.Mode().IsRegular() {
		return 0
	}
	if _, err := exec.LookPath(next); err == nil {
		return 0
	}
	return 1
}

// hostsIn reads a launcher's host file. If it cannot be read the launcher reports that.
func hostsIn(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var hosts []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if words := strings.Fields(text); len(words) > 0 {
			hosts = append(hosts, words[0])
		}
	}
	return hosts
}

// isThisHost reports whether a name or an address is that of this host. The domain is ignored.
func isThisHost(host, hostname string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsLoopback() || isOwnAddress(ip)
	}
	short := func(name string) string { s, _, _ := strings.Cut(name, "."); return strings.ToLower(s) }
	return short(host) == "localhost" || short(host) == short(hostname)
}

// isOwnAddress reports whether a network interface of this host has the address. It returns false if the interfaces
// cannot be listed.
func isOwnAddress(ip netip.Addr) bool {
	addrs, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(addrs, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap() == ip.Unmap().WithZone("")
	})
}

// checkRequeued refuses to create a store for a job that Slurm has requeued: the checkpoints of its first start are
// on another host, or in another state directory.
func checkRequeued(name, path string, getenv func(string) string) error {
	if n, err := strconv.Atoi(getenv("SLURM_RESTART_COUNT")); err != nil || n == 0 {
		return nil
	}
	return fmt.Errorf("job %s was started again (SLURM_RESTART_COUNT=%s), and there is no store %q in %s: what the job wrote before is on the host that it ran on then, "+
		"or where HOME or XDG_STATE_HOME said so; name the same --target in both, or begin anew with --fresh", getenv("SLURM_JOB_ID"), getenv("SLURM_RESTART_COUNT"), name, path)
}
