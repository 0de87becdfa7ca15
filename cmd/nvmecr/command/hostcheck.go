package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/installed"
	"nvmecr/internal/preload"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

type hostCheckOptions struct {
	cfg  *config.Config
	json bool
}

func newCheck() *cobra.Command {
	o := &hostCheckOptions{cfg: config.Default()}
	cmd := &cobra.Command{
		Use:   "check [flags]",
		Short: "Say what this host, and this user on it, lacks for runs",
		Long: `Looks at what a host of a job needs, for the user who calls it: files of the installation, limits, FUSE,
directories, and that each --target can be reached and lets this host in. Nothing is written to targets.

Each line is one of ok; missing, which no run can do without; and poor, which costs something that the line names.
The exit status is 1 if anything is missing.`,
		Example: `  nvmecr check
  srun --ntasks-per-node=1 nvmecr check --target "trtype:TCP traddr:10.0.0.5 subnqn:nqn.2014-08.org.example:a ns:1"`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.cfg.Resolve(); err != nil {
				return cli.UsageError{Err: err}
			}
			return o.print(cmd.OutOrStdout(), o.look(cmd.Context()))
		},
	}
	o.cfg.BindFlags(cmd.Flags(), "target", "timeout", "hostnqn", "dhchap-secret", "dhchap-ctrl-secret", "tls-psk", "header-digest", "data-digest", "driver")
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON [NVMECR_JSON]")
	return cmd
}

// What a finding says.
const (
	findingOK      = "ok"
	findingMissing = "missing" // no run can do without
	findingPoor    = "poor"    // runs do, and lack something
)

// A finding is what became of one check: of what, what there is, and what to do where that is not enough.
type finding struct {
	State  string `json:"state"`
	What   string `json:"what"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

func finds(what, format string, args ...any) finding {
	return finding{State: findingOK, What: what, Found: fmt.Sprintf(format, args...)}
}

// lacks makes a finding that is not ok.
func (f finding) lacks(state, remedy string) finding {
	f.State, f.Remedy = state, remedy
	return f
}

// look makes all checks.
func (o *hostCheckOptions) look(ctx context.Context) []finding {
	all := []finding{checkLibrary(), checkRuntimes(), checkDescriptors(), checkAddresses(limitOf(unix.RLIMIT_AS)), checkFUSE(), checkState(), checkHostNQN(o.cfg)}
	for _, id := range o.cfg.Targets {
		all = append(all, checkTarget(ctx, o.cfg, id))
	}
	return all
}

func (o *hostCheckOptions) print(w io.Writer, all []finding) error {
	missing := 0
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range all {
		if f.State == findingMissing {
			missing++
		}
		line := printable(f.Found)
		if f.Remedy != "" {
			line += ": " + f.Remedy
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.State, printable(f.What), line)
	}
	var err error
	if o.json {
		err = printJSON(w, all)
	} else {
		err = t.Flush()
	}
	if err == nil && missing > 0 {
		err = cli.Status(1)
	}
	return err
}

func checkLibrary() finding {
	path, err := preload.Library()
	if err != nil {
		return finds("library", "%v", err).lacks(findingMissing, "install nvmecr at one path on all hosts")
	}
	return finds("library", "%s", path)
}

// checkRuntimes looks for what the library loads in a process, by the MPI that this has.
func checkRuntimes() finding {
	var have, lack []string
	for _, mpi := range []string{"plain", "openmpi", "mpich"} {
		if _, err := installed.Find("libnvmecr-" + mpi + ".so"); err != nil {
			lack = append(lack, mpi)
			continue
		}
		have = append(have, mpi)
	}
	f := finds("runtimes", "%s", strings.Join(have, ", "))
	switch {
	case len(have) == 0 || have[0] != "plain":
		return f.lacks(findingMissing, "libnvmecr-plain.so is not installed: install all of nvmecr")
	case len(lack) > 0:
		return f.lacks(findingPoor, "not built for "+strings.Join(lack, ", ")+": programs of that MPI have no files; build where it is installed")
	}
	return f
}

// Limits below which a process cannot use the mount: see docs/programs.md.
const (
	minDescriptors  = 32
	goodDescriptors = 1024
	minAddresses    = 2 * nvmf.GiB
)

func checkDescriptors() finding {
	limit, err := limitOf(unix.RLIMIT_NOFILE)
	f := finds("open files", "%d", limit)
	switch {
	case err != nil:
		return finds("open files", "%v", err).lacks(findingMissing, "see ulimit -n")
	case limit < minDescriptors:
		return f.lacks(findingMissing, fmt.Sprintf("ulimit -n %d", goodDescriptors))
	case limit < goodDescriptors:
		return f.lacks(findingPoor, fmt.Sprintf("programs have half of that for themselves: ulimit -n %d", goodDescriptors))
	}
	return f
}

func checkAddresses(limit uint64, err error) finding {
	switch {
	case err != nil:
		return finds("addresses", "%v", err).lacks(findingMissing, "see ulimit -v")
	case limit == unix.RLIM_INFINITY:
		return finds("addresses", "unlimited")
	case nvmf.Bytes(limit) < minAddresses:
		return finds("addresses", "%s", nvmf.Bytes(limit)).lacks(findingMissing, "the first file of a process reserves 2 GiB: ulimit -v unlimited")
	}
	return finds("addresses", "%s", nvmf.Bytes(limit))
}

func limitOf(resource int) (uint64, error) {
	var limit unix.Rlimit
	err := unix.Getrlimit(resource, &limit)
	return limit.Cur, err
}

func checkFUSE() finding {
	const without = "static programs, and those that are executed in the mount, have no files"
	switch {
	case !hasFUSE():
		return finds("FUSE", "/dev/fuse cannot be opened").lacks(findingPoor, without+": modprobe fuse")
	case !mayMount() && !hasFusermount():
		return finds("FUSE", "this user cannot mount").lacks(findingPoor, without+": install fuse3")
	}
	return finds("FUSE", "/dev/fuse")
}

// checkState looks whether runs that start on this host can record what they use.
func checkState() finding {
	dir, err := store.FindStateDir(config.Default().Name)
	if err != nil {
		return finds("state directory", "%v", err).lacks(findingMissing, "set HOME or XDG_STATE_HOME")
	}
	root := filepath.Dir(dir.Path)
	at := root
	for at != filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, os.ErrNotExist) {
			break
		}
		at = filepath.Dir(at) // it will be made in there
	}
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		return finds("state directory", "%s: %v", at, err).lacks(findingMissing, "where a run starts, its user needs a directory for records: set HOME or XDG_STATE_HOME")
	}
	return finds("state directory", "%s", root)
}

// checkHostNQN says by what name targets know this host.
func checkHostNQN(cfg *config.Config) finding {
	f := finds("host NQN", "%s", cfg.Host())
	if _, err := os.Stat("/etc/nvme/hostnqn"); cfg.HostNQN == "" && err != nil {
		return f.lacks(findingPoor, "made from the machine's and the user's id, since there is no /etc/nvme/hostnqn: targets that list hosts have to list each of these, or give all hosts --hostnqn")
	}
	return f
}

// checkTarget connects to a namespace.
func checkTarget(ctx context.Context, cfg *config.Config, id nvmf.TransportID) finding {
	what := "target " + id.String()
	identity, err := store.Identify(ctx, cfg, id)
	switch {
	case err != nil:
		return finds(what, "%v", err).lacks(findingMissing, "see docs/troubleshooting.md")
	case !identity.Reservations && !identity.Private:
		return finds(what, "%s", size(identity.Capacity())).lacks(findingPoor, "it has no reservations: a process of a lost host may go on writing, and a restart is refused until --unfenced")
	}
	return finds(what, "%s, keeps writers of the past out", size(identity.Capacity()))
}
