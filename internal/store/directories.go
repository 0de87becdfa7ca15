package store

import (
	"context"
	"errors"
	"path"
	"syscall"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
)

// A Directory is one of the solo partition.
type Directory struct {
	Path string // from the root
	Mode uint32 // permission bits
}

// MostDirectories is how many SoloDirectories returns at most.
const MostDirectories = 4096

// SoloDirectories returns the directories of the solo partition of the store that p, a
// rank's, belongs to, each before those in it; none where there is no solo partition or nobody has written to it.
// It costs a few round trips. Errors are those of Open.
func (p *Partition) SoloDirectories(ctx context.Context, cfg *config.Config) (list []Directory, err error) {
	if p.Table.Target == 0 {
		if _, ok := p.Table.SoloEntry(); !ok {
			return nil, nil
		}
	}
	solo, err := Open(ctx, cfg, Place{Rank: parttable.Solo, Size: p.Table.JobSize}, Options{ReadOnly: true})
	if errors.Is(err, microfs.ErrUnformatted) || errors.Is(err, ErrNoSolo) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = andClosing(err, solo.Close()) }()
	list = []Directory{{Path: "/"}}
	for i := 0; i < len(list); i++ {
		if list, err = below(solo.FS, list, list[i].Path); err != nil {
			return nil, err
		}
	}
	return list[1:], nil
}

// below appends the directories in one to list.
func below(fs *microfs.FS, list []Directory, dir string) ([]Directory, error) {
	f, err := fs.Open(microfs.RootIno, dir, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if errors.Is(err, syscall.EACCES) {
		return list, nil // its owner does not want it to be read
	}
	if err != nil {
		return nil, err
	}
	names, err := f.ReadDir("", 0)
	if err = andClosing(err, f.Close()); err != nil {
		return nil, err
	}
	for _, d := range names {
		if d.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			continue
		}
		name := path.Join(dir, d.Name)
		a, err := fs.Stat(microfs.RootIno, name, false)
		if err != nil {
			return nil, err
		}
		if len(list) <= MostDirectories {
			list = append(list, Directory{Path: name, Mode: a.Mode & 0o1777})
		}
	}
	return list, nil
}
