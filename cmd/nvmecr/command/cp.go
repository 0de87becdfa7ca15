package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"nvmecr/internal/store"
	"nvmecr/microfs"
)

type cpOptions struct{ reader }

func newCp() *cobra.Command {
	o := &cpOptions{}
	cmd := &cobra.Command{
		Use:   "cp [flags] PATH LOCAL",
		Short: "Copy files out of the store",
		Long: `Copies a file or a directory with all below it to a local path, with mode and
time, as it is on the namespace: also while the job runs and after it died.
Where LOCAL is a directory the copy goes into it. A PATH that several ranks
have is copied to LOCAL/rank0, LOCAL/rank1 and so on, unless --rank chooses.
Files that their writer never closed are copied too, and named on stderr. So is
what cannot be read; the others are copied, and the exit status is 1.`,
		Example: `  nvmecr cp --rank 0 /melt.600.0 .
  nvmecr cp --name melt / ./checkpoints`,
		Args: usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.open(cmd); err != nil {
				return err
			}
			return o.copy(cmd.Context(), o.inside(args[0]), args[1])
		},
	}
	o.bind(cmd)
	return cmd
}

func (o *cpOptions) copy(ctx context.Context, name, local string) error {
	ranks, err := o.holders(ctx, name)
	if err != nil {
		return err
	}
	for _, rank := range ranks {
		dest := local
		if len(ranks)+len(o.broken) > 1 {
			dest = filepath.Join(local, fmt.Sprintf("rank%d", rank))
			if err := os.MkdirAll(dest, 0o777); err != nil {
				return err
			}
		}
		if err := o.copyRank(ctx, rank, name, dest); err != nil {
			if writing(err) {
				return err
			}
			o.fail(err)
		}
	}
	return o.end()
}

func (o *cpOptions) copyRank(ctx context.Context, rank int, name, dest string) error {
	p, err := o.mount(ctx, rank)
	if err != nil {
		return err
	}
	defer p.Close()
	top, err := p.FS.Stat(microfs.RootIno, name, true)
	if err != nil {
		return explain(err, rank, name)
	}
	if info, err := os.Stat(dest); err == nil && info.IsDir() && name != "/" {
		dest = filepath.Join(dest, path.Base(name))
	}
	if err := o.copyOne(p, rank, name, dest, top); err != nil {
		return err
	}
	if !fileMode(top.Mode).IsDir() {
		return nil
	}
	return walk(p.FS, name, true, func(child string, a microfs.Attr) error {
		err := o.copyOne(p, rank, child, filepath.Join(dest, strings.TrimPrefix(child, name)), a)
		if err != nil && !writing(err) {
			o.fail(err)
			err = nil
		}
		return err
	})
}

// A localError is one of writing the copy: the next file fares no better.
type localError struct{ error }

func (e localError) Unwrap() error { return e.error }

func writing(err error) bool { return errors.As(err, new(localError)) }

// copyOne copies a file or a symbolic link, or makes the directory.
func (o *cpOptions) copyOne(p *store.Partition, rank int, name, dest string, a microfs.Attr) error {
	switch mode := fileMode(a.Mode); {
	case mode.IsDir():
		// The owner must be able to fill it.
		if err := os.MkdirAll(dest, mode.Perm()|0o700); err != nil {
			return localError{err}
		}
		return nil
	case mode&fs.ModeSymlink != 0:
		to, err := p.FS.Readlink(microfs.RootIno, name)
		if err != nil {
			return explain(err, rank, name)
		}
		if err := os.Remove(dest); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.Symlink(to, dest)
	}
	if !a.Closed {
		fmt.Fprintf(o.stderr, "nvmecr: rank %d: %s was not closed by its writer: the copy may be cut short\n", rank, name)
	}
	return o.copyFile(p, rank, name, dest, a)
}

// copyFile writes to a name of its own first: dest is either the whole file or
// what it was before.
func (o *cpOptions) copyFile(p *store.Partition, rank int, name, dest string, a microfs.Attr) (err error) {
	f, err := os.CreateTemp(filepath.Dir(dest), "."+filepath.Base(dest)+".*")
	if err != nil {
		if cause := errors.Unwrap(err); cause != nil {
			err = cause // its name is nobody's business
		}
		return localError{fmt.Errorf("cannot write %s: %w", dest, err)}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err = copyOut(p, name, f); errors.As(err, new(*fs.PathError)) {
		err = localError{err}
	}
	err = explain(err, rank, name)
	if err = errors.Join(err, f.Chmod(fileMode(a.Mode).Perm()), f.Close()); err != nil {
		return err
	}
	if err = os.Chtimes(f.Name(), a.Atime, a.Mtime); err != nil {
		return err
	}
	return os.Rename(f.Name(), dest)
}
