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
	"syscall"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

type cpOptions struct{ reader }

func newCp() *cobra.Command {
	o := &cpOptions{}
	cmd := &cobra.Command{
		Use:   "cp [flags] PATH LOCAL",
		Short: "Copy files out of the store",
		Long: `Copies a file or a directory with all below it to a local path, with mode and
time of modification, also while the job runs and after it died.
Where LOCAL is a directory the copy goes into it. A PATH that several ranks
have is copied to LOCAL/rank0, LOCAL/rank1 and so on (LOCAL/singleton: job scripts), unless --rank chooses.
Files that their writer never closed are copied too, with a warning on stderr. Files
that cannot be read are reported; the others are copied, and the exit status is 1.`,
		Example: `  nvmecr cp --rank 0 /melt.600.0 .
  nvmecr cp --name melt / ./checkpoints`,
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.open(cmd); err != nil {
				return err
			}
			return o.copy(cmd.Context(), o.pathInStore(args[0]), args[1])
		},
	}
	o.bind(cmd)
	return cmd
}

func (o *cpOptions) copy(ctx context.Context, name, local string) error {
	ranks, err := o.ranksWith(ctx, name)
	if err != nil {
		return err
	}
	for _, rank := range ranks {
		dest := local
		if len(ranks)+len(o.broken) > 1 { // this command makes the directory, so a link there is refused
			dest = filepath.Join(local, strings.ReplaceAll(o.rankName(rank), " ", ""))
			if err := os.MkdirAll(dest, 0o777); err != nil {
				return err
			}
			if info, err := os.Lstat(dest); err != nil || !info.IsDir() {
				return fmt.Errorf("%s is a link, which is not followed: remove it: %w", printable(dest), errors.Join(err, fs.ErrExist))
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

func (o *cpOptions) copyRank(ctx context.Context, rank int, name, local string) error {
	p, err := o.mount(ctx, rank)
	if err != nil {
		return err
	}
	defer p.Close()
	top, err := p.FS.Stat(microfs.RootIno, name, true)
	if err != nil {
		return o.explain(err, rank, name)
	}
	d, err := openDestination(local, name, fileMode(top.Mode).IsDir())
	if err != nil {
		return localError{err}
	}
	defer d.root.Close()
	if !fileMode(top.Mode).IsDir() {
		return o.copyOne(p, rank, name, d, d.base, top)
	}
	return walk(p.FS, name, true, func(child string, a microfs.Attr) error {
		err := o.copyOne(p, rank, child, d, path.Join(d.base, strings.TrimPrefix(child, name)), a)
		if err != nil && !writing(err) {
			o.fail(err)
			err = nil
		}
		return err
	})
}

// A destination confines the copy to a directory, whatever symbolic links are in it. The job controls the links that
// the store contains.
type destination struct {
	root *os.Root
	base string // path of the copy within root
}

// openDestination opens the directory that the copy of name goes into: local if it is a directory, otherwise its
// parent. Links in the path of local itself are the user's and are followed.
func openDestination(local, name string, dir bool) (d destination, err error) {
	info, err := os.Stat(local)
	switch {
	case err == nil && info.IsDir() && name == "/":
		d.base = "."
	case err == nil && info.IsDir():
		d.base = path.Base(name)
	case dir && name == "/":
		if err := os.MkdirAll(local, 0o777); err != nil {
			return d, err
		}
		d.base = "."
	default:
		local, d.base = filepath.Dir(local), filepath.Base(local)
	}
	if d.root, err = os.OpenRoot(local); err != nil {
		return d, err
	}
	if dir && d.base != "." {
		if err := d.mkdir(d.base, 0o777); err != nil {
			return d, errors.Join(err, d.root.Close())
		}
	}
	return d, nil
}

// mkdir makes a directory unless it exists.
func (d destination) mkdir(dest string, perm fs.FileMode) error {
	err := d.root.MkdirAll(dest, perm)
	if err == nil {
		return nil
	}
	at := printable(filepath.Join(d.root.Name(), dest))
	if info, e := d.root.Lstat(dest); e == nil && !info.IsDir() {
		return localError{fmt.Errorf("%s has to be a directory, and is a file or a link: remove it, or copy to another place", at)}
	}
	return localError{fmt.Errorf("cannot make the directory %s: %w", at, err)}
}

// A localError is an error of writing the copy. It ends the command, since later files would fail as well.
type localError struct{ error }

func (e localError) Unwrap() error { return e.error }

func writing(err error) bool { return errors.As(err, new(localError)) }

// copyOne copies a file or a symbolic link to dest, or makes the directory.
func (o *cpOptions) copyOne(p *vfs.Mount, rank int, name string, d destination, dest string, a microfs.Attr) error {
	switch mode := fileMode(a.Mode); {
	case mode.IsDir():
		return d.mkdir(dest, mode.Perm()|0o700) // the owner must be able to fill it
	case mode&fs.ModeSymlink != 0:
		to, err := p.FS.Readlink(microfs.RootIno, name)
		if err != nil {
			return o.explain(err, rank, name)
		}
		if err := d.root.Remove(dest); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return d.root.Symlink(to, dest)
	}
	if !a.Closed {
		fmt.Fprintf(o.stderr, "nvmecr: %s: %s was not closed by its writer: the copy may be cut short\n", o.rankName(rank), printable(name))
	}
	return o.copyFile(p, rank, name, d, dest, a)
}

// copyFile writes to a temporary name and renames it, so that dest is either the whole new
// file or unchanged.
func (o *cpOptions) copyFile(p *vfs.Mount, rank int, name string, d destination, dest string, a microfs.Attr) (err error) {
	part := path.Join(path.Dir(dest), fmt.Sprintf(".nvmecr-%s.part", uuid.NewString()))
	f, err := d.root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		if cause := errors.Unwrap(err); cause != nil {
			err = cause // the temporary name means nothing to users
		}
		return localError{fmt.Errorf("cannot write %s: %w", printable(dest), err)}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.root.Remove(part))
		}
	}()
	if err = copySparse(p, name, f, a.Size); errors.As(err, new(*fs.PathError)) {
		err = localError{err}
	}
	err = o.explain(err, rank, name)
	if err = errors.Join(err, f.Chmod(fileMode(a.Mode).Perm()), f.Close()); err != nil {
		return err
	}
	if err = d.root.Chtimes(part, a.Atime, a.Mtime); err != nil {
		return err
	}
	return d.root.Rename(part, dest)
}

// copySparse copies the data of a file and leaves its holes.
func copySparse(p *vfs.Mount, name string, to *os.File, size int64) error {
	f, err := p.FS.Open(microfs.RootIno, name, syscall.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, copyBuffer)
	for off := int64(0); ; {
		data, err := f.SeekData(off)
		if errors.Is(err, syscall.ENXIO) {
			break // the rest is a hole
		}
		if err != nil {
			return err
		}
		hole, err := f.SeekHole(data)
		if err != nil {
			return err
		}
		for off = data; off < hole; {
			n, err := f.ReadAt([][]byte{buf[:min(int64(len(buf)), hole-off)]}, off)
			if err != nil {
				return err
			}
			if n == 0 {
				break // the file was truncated meanwhile
			}
			if _, err := to.WriteAt(buf[:n], off); err != nil {
				return err
			}
			off += int64(n)
		}
		if off < hole {
			break
		}
	}
	if info, err := to.Stat(); err != nil || info.Size() >= size {
		return err
	}
	return to.Truncate(size)
}
