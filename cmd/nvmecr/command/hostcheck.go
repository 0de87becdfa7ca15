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
		Short: "Check whether this host and user can start runs",
		Long: `Checks what a host of a job needs, for the user who calls it: files of the installation, limits, FUSE,
directories, and that each --target can be reached and lets this host in. Nothing is written to targets.

Each line begins with ok; missing: no run works without it; or poor: runs work, but lack what the line names.
The exit status is 1 if anything is missing.`,
		Example: `  nvmecr check
  srun --ntasks-per-node=1 nvmecr check --target "trtype:TCP traddr:10.0.0.5 subnqn:nqn.2014-08.org.example:a ns:1"`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.cfg.Resolve(); err != nil {
				return cli.UsageError{Err: err}
			}
			return o.print(cmd.OutOrStdout(), o.checkAll(cmd.Context()))
		},
	}
	o.cfg.BindFlags(cmd.Flags(), "target", "timeout", "hostnqn", "dhchap-secret", "dhchap-ctrl-secret", "tls-psk", "header-digest", "data-digest", "driver")
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON [NVMECR_JSON]")
	return cmd
}

// States of a finding.
const (
	findingOK      = "ok"
	findingMissing = "missing" // no run works
	findingPoor    = "poor"    // runs work, but lack something
)

// A finding is the result of a check, with a remedy if the state is not ok.
type finding struct {
	State  string `json:"state"`
	What   string `json:"what"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

func newFinding(what, format string, args ...any) finding {
	return finding{State: findingOK, What: what, Found: fmt.Sprintf(format, args...)}
}

// problem returns the finding with a state that is not ok, and a remedy.
func (f finding) problem(state, remedy string) finding {
	f.State, f.Remedy = state, remedy
	return f
}

// checkAll runs all checks.
func (o *hostCheckOptions) checkAll(ctx context.Context) []finding {
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
		return newFinding("library", "%v", err).problem(findingMissing, "install nvmecr at one path on all hosts")
	}
	return newFinding("library", "%s", path)
}

// checkRuntimes looks for the runtimes that the preload library loads: one for each MPI implementation.
func checkRuntimes() finding {
	var have, lack []string
	for _, mpi := range []string{"plain", "openmpi", "mpich"} {
		if _, err := installed.Find("libnvmecr-" + mpi + ".so"); err != nil {
			lack = append(lack, mpi)
			continue
		}
		have = append(have, mpi)
	}
	f := newFinding("runtimes", "%s", strings.Join(have, ", "))
	switch {
	case len(have) == 0 || have[0] != "plain":
		return f.problem(findingMissing, "libnvmecr-plain.so is not installed: install all of nvmecr")
	case len(lack) > 0:
		return f.problem(findingPoor, "not built for "+strings.Join(lack, ", ")+": programs of that MPI cannot use the mount; build where it is installed")
	}
	return f
}

// Limits of a process. Below the first and the last it cannot use the mount: see docs/programs.md.
const (
	minDescriptors  = 32
	goodDescriptors = 1024
	minAddresses    = 2 * nvmf.GiB
)

func checkDescriptors() finding {
	limit, err := limitOf(unix.RLIMIT_NOFILE)
	f := newFinding("open files", "%d", limit)
	switch {
	case err != nil:
		return newFinding("open files", "%v", err).problem(findingMissing, "see ulimit -n")
	case limit < minDescriptors:
		return f.problem(findingMissing, fmt.Sprintf("ulimit -n %d", goodDescriptors))
	case limit < goodDescriptors:
		return f.problem(findingPoor, fmt.Sprintf("only half of these descriptors are left to programs: ulimit -n %d", goodDescriptors))
	}
	return f
}

func checkAddresses(limit uint64, err error) finding {
	switch {
	case err != nil:
		return newFinding("addresses", "%v", err).problem(findingMissing, "see ulimit -v")
	case limit == unix.RLIM_INFINITY:
		return newFinding("addresses", "unlimited")
	case nvmf.Bytes(limit) < minAddresses:
		return newFinding("addresses", "%s", nvmf.Bytes(limit)).problem(findingMissing, "the first file of a process reserves 2 GiB: ulimit -v unlimited")
	}
	return newFinding("addresses", "%s", nvmf.Bytes(limit))
}

func limitOf(resource int) (uint64, error) {
	var limit unix.Rlimit
	err := unix.Getrlimit(resource, &limit)
	return limit.Cur, err
}

func checkFUSE() finding {
	const without = "static programs, and programs that are stored in the mount, cannot use it"
	switch {
	case !hasFUSE():
		return newFinding("FUSE", "/dev/fuse cannot be opened").problem(findingPoor, without+": modprobe fuse")
	case !mayMount() && !hasFusermount():
		return newFinding("FUSE", "this user cannot mount").problem(findingPoor, without+": install fuse3")
	}
	return newFinding("FUSE", "/dev/fuse")
}

// checkState checks that the state directory of runs can be written to.
func checkState() finding {
	dir, err := store.FindStateDir(config.Default().Name)
	if err != nil {
		return newFinding("state directory", "%v", err).problem(findingMissing, "set HOME or XDG_STATE_HOME")
	}
	root := filepath.Dir(dir.Path)
	at := root
	for at != filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, os.ErrNotExist) {
			break
		}
		at = filepath.Dir(at) // the missing directories will be made here
	}
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		return newFinding("state directory", "%s: %v", at, err).problem(findingMissing, "a run keeps its record in this directory: set HOME or XDG_STATE_HOME")
	}
	return newFinding("state directory", "%s", root)
}

// checkHostNQN returns the host NQN by which targets identify this host.
func checkHostNQN(cfg *config.Config) finding {
	f := newFinding("host NQN", "%s", cfg.Host())
	if _, err := os.Stat("/etc/nvme/hostnqn"); cfg.HostNQN == "" && err != nil {
		return f.problem(findingPoor, "made from the machine's and the user's id, since there is no /etc/nvme/hostnqn: targets that list hosts have to list each of these, or give all hosts --hostnqn")
	}
	return f
}

// checkTarget connects to a namespace.
func checkTarget(ctx context.Context, cfg *config.Config, id nvmf.TransportID) finding {
	what := "target " + id.String()
	identity, err := store.Identify(ctx, cfg, id)
	switch {
	case err != nil:
		return newFinding(what, "%v", err).problem(findingMissing, "see docs/troubleshooting.md")
	case !identity.Reservations && !identity.Private:
		return newFinding(what, "%s", size(identity.Capacity())).problem(findingPoor, "it has no reservations: a process of a lost host may go on writing, and a restart is refused until --unfenced")
	}
	return newFinding(what, "%s, with reservations", size(identity.Capacity()))
}
