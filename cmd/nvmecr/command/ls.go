package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"nvmecr/internal/cli"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

type lsOptions struct {
	reader
	json      bool
	recursive bool
}

func newLs() *cobra.Command {
	o := &lsOptions{}
	cmd := &cobra.Command{
		Use:   "ls [flags] [PATH]",
		Short: "List the files of the ranks",
		Long: `Lists a directory (default: the root) of every rank's partition, or of one
rank's, also while the job runs and after it died.
A file is complete when its last writer closed it and nothing has changed it
since; a file that was open when the job died is not.`,
		Example: `  nvmecr ls
  nvmecr ls --name melt --rank 0 /restart
  nvmecr ls -R --json`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.open(cmd); err != nil {
				return err
			}
			name := "/"
			if len(args) == 1 {
				name = o.pathInStore(args[0])
			}
			entries, err := o.list(cmd.Context(), name)
			if err != nil {
				return err
			}
			if o.json {
				err = printJSON(cmd.OutOrStdout(), entries)
			} else {
				err = o.print(cmd.OutOrStdout(), entries)
			}
			return errors.Join(err, o.end())
		},
	}
	o.bind(cmd)
	cli.AddSwitch(cmd.Flags(), &o.json, "json", "", "print JSON [NVMECR_JSON]")
	cli.AddSwitch(cmd.Flags(), &o.recursive, "recursive", "R", "list directories below PATH too [NVMECR_RECURSIVE]")
	return cmd
}

// An entry is one file of one rank.
type entry struct {
	Rank     int         `json:"rank"` // -1: the singleton partition, or the tree of the job
	Path     string      `json:"path"`
	Mode     fs.FileMode `json:"-"`
	ModeText string      `json:"mode"`
	Size     int64       `json:"size"`
	UID      uint32      `json:"uid"`
	GID      uint32      `json:"gid"`
	Created  time.Time   `json:"created"`
	Modified time.Time   `json:"modified"`
	Complete bool        `json:"complete"`
	Target   string      `json:"target,omitempty"` // of a symbolic link
}

func newEntry(rank int, name string, a microfs.Attr) entry {
	mode := fileMode(a.Mode)
	return entry{
		Rank: max(rank, -1), Path: name, Mode: mode, ModeText: modeText(mode), Size: a.Size, UID: a.UID, GID: a.GID,
		Created: a.Btime, Modified: a.Mtime, Complete: a.Closed,
	}
}

// list returns the entries of name in every rank that has it.
func (o *lsOptions) list(ctx context.Context, name string) ([]entry, error) {
	entries, found := []entry{}, false
	o.each(ctx, func(rank int, files vfs.FS) error {
		err := walk(files, name, o.recursive, func(name string, a microfs.Attr) error {
			e := newEntry(rank, name, a)
			if e.Mode&fs.ModeSymlink != 0 {
				e.Target, _ = files.Readlink(microfs.RootIno, name)
			}
			entries = append(entries, e)
			return nil
		})
		if errors.Is(err, syscall.ENOENT) {
			return nil // other ranks may have it, or it was removed meanwhile
		}
		found = true
		return o.explain(err, rank, name)
	})
	if !found {
		return nil, o.missing(name)
	}
	return entries, nil
}

// walk calls visit for name if it is a file, otherwise for the entries of the directory name. With deep it also
// visits the directories below, each before its entries.
func walk(f vfs.FS, name string, deep bool, visit func(name string, a microfs.Attr) error) error {
	a, err := f.Stat(microfs.RootIno, name, false)
	if err != nil {
		return err
	}
	if a.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return visit(name, a)
	}
	dir, err := f.Open(microfs.RootIno, name, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	for after := ""; ; {
		names, err := dir.ReadDir(after, 256)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, d := range names {
			after = d.Name
			child := path.Join(name, d.Name)
			a, err := f.Stat(microfs.RootIno, child, false)
			if err != nil {
				return err
			}
			if err := visit(child, a); err != nil {
				return err
			}
			if deep && d.Mode&syscall.S_IFMT == syscall.S_IFDIR {
				if err := walk(f, child, deep, visit); err != nil {
					return err
				}
			}
		}
	}
}

func (o *lsOptions) print(w io.Writer, entries []entry) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if !o.ofTree() {
		fmt.Fprint(t, "RANK\t")
	}
	fmt.Fprintln(t, "MODE\tSIZE\tMODIFIED\tCOMPLETE\tPATH")
	for _, e := range entries {
		name := printable(e.Path)
		if e.Target != "" {
			name += " -> " + printable(e.Target)
		}
		if !o.ofTree() {
			fmt.Fprint(t, o.rankColumn(e.Rank), "\t")
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\n", e.ModeText, e.Size,
			e.Modified.Local().Format("2006-01-02 15:04:05"), completeness(&e), name)
	}
	return t.Flush()
}

// fileMode converts an st_mode to an fs.FileMode.
func fileMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	switch mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		m |= fs.ModeDir
	case syscall.S_IFLNK:
		m |= fs.ModeSymlink
	}
	if mode&syscall.S_ISUID != 0 {
		m |= fs.ModeSetuid
	}
	if mode&syscall.S_ISGID != 0 {
		m |= fs.ModeSetgid
	}
	if mode&syscall.S_ISVTX != 0 {
		m |= fs.ModeSticky
	}
	return m
}
