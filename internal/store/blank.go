package store

import (
	"context"
	"errors"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// blankSize is large enough for an empty file system.
const blankSize = nvmf.MiB

// Blank mounts an empty file system in memory, for reading. Readers get it instead of a singleton partition that was
// never written, because a reader formats nothing.
func Blank(ctx context.Context, cfg *config.Config) (*microfs.FS, error) {
	const lba = 4096
	dev, err := memdev.New(blankSize, lba, memdev.Options{})
	if err != nil {
		return nil, err
	}
	cred, err := Cred()
	if err != nil {
		return nil, err
	}
	seg := microfs.Segment{Length: blankSize}
	if err := microfs.Format(ctx, dev, seg, microfs.FormatOptions{Hugeblock: microfs.MinHugeblock, LogPages: 8, Cred: cred}); err != nil {
		return nil, err
	}
	return microfs.Mount(ctx, dev, seg, microfs.Options{ReadOnly: true, Cred: cred, MountPoint: cfg.Mount})
}

// SingletonSize returns the size of the singleton partition, or the size that it would have if a singleton wrote to the
// store now.
func SingletonSize(ctx context.Context, cfg *config.Config) (size nvmf.Bytes, err error) {
	if len(cfg.Targets) == 0 {
		return 0, ErrNoTarget
	}
	dev, err := connect(ctx, cfg, cfg.Targets[0], true)
	if err != nil {
		return 0, err
	}
	defer func() { err = andClosing(err, dev.Close()) }()
	table, err := readTable(ctx, cfg, dev)
	if errors.Is(err, parttable.ErrNoTable) {
		return dev.Identity().Capacity() - parttable.HeadSize, nil
	}
	if err != nil {
		return 0, err
	}
	e, _ := table.SingletonEntry()
	return e.Length, nil
}
