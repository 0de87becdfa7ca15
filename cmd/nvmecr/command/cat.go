package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// copyBuffer is the number of bytes read at a time.
const copyBuffer = 1 << 20

type catOptions struct{ reader }

func newCat() *cobra.Command {
	o := &catOptions{}
	cmd := &cobra.Command{
		Use:   "cat [flags] PATH...",
		Short: "Print files of a rank",
		Long: `Prints files with their present content on the namespace, also while the job runs and after
it died. --rank may be left out where only one rank has the file.`,
		Example: `  nvmecr cat --rank 2 /melt.600.2 > melt.600.2`,
		Args:    cli.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.open(cmd); err != nil {
				return err
			}
			for _, name := range args {
				err := o.print(cmd.Context(), cmd.OutOrStdout(), o.pathInStore(name))
				if errors.As(err, new(cli.UsageError)) || errors.Is(err, syscall.ENOSPC) {
					return err
				}
				if err != nil {
					o.fail(err)
				}
			}
			return o.end()
		},
	}
	o.bind(cmd)
	return cmd
}

func (o *catOptions) print(ctx context.Context, w io.Writer, name string) error {
	ranks, err := o.ranksWith(ctx, name)
	if err != nil {
		return err
	}
	if len(ranks) > 1 {
		var who []string
		for _, rank := range ranks {
			who = append(who, o.rankColumn(rank))
		}
		return cli.UsageError{Err: fmt.Errorf("%s: ranks %v have a file of that name, choose one with --rank", name, who)}
	}
	p, err := o.mount(ctx, ranks[0])
	if err != nil {
		return err
	}
	defer p.Close()
	return o.explain(copyOut(p, name, w), ranks[0], name)
}

// copyOut writes the content of a file to w.
func copyOut(p *vfs.Mount, name string, w io.Writer) error {
	f, err := p.FS.Open(microfs.RootIno, name, syscall.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, copyBuffer)
	for off := int64(0); ; {
		n, err := f.ReadAt([][]byte{buf}, off)
		if err != nil || n == 0 {
			return err
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		off += int64(n)
	}
}
