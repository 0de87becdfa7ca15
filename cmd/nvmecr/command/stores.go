package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

type storesOptions struct{ json bool }

func newStores() *cobra.Command {
	o := &storesOptions{}
	cmd := &cobra.Command{
		Use:   "stores [flags]",
		Short: "List the stores of this user on this host",
		Long: `Lists the stores that have a state directory here, with their targets, how large
the file of an embedded one is and how much of it is allocated, how many ranks it was
formatted for, when a run was last started, and whether one is in progress here. Values
of a store that cannot be read are "?"; the reasons follow, and the exit status is 1.`,
		Example: `  nvmecr stores
  nvmecr stores --json`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.list(cmd.Context(), cmd.OutOrStdout())
		},
	}
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON [NVMECR_JSON]")
	return cmd
}

// A storeEntry is a store in the list. Sizes are in bytes.
type storeEntry struct {
	Name  string     `json:"name"`
	Where string     `json:"where"`           // the image, or the targets
	Size  nvmf.Bytes `json:"size,omitempty"`  // of the image
	Used  nvmf.Bytes `json:"used,omitempty"`  // allocated to the image
	Ranks int        `json:"ranks,omitempty"` // of an embedded store; 0: not formatted, or unknown
	Last  time.Time  `json:"last_run,omitzero"`
	InUse bool       `json:"in_use"`

	Problem string `json:"problem,omitempty"` // why other fields are unknown
}

func (o *storesOptions) list(ctx context.Context, w io.Writer) error {
	names, err := store.StateDirs()
	if err != nil {
		return err
	}
	entries := make([]storeEntry, 0, len(names))
	var problems []error
	for _, name := range names {
		e, err := describeStore(ctx, name)
		if err != nil { // one store that cannot be read does not hide the others
			e.Problem = err.Error()
			problems = append(problems, fmt.Errorf("store %s: %w", name, err))
		}
		entries = append(entries, e)
	}
	if err := o.print(w, entries); err != nil {
		return err
	}
	return errors.Join(problems...)
}

func (o *storesOptions) print(w io.Writer, entries []storeEntry) error {
	if o.json {
		return printJSON(w, entries)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tSIZE\tUSED\tRANKS\tLAST RUN\tIN USE\tWHERE")
	for _, e := range entries {
		size, used, ranks, last, use := "-", "-", "-", "-", "no"
		if e.Problem != "" {
			ranks, use = "?", "?"
		}
		if e.Size > 0 {
			size, used = e.Size.String(), e.Used.String()
		}
		if e.Ranks > 0 {
			ranks = fmt.Sprint(e.Ranks)
		}
		if !e.Last.IsZero() {
			last = e.Last.Local().Format(time.DateTime)
		}
		if e.InUse {
			use = "yes"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Name, size, used, ranks, last, use, printable(e.Where))
	}
	return t.Flush()
}

// describeStore describes a store without connecting to targets.
func describeStore(ctx context.Context, name string) (storeEntry, error) {
	e := storeEntry{Name: name}
	dir, err := store.FindStateDir(name)
	if err != nil {
		return e, err
	}
	record, err := dir.Load()
	if errors.Is(err, fs.ErrNotExist) { // the first run died before it recorded anything
		record, err = &store.Record{Embedded: true}, nil
	}
	if err != nil {
		return e, err
	}
	e.Last = record.Time
	if e.InUse, err = dir.InUse(); err != nil {
		return e, err
	}
	if !record.Embedded {
		e.Where = record.Settings["target"]
		return e, nil
	}
	e.Where = dir.Image()
	info, err := os.Stat(e.Where)
	if err != nil {
		return e, nil // released or removed
	}
	e.Size = nvmf.Bytes(info.Size())
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Used = nvmf.Bytes(st.Blocks) * 512
	}
	cfg := config.Default()
	if err := cfg.Set("name", name); err != nil {
		return e, err
	}
	cfg.Targets = []nvmf.TransportID{{Transport: nvmf.File, Address: e.Where}}
	ranks, err := store.Ranks(ctx, cfg)
	if err != nil && !errors.Is(err, parttable.ErrNoTable) {
		return e, err
	}
	e.Ranks = len(ranks)
	return e, nil
}
