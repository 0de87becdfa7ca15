package microfs

import (
	"context"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// Format makes an empty file system on seg. It reads nothing; any earlier content is lost. It fails
// with ErrBadFormat, ErrTooSmall, or the error of the device.
func Format(ctx context.Context, dev nvmf.Device, seg Segment, opts FormatOptions) error {
	id := dev.Identity()
	g, err := newGeometry(id, seg, &opts)
	if err != nil {
		return err
	}
	g.created = now()
	q, err := dev.OpenQueue(ctx, 8)
	if err != nil {
		return &nvmf.NoQueueError{Cause: err}
	}
	defer q.Close()
	return g.write(q, id)
}

// write writes an empty file system: first the state, the header and a blank start of the log, then
// the two superblocks, the one at the start last.
func (g *geometry) write(q nvmf.Queue, id *nvmf.Identity) error {
	state := newTree(g).encode(nil)
	h := stateHeader{sequence: 1, length: nvmf.Bytes(len(state)), crc: checksum(state)}
	buf := make([]byte, blockSize)
	h.encode(buf, g.fs)
	sb := make([]byte, blockSize)
	g.encode(sb)
	places := g.seg.superblocks()
	steps := []struct {
		at   nvmf.Bytes
		data []byte
	}{
		{g.state[0], frame(state, h.sequence)},
		{claimOffset, make([]byte, 2*blockSize)},
		{logOffset, make([]byte, min(g.logPages, 64)*2*oplog.PageSize)},
		{headerOffset, buf}, {headerOffset + blockSize, buf},
		{places[1], sb}, {places[0], sb},
	}
	var m mover
	for _, s := range steps {
		if err := m.transfer(q, id, nvmf.Write, g.lbaOf(s.at), s.data, false); err != nil {
			return err
		}
		if err := flushQueue(q, id); err != nil {
			return err
		}
	}
	return nil
}

func flushQueue(q nvmf.Queue, id *nvmf.Identity) error {
	if !id.VolatileWriteCache {
		return nil
	}
	flush := []*nvmf.Command{{Opcode: nvmf.Flush}}
	q.Submit(flush)
	return q.Wait(flush)
}
