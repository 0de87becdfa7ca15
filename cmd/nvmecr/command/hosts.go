package command

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"nvmecr/internal/store"
)

// What a run must not be: the embedded target serves the processes of this host, and
// one run has one `nvmecr run`. Both are found out from what launchers say in the
// environment and are told on the command line, before anything is started.

// hostOptions are what launchers are told on which hosts to start ranks. Values are
// lists of hosts, files with a host in each line, or numbers of hosts.
var hostOptions = []struct {
	launchers []string
	lists     []string
	files     []string
	counts    []string
}{
	{
		launchers: []string{"mpirun", "mpiexec", "orterun", "prterun", "mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich", "mpiexec.mpich", "mpiexec.hydra"},
		lists:     []string{"-H", "-host", "--host", "-hosts", "--hosts"},
		files:     []string{"-f", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "-default-hostfile", "--default-hostfile"},
	},
	{launchers: []string{"srun"}, lists: []string{"-w", "--nodelist"}, counts: []string{"-N", "--nodes"}},
	{launchers: []string{"torchrun"}, counts: []string{"--nnodes"}},
}

// checkCommand refuses commands that a run cannot be about, whatever its targets.
func checkCommand(argv []string, getenv func(string) string) error {
	switch filepath.Base(argv[0]) {
	case "sbatch":
		return usageError{errors.New("sbatch returns when the job is queued, and the run would end with it: put nvmecr into the script, as `nvmecr run -- srun ./app`")}
	case "nvmecr":
		return nil
	}
	place, err := store.PlaceFromEnv(getenv)
	if err == nil && place.Size > 1 {
		return usageError{fmt.Errorf("this is rank %d of %d (%s), and each of them would be a run of its own: turn it round, and let one nvmecr start the launcher, "+
			"as `nvmecr run -- srun %s` or `nvmecr run -- mpirun -n %d %s`", place.Rank, place.Size, place.From, argv[0], place.Size, argv[0])}
	}
	return nil
}

// checkHosts refuses a run on the embedded target whose ranks are to be on other hosts.
func checkHosts(argv []string, getenv func(string) string, hostname string) error {
	const remedy = "a run without --target has a target of its own, which serves this host alone: name namespaces that all hosts reach with --target"
	for _, variable := range []string{"SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"} {
		if n, err := strconv.Atoi(getenv(variable)); err == nil {
			if n > 1 {
				return usageError{fmt.Errorf("the job has %d nodes (%s), and %s", n, variable, remedy)}
			}
			break
		}
	}
	for _, host := range otherHosts(argv, hostname) {
		return usageError{fmt.Errorf("%s is to start ranks on %s, and %s", argv[0], host, remedy)}
	}
	return nil
}

// otherHosts are the hosts that a launcher's command line names and that are not this
// one, as far as it can be read.
func otherHosts(argv []string, hostname string) []string {
	var others []string
	for _, l := range hostOptions {
		if !slices.Contains(l.launchers, filepath.Base(argv[0])) {
			continue
		}
		for i, word := range argv[1:] {
			name, value, joined := strings.Cut(word, "=")
			if !joined && i+2 < len(argv) {
				value = argv[i+2]
			}
			var hosts []string
			switch {
			case word == "--":
				return others
			case slices.Contains(l.lists, name):
				hosts = strings.Split(value, ",")
			case slices.Contains(l.files, name):
				hosts = hostsIn(value)
			case slices.Contains(l.counts, name):
				if n, err := strconv.Atoi(strings.SplitN(value, "-", 2)[0]); err == nil && n > 1 {
					others = append(others, fmt.Sprintf("%d hosts", n))
				}
			}
			for _, host := range hosts {
				host, _, _ = strings.Cut(strings.TrimSpace(host), ":") // :slots
				if host != "" && !isThisHost(host, hostname) {
					others = append(others, host)
				}
			}
		}
	}
	return others
}

// hostsIn reads a launcher's file of hosts. One that cannot be read is the launcher's
// to complain of.
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

// isThisHost reports whether a name is this host's, with or without its domain.
func isThisHost(host, hostname string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsLoopback()
	}
	short := func(name string) string { s, _, _ := strings.Cut(name, "."); return strings.ToLower(s) }
	return short(host) == "localhost" || short(host) == short(hostname)
}

// checkRequeued refuses to begin a store anew for a job that Slurm has started again:
// what it wrote before is on another host, or where another HOME says.
func checkRequeued(name, path string, getenv func(string) string) error {
	if n, err := strconv.Atoi(getenv("SLURM_RESTART_COUNT")); err != nil || n == 0 {
		return nil
	}
	return fmt.Errorf("job %s was started again (SLURM_RESTART_COUNT=%s), and there is no store %q in %s: what the job wrote before is on the host that it ran on then, "+
		"or where HOME or XDG_STATE_HOME said so; name the same --target in both, or begin anew with --fresh", getenv("SLURM_JOB_ID"), getenv("SLURM_RESTART_COUNT"), name, path)
}
