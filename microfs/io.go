package microfs

import (
	"context"

	"nvmecr/nvmf"
)

// brokenQueue is the queue of a file system that is out of service. It refuses every command, so
// that an operation in progress ends: another run may own the partition now, or acknowledged data
// may be missing.
type brokenQueue struct {
	nvmf.Queue
	err error
}

func (q brokenQueue) Submit(cmds []*nvmf.Command) {
	for _, c := range cmds {
		c.Begin()
		c.Finish(q.err)
	}
}

func (q brokenQueue) Reset(context.Context) error { return q.err }

// run submits commands and waits for them.
func (fs *FS) run(cmds []*nvmf.Command) error {
	if len(cmds) == 0 {
		return nil
	}
	fs.q.Submit(cmds)
	return await(fs.q, cmds)
}

// await waits for commands and returns their error. A lost connection has precedence over a refused
// command, because commands may still be executed.
func await(q nvmf.Queue, cmds []*nvmf.Command) error {
	err := q.Wait(cmds)
	if err == nil || lost(err) {
		return err
	}
	for _, c := range cmds {
		if lost(c.Err) {
			return c.Err
		}
	}
	return err
}

// mover reads and writes the device outside the data path. It uses its commands again.
type mover struct {
	cmds [moverBatch]nvmf.Command
	list [moverBatch]*nvmf.Command
	data [moverBatch][1][]byte
}

const moverBatch = 32

// transfer reads or writes buf with as many commands as necessary.
func (m *mover) transfer(q nvmf.Queue, id *nvmf.Identity, op nvmf.Opcode, lba nvmf.LBA, buf []byte, fua bool) error {
	step := int(id.OptimalTransfer)
	for len(buf) > 0 {
		n := 0
		for ; len(buf) > 0 && n < moverBatch; n++ {
			part := buf[:min(step, len(buf))]
			c := &m.cmds[n]
			c.Opcode, c.FUA, c.LBA, c.Blocks = op, fua, lba, nvmf.LBA(nvmf.Bytes(len(part))/id.LBASize)
			m.data[n][0] = part
			c.Data, m.list[n] = m.data[n][:], c
			lba += c.Blocks
			buf = buf[len(part):]
		}
		q.Submit(m.list[:n])
		err := await(q, m.list[:n])
		clear(m.data[:n]) // so that the buffer can be collected
		if err != nil {
			return err
		}
	}
	return nil
}

// transfer reads or writes buf. The caller holds FS.mu.
func (fs *FS) transfer(op nvmf.Opcode, lba nvmf.LBA, buf []byte, fua bool) error {
	return fs.mover.transfer(fs.q, fs.dev.Identity(), op, lba, buf, fua)
}

// readBlocks reads a few blocks outside the data path.
func (fs *FS) readBlocks(lba nvmf.LBA, buf []byte) error {
	return fs.transfer(nvmf.Read, lba, buf, false)
}
