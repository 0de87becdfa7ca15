package command

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

type releaseOptions struct {
	cfg   *config.Config
	erase bool
}

func newRelease() *cobra.Command {
	o := &releaseOptions{cfg: config.Default()}
	cmd := &cobra.Command{
		Use:   "release [flags]",
		Short: "Delete a store and its data",
		Long: `Deallocates the partitions of the store, where the device can, wipes their
tables, so that another store can use its namespaces, and removes what this host
has recorded about it. It is refused while a run of the store is in progress, here or on
another host, for namespaces of another name or user, and where a process that
wrote to them may live on another host; --takeover skips the check for a run, and
--unfenced asserts that no process lives.

With --erase all partitions are overwritten with zeros first. If it is interrupted,
run the same command again. What the device keeps of the overwritten data, in spare
blocks for instance, is not erased: use the sanitize command of the drive for that.`,
		Example: `  nvmecr release --name melt
  nvmecr release --name melt --erase`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.release(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.cfg.BindFlags(cmd.Flags(), append(slices.Clone(readerSettings), "unfenced", "takeover")...)
	cli.AddSwitch(cmd.Flags(), &o.erase, "erase", "", "overwrite the partitions with zeros first [NVMECR_ERASE]")
	return cmd
}

func (o *releaseOptions) release(ctx context.Context, w, stderr io.Writer) error {
	if err := o.cfg.Resolve(); err != nil {
		return cli.UsageError{Err: err}
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
	if !local { // a local store has a lock instead
		if err := store.Idle(ctx, o.cfg, lineLogger(stderr)); err != nil {
			return err
		}
	}
	if o.erase {
		if err := o.overwrite(ctx, stderr); err != nil {
			return err
		}
	}
	// A local store is removed with its directory, whatever the state of its image.
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

// overwrite erases the partitions.
func (o *releaseOptions) overwrite(ctx context.Context, stderr io.Writer) error {
	var told int64
	return store.Erase(ctx, o.cfg, func(done, all nvmf.Bytes) {
		if tenth := int64(10 * done / all); tenth > told {
			told = tenth
			fmt.Fprintf(stderr, "nvmecr: erased %s of %s\n", done, all)
		}
	})
}
