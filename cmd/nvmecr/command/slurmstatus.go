package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"nvmecr/nvmf"
	"nvmecr/slurm"
)

// leaseLine is a lease as status prints it, without the key.
type leaseLine struct {
	Name    string      `json:"name"`
	State   string      `json:"state"`
	User    uint32      `json:"user"`
	Job     uint32      `json:"job"`
	Nodes   string      `json:"nodes"`
	Size    nvmf.Bytes  `json:"size"`
	Used    *nvmf.Bytes `json:"used,omitempty"` // by files; nil if the store cannot be read from here
	Targets []string    `json:"targets"`
	Started time.Time   `json:"started"`
	Ended   *time.Time  `json:"ended,omitempty"`
	Until   *time.Time  `json:"until,omitempty"` // when the space is freed, unless the job returns
}

func describeLease(l *slurm.Lease) leaseLine {
	line := leaseLine{Name: l.Name, State: "in use", User: l.User, Job: l.Job, Nodes: l.Nodes, Size: l.Size * nvmf.Bytes(len(l.Targets)), Started: l.Started, Ended: l.Ended}
	for _, t := range l.Targets {
		line.Targets = append(line.Targets, t.Target)
	}
	switch {
	case !l.Ready:
		line.State = "incomplete"
	case l.Freeing:
		line.State = "freeing"
	case l.Ended != nil:
		until := l.Ended.Add(l.Request.Retain)
		line.State, line.Until = "retained", &until
	}
	return line
}

// maxStats is how many stores are read at the same time.
const maxStats = 16

func describeLeases(ctx context.Context, leases []*slurm.Lease) []leaseLine {
	lines := make([]leaseLine, len(leases))
	var group errgroup.Group
	group.SetLimit(maxStats)
	for i, l := range leases {
		lines[i] = describeLease(l)
		if l.Ready {
			group.Go(func() error {
				lines[i].Used = usedOf(ctx, l)
				return nil
			})
		}
	}
	_ = group.Wait() // values that could not be read remain nil
	return lines
}

func (o *slurmOptions) status(cmd *cobra.Command, h *slurm.Hooks) error {
	leases, err := h.Leases()
	orphans, e := h.Orphans(cmd.Context())
	err = errors.Join(err, e)
	lines := describeLeases(cmd.Context(), leases)
	for _, s := range orphans {
		lines = append(lines, leaseLine{Name: s.Name, State: "no lease", Targets: []string{s.Target}})
	}
	if o.json {
		return errors.Join(err, printJSON(cmd.OutOrStdout(), lines))
	}
	return errors.Join(err, printLeases(cmd.OutOrStdout(), lines))
}

func printLeases(w io.Writer, lines []leaseLine) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tSTATE\tUSER\tJOB\tNODES\tSIZE\tUSED\tTARGETS\tSINCE")
	for _, l := range lines {
		since := "-"
		if l.Ended != nil {
			since = "ended " + humanize.Time(*l.Ended)
		} else if !l.Started.IsZero() {
			since = humanize.Time(l.Started)
		}
		used := "-"
		if l.Used != nil {
			used = size(*l.Used)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", printable(l.Name), l.State, l.User, l.Job, l.Nodes, size(l.Size), used, strings.Join(l.Targets, ","), since)
	}
	return t.Flush()
}

// statTimeout is how long `nvmecr stat` may take for a store.
const statTimeout = 5 * time.Second

// usedOf returns the bytes that files use in the namespaces of a lease, by `nvmecr stat` with the key of the job; nil
// if unknown.
func usedOf(ctx context.Context, l *slurm.Lease) *nvmf.Bytes {
	ctx, cancel := context.WithTimeout(ctx, statTimeout)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	key, err := keyFile(l.Key)
	if err != nil {
		return nil
	}
	defer os.RemoveAll(filepath.Dir(key))
	cmd := exec.CommandContext(ctx, self, "stat", "--json")
	cmd.Env = append(os.Environ(), l.Settings(key)...)
	out, err := cmd.Output()
	if err != nil {
		return nil
	}
	var list []partition
	if err := json.Unmarshal(out, &list); err != nil {
		return nil
	}
	used := new(nvmf.Bytes)
	for _, p := range list {
		*used += p.Capacity - p.Free
	}
	return used
}

// keyFile writes a key to a new file that only this user can read.
func keyFile(key string) (string, error) {
	dir, err := os.MkdirTemp("", "nvmecr-status-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "key")
	return path, os.WriteFile(path, []byte(key+"\n"), 0o600)
}
