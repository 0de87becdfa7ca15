package command

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"nvmecr/internal/config"
	"nvmecr/internal/store"
)

type releaseOptions struct{ cfg *config.Config }

func newRelease() *cobra.Command {
	o := &releaseOptions{cfg: config.Default()}
	cmd := &cobra.Command{
		Use:   "release [flags]",
		Short: "Give a store up: what it holds is lost",
		Long: `Wipes the partition tables of the store, so that another store can use its
namespaces, and removes what this host keeps of it. It is refused while a run
of the store is in progress here, for namespaces of another name or user, and
where a process that wrote to them may live on another host; --unfenced says that
none does.`,
		Example: `  nvmecr release --name melt`,
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.release(cmd.Context(), cmd.OutOrStdout())
		},
	}
	o.cfg.BindFlags(cmd.Flags(), append(slices.Clone(readerSettings), "unfenced")...)
	return cmd
}

func (o *releaseOptions) release(ctx context.Context, w io.Writer) error {
	if err := o.cfg.Resolve(); err != nil {
		return usageError{err}
	}
	local, err := locate(o.cfg)
	if err != nil {
		return err
	}
	dir, err := store.OpenStateDir(o.cfg.Name)
	if err != nil {
		return err
	}
	lock, err := lockStore(dir)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	var last uuid.UUID
	if record, err := dir.Load(); err == nil {
		last = record.Run
	}
	if o.cfg.Run, err = store.NewRun(last); err != nil {
		return err
	}
	// A local store goes with its directory, whatever is left of its image.
	if !local {
		if _, err := store.Release(ctx, o.cfg); err != nil {
			return err
		}
	}
	if err := dir.Remove(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "nvmecr: store %q is released\n", o.cfg.Name)
	return err
}
