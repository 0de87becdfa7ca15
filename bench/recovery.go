package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
)

// records is how many log records the mount has to replay.
const records = 100_000

// recovery times the mount of a partition whose writer died with a full log.
func (b *bench) recovery(ctx context.Context) error {
	target, err := b.startTarget(ctx, nvmf.GiB)
	if err != nil {
		return err
	}
	dev, err := dial.Open(ctx, target.id, dial.Options{})
	if err != nil {
		return err
	}
	defer dev.Close()
	seg := microfs.Segment{Start: 0, Length: dev.Identity().Capacity()}
	if err := fillLog(ctx, dev, seg); err != nil {
		return err
	}
	begin := time.Now()
	fs, err := microfs.Mount(ctx, dev, seg, microfs.Options{Generation: 1})
	if err != nil {
		return err
	}
	took := time.Since(begin)
	used := fs.StatFS().LogPages - fs.StatFS().LogFree
	row(fmt.Sprintf("mount after a crash, %d log records in %d pages", records, used),
		fmt.Sprintf("%.3f s", took.Seconds()), "0.3 s")
	return fs.Unmount()
}

// fillLog writes records that are not coalesced and leaves without an unmount.
// The open file keeps the state checkpoint away.
func fillLog(ctx context.Context, dev nvmf.Device, seg microfs.Segment) error {
	format := microfs.FormatOptions{Generation: 1, Size: 1, LogPages: 8192}
	if err := microfs.Format(ctx, dev, seg, format); err != nil {
		return err
	}
	fs, err := microfs.Mount(ctx, dev, seg, microfs.Options{Generation: 1, NoCoalesce: true})
	if err != nil {
		return err
	}
	f, err := fs.Open(microfs.RootIno, "log", syscall.O_RDWR|syscall.O_CREAT, 0o600)
	if err != nil {
		return err
	}
	buf := [][]byte{make([]byte, 512)}
	for i := range records {
		if _, err := f.WriteAt(buf, int64(i)*512); err != nil {
			return fmt.Errorf("record %d: %w", i, err)
		}
		if i%1000 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}
