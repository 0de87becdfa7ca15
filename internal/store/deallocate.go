package store

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/internal/config"
	"nvmecr/nvmf"
)

// deallocateChunk is the number of bytes that one command deallocates: few enough for the time-out of commands.
const deallocateChunk = 64 * nvmf.MiB

// deallocateAll deallocates the partitions of this store on dev, if there are any. It is called before their table is
// wiped, since the space may belong to another store afterwards. Deallocation is advisory: an error of the device is
// ignored.
func deallocateAll(ctx context.Context, cfg *config.Config, dev nvmf.Device) (err error) {
	if !dev.Identity().CanDeallocate {
		return nil
	}
	table, err := readTable(ctx, cfg, dev)
	if err != nil || table.Check(want(cfg, 0, 0, 0)) != nil {
		return nil // dev has no table of this store
	}
	q, err := dev.OpenQueue(ctx, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	for _, e := range table.FileSystems() {
		err := deallocate(ctx, q, dev.Identity(), e.Start, e.Length)
		var refused *nvmf.StatusError
		if errors.As(err, &refused) && !nvmf.IsConflict(err) && !nvmf.IsPreempted(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("deallocating %s: %w", partitionName(e.Rank), err)
		}
	}
	return nil
}

// deallocate deallocates a part of a device, in multiples of its blocks.
func deallocate(ctx context.Context, q nvmf.Queue, id *nvmf.Identity, start, length nvmf.Bytes) error {
	for end := start + length; start < end; {
		n := min(deallocateChunk, end-start)
		cmds := []*nvmf.Command{{Opcode: nvmf.Deallocate, LBA: nvmf.LBA(start / id.LBASize), Blocks: nvmf.LBA(n / id.LBASize)}}
		q.Submit(cmds)
		if err := q.Wait(cmds); err != nil {
			return err
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		start += n
	}
	return nil
}
