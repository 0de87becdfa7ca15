package store

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/nvmf"
)

// eraseChunk is how many bytes a command writes, eraseDepth how many commands are in flight.
const (
	eraseChunk = nvmf.MiB
	eraseDepth = 8
)

// Erase overwrites the partitions of the store with zeros, on every target that has a table of the store. The tables
// stay, so an interrupted Erase can be repeated. progress is called with the bytes written and the total; it may be
// nil. A device may still have old data in spare blocks; Erase does not reach them.
//
// Errors are those of Release.
func Erase(ctx context.Context, cfg *config.Config, progress func(done, all nvmf.Bytes)) error {
	return eachTarget(ctx, cfg, false, func(t int, _ nvmf.TransportID, dev nvmf.Device) error {
		table, err := readTable(ctx, cfg, dev)
		if errors.Is(err, parttable.ErrNoTable) {
			return nil
		}
		if err == nil {
			err = table.Check(want(cfg, 0, 0, 0))
		}
		if err == nil {
			err = quiet(ctx, cfg, dev, table, true)
		}
		if err == nil {
			_, err = fence(ctx, cfg, dev)
		}
		if err != nil {
			return err
		}
		var done, all nvmf.Bytes
		for _, e := range table.FileSystems() {
			all += e.Length
		}
		for _, e := range table.FileSystems() {
			err := zero(ctx, dev, e.Start, e.Length, func(n nvmf.Bytes) {
				if done += n; progress != nil {
					progress(done, all)
				}
			})
			if err != nil {
				return fmt.Errorf("erasing %s: %w", partitionName(e.Rank), err)
			}
		}
		return nil
	})
}

// zero overwrites a part of a device, in multiples of its blocks.
func zero(ctx context.Context, dev nvmf.Device, start, length nvmf.Bytes, wrote func(nvmf.Bytes)) (err error) {
	id := dev.Identity()
	q, err := dev.OpenQueue(ctx, eraseDepth)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	chunk := min(eraseChunk, id.MaxTransfer)
	zeros := make([]byte, chunk)
	cmds := make([]nvmf.Command, eraseDepth)
	for end := start + length; start < end; {
		var batch []*nvmf.Command
		var size nvmf.Bytes
		for i := 0; i < eraseDepth && start < end; i++ {
			n := min(chunk, end-start)
			cmds[i] = nvmf.Command{Opcode: nvmf.Write, LBA: nvmf.LBA(start / id.LBASize), Blocks: nvmf.LBA(n / id.LBASize), Data: [][]byte{zeros[:n]}}
			batch = append(batch, &cmds[i])
			start, size = start+n, size+n
		}
		q.Submit(batch)
		if err := q.Wait(batch); err != nil {
			return err
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		wrote(size)
	}
	if !id.VolatileWriteCache {
		return nil
	}
	flush := []*nvmf.Command{{Opcode: nvmf.Flush}}
	q.Submit(flush)
	return q.Wait(flush)
}
