package microfs

import "nvmecr/nvmf"

// run submits commands and waits for them.
func (fs *FS) run(cmds []*nvmf.Command) error {
	if len(cmds) == 0 {
		return nil
	}
	fs.q.Submit(cmds)
	return await(fs.q, cmds)
}

// await waits for commands and returns what went wrong. A lost connection
// comes before a command that was refused: something may still land.
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

// readBlocks reads a few blocks outside the data path.
func (fs *FS) readBlocks(lba nvmf.LBA, buf []byte) error {
	return transfer(fs.q, fs.dev.Identity(), nvmf.Read, lba, buf, false)
}

// transfer moves buf to or from the device in as many commands as it takes.
func transfer(q nvmf.Queue, id *nvmf.Identity, op nvmf.Opcode, lba nvmf.LBA, buf []byte, fua bool) error {
	const batch = 32
	step := int(id.OptimalTransfer)
	for len(buf) > 0 {
		var cmds []*nvmf.Command
		for len(buf) > 0 && len(cmds) < batch {
			n := min(step, len(buf))
			c := &nvmf.Command{Opcode: op, FUA: fua, LBA: lba, Blocks: nvmf.LBA(nvmf.Bytes(n) / id.LBASize), Data: [][]byte{buf[:n]}}
			cmds = append(cmds, c)
			lba += c.Blocks
			buf = buf[n:]
		}
		q.Submit(cmds)
		if err := await(q, cmds); err != nil {
			return err
		}
	}
	return nil
}
