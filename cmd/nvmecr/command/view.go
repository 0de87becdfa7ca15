package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"nvmecr/fuseview"
	"nvmecr/internal/cli"
	"nvmecr/internal/vfs"
	"nvmecr/posixshim"
)

type mountOptions struct {
	reader
	allowOther bool
}

func newMount() *cobra.Command {
	o := &mountOptions{}
	cmd := &cobra.Command{
		Use:   "mount [flags] DIRECTORY",
		Short: "Mount a store's files for every program, through FUSE",
		Long: `Mounts the files of a store at a directory, read-only, through FUSE: while the
job runs and after it died, on any host that can reach its namespaces. It is the
tree of the job, or, if each rank has files of its own, a directory for each rank;
with --rank it has the files of that rank. Data that ranks write is visible at once; in
a tree, when the file is closed or synced. It ends with Ctrl-C, SIGTERM, or when the directory is
unmounted.`,
		Example: `  nvmecr mount --name melt /mnt/melt &
  tail -f /mnt/melt/log.lammps`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.open(cmd); err != nil {
				return err
			}
			return o.serve(cmd, args[0])
		},
	}
	o.bind(cmd)
	cmd.Flags().BoolVar(&o.allowOther, "allow-other", false,
		"let other users access files as their modes allow (root, or user_allow_other in /etc/fuse.conf) [NVMECR_ALLOW_OTHER]")
	return cmd
}

// serve mounts the view and waits for its end.
func (o *mountOptions) serve(cmd *cobra.Command, dir string) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var trees []fuseview.Tree
	o.each(ctx, func(rank int, _ vfs.FS) error {
		trees = append(trees, fuseview.Tree{Name: strings.ReplaceAll(o.rankName(rank), " ", ""), Process: o.process(ctx, rank), Number: uint64(len(trees)) + 1})
		return nil
	})
	if len(trees) == 0 {
		if o.failed {
			return o.end()
		}
		return fmt.Errorf("nothing was ever written to store %q", o.cfg.Name)
	}
	if o.rank != allRanks || o.tree {
		trees[0].Name, trees[0].Number = "", 0
	}
	view, err := fuseview.Mount(dir, trees, fuseview.Options{ReadOnly: true, AllowOther: o.allowOther})
	if err != nil {
		return err
	}
	fmt.Fprintf(o.stderr, "nvmecr: store %q at %s, read-only\n", o.cfg.Name, dir)
	ended := make(chan struct{})
	go func() {
		view.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		err = view.Close()
	}
	for _, t := range trees {
		err = errors.Join(err, t.Process.Finish())
	}
	return err
}

// process opens the files of a rank on first use, and again when the rank has changed them.
func (o *mountOptions) process(ctx context.Context, rank int) *posixshim.Process {
	return posixshim.New(func(write bool) (*vfs.Mount, error) {
		if write {
			return nil, syscall.EROFS
		}
		return o.openFiles(ctx, rank)
	}, func(format string, args ...any) {
		fmt.Fprintf(o.stderr, "nvmecr: rank %d: %s\n", rank, fmt.Sprintf(format, args...))
	})
}
