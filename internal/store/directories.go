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

// MaxDirectories is how many SoloDirectories returns at most.
const MaxDirectories = 4096

// SoloDirectories returns the directories of the solo partition of the store that p, a
// rank's, belongs to, each before those in it; none where there is no solo partition or nobody has written to it.
// It costs a few round trips. Errors are those of Open.
func (p *Partition) SoloDirectories(ctx context.Context, cfg *config.Config) (list []Directory, err error) {
	solo, err := p.solo(ctx, cfg)
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

// solo mounts the solo partition for reading, through p's device where it is there.
func (p *Partition) solo(ctx context.Context, cfg *config.Config) (*Partition, error) {
	place := Place{Rank: parttable.Solo, Size: p.Table.JobSize}
	if p.Table.Target != 0 {
		return Open(ctx, cfg, place, Options{ReadOnly: true})
	}
	entry, ok := p.Table.SoloEntry()
	if !ok {
		return nil, ErrNoSolo
	}
	o := &opener{cfg: cfg, place: place, opts: Options{ReadOnly: true, Logf: func(string, ...any) {}}}
	solo := &Partition{Table: p.Table, Place: place}
	on := &Partition{Device: p.Device, Table: p.Table, Place: place}
	err := o.mount(ctx, on, entry)
	solo.FS = on.FS // without the device, which p closes
	return solo, err
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
		if len(list) <= MaxDirectories {
			list = append(list, Directory{Path: name, Mode: a.Mode & 0o1777})
		}
	}
	return list, nil
}
