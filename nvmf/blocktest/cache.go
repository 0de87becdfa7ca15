package blocktest

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"slices"

	"nvmecr/nvmf"
)

// cache simulates a volatile write cache. Reads use the wrapped device, which has the
// latest data. For each block written since the last flush, the cache stores the
// contents that the block may have after a loss of power.
type cache struct {
	block int
	// versions of a block, oldest first: the durable one, then those written since. The
	// last one is on the wrapped device.
	versions map[nvmf.LBA][][]byte
}

func newCache(lbaSize nvmf.Bytes) *cache {
	return &cache{block: int(lbaSize), versions: map[nvmf.LBA][][]byte{}}
}

// store records that b replaces old at lba.
func (c *cache) store(lba nvmf.LBA, old, b []byte, fua bool) {
	for ; len(b) > 0; lba++ {
		switch v := c.versions[lba]; {
		case fua:
			delete(c.versions, lba)
		case v == nil:
			c.versions[lba] = [][]byte{bytes.Clone(old[:c.block]), bytes.Clone(b[:c.block])}
		default:
			c.versions[lba] = append(v, bytes.Clone(b[:c.block]))
		}
		old, b = old[c.block:], b[c.block:]
	}
}

func (c *cache) flush() { clear(c.versions) }

// lose writes the contents after a loss of power to every unflushed block: the durable
// version if random is nil, otherwise a random one.
func (c *cache) lose(random *rand.Rand, write func(nvmf.LBA, []byte) error) error {
	for _, lba := range slices.Sorted(maps.Keys(c.versions)) {
		v, i := c.versions[lba], 0
		if random != nil {
			i = random.IntN(len(v))
		}
		if err := write(lba, v[i]); err != nil {
			return err
		}
	}
	c.flush()
	return nil
}
