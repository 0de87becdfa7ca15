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

// A Directory is a directory of the singleton partition.
type Directory struct {
	Path string // from the root
	Mode uint32 // permission bits
}

// MaxDirectories is the limit of directories that SingletonDirectories returns.
const MaxDirectories = 4096

// SingletonDirectories returns the directories of the singleton partition of the store that p, a rank's partition,
// belongs to. A directory precedes its subdirectories. The result is empty if there is no singleton partition, or it
// was never written. The cost is a few round trips. Errors are those of Open.
func (p *Partition) SingletonDirectories(ctx context.Context, cfg *config.Config) (list []Directory, err error) {
	singleton, err := p.singleton(ctx, cfg)
	if errors.Is(err, microfs.ErrUnformatted) || errors.Is(err, ErrNoSingletonPartition) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = andClosing(err, singleton.Close()) }()
	list = []Directory{{Path: "/"}}
	for i := 0; i < len(list); i++ {
		if list, err = below(singleton.FS, list, list[i].Path); err != nil {
			return nil, err
		}
	}
	return list[1:], nil
}

// singleton mounts the singleton partition for reading. It uses p's device if that is the first target.
func (p *Partition) singleton(ctx context.Context, cfg *config.Config) (*Partition, error) {
	proc := Proc{Rank: parttable.Singleton, Size: p.Table.JobSize}
	if p.Table.Target != 0 {
		return Open(ctx, cfg, proc, Options{ReadOnly: true})
	}
	entry, ok := p.Table.SingletonEntry()
	if !ok {
		return nil, ErrNoSingletonPartition
	}
	o := &opener{cfg: cfg, proc: proc, opts: Options{ReadOnly: true, Logf: func(string, ...any) {}}}
	singleton := &Partition{Table: p.Table, Proc: proc}
	on := &Partition{Device: p.Device, Table: p.Table, Proc: proc}
	err := o.mount(ctx, on, entry)
	singleton.FS = on.FS // without the device, which p closes
	return singleton, err
}

// below appends the subdirectories of a directory to list.
func below(fs *microfs.FS, list []Directory, dir string) ([]Directory, error) {
	f, err := fs.Open(microfs.RootIno, dir, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if errors.Is(err, syscall.EACCES) {
		return list, nil // this user may not read the directory
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
