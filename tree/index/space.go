package index

import (
	"math"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/tree/wire"
)

// statFSCall returns the space of all partitions.
type statFSCall struct{ answer wire.StatFS }

// before reads the space of the partitions without the lock of the index. It repeats that if partitions were created
// meanwhile.
func (r *statFSCall) before(c *client) error {
	for begun := -1; begun != c.x.growthsBegun(); {
		begun = c.x.growthsBegun()
		total, free := c.x.rankSpace()
		r.answer.StatFS = c.x.fs.StatFS()
		addSpace(&r.answer.StatFS, total, free)
	}
	return nil
}

func (r *statFSCall) run(c *client) (wire.Body, error) {
	c.sendReleases() // the client may need space that it can free
	return &r.answer, nil
}

// growthsBegun returns the number of calls of Options.Grow, after the last one has ended.
func (x *Index) growthsBegun() int {
	x.growing.Lock()
	defer x.growing.Unlock()
	return x.growths
}

// rankSpace calls Options.Space.
func (x *Index) rankSpace() (total, free nvmf.Bytes) {
	if x.opts.Space == nil {
		return 0, 0
	}
	total, free, err := x.opts.Space(x.ctx)
	if err != nil {
		x.opts.Logf("the space that ranks have is not counted: %v", err)
	}
	return total, free
}

// addSpace adds the space of other partitions to s. If the number of blocks would overflow, blocks become larger.
func addSpace(s *microfs.StatFS, total, free nvmf.Bytes) {
	block := s.Hugeblock
	total += nvmf.Bytes(s.Blocks) * block
	free += nvmf.Bytes(s.Free) * block
	avail := nvmf.Bytes(s.Avail) * block
	for total/block > math.MaxUint32 {
		block *= 2
	}
	in := func(n nvmf.Bytes) microfs.Hugeblock { return microfs.Hugeblock(n / block) }
	s.Hugeblock, s.Blocks, s.Free, s.Avail = block, in(total), in(free), in(avail)
}
