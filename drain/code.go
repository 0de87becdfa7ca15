package drain

import (
	"errors"
	"fmt"

	"github.com/klauspost/reedsolomon"

	"nvmecr/internal/crc64"
)

// A Code is an erasure code: any Data of a file's Data+Parity shards are enough to read the file. The zero Code keeps
// files whole.
//
// A file is cut into rows of Data units. A row has a unit in each of the data shards, and in each of the parity shards
// a unit that is computed from the data at the same offset. The last row is shorter: its bytes are spread evenly, with
// zeros behind the last one.
type Code struct {
	Data   int   `json:"data"`
	Parity int   `json:"parity"`
	Unit   int64 `json:"unit"` // bytes of each shard that a row has
}

const (
	// shardUnit is a few checksum units of a microfs, and not so long that the rows of all workers take much memory.
	shardUnit = 256 << 10
	// maxShards is more than there are failure domains with a target for a job.
	maxShards = 32
)

// NewCode returns the code with these numbers of data and parity shards.
func NewCode(data, parity int) Code { return Code{data, parity, shardUnit} }

func (c Code) String() string { return fmt.Sprintf("rs:%d+%d", c.Data, c.Parity) }

func (c Code) shards() int { return c.Data + c.Parity }

func (c Code) check() error {
	if c.Data < 1 || c.Parity < 1 || c.Data > maxShards || c.Parity > maxShards-c.Data || c.Unit < 1 || c.Unit > blockSize || SegmentSize%c.Unit != 0 {
		return fmt.Errorf("%w: the code %s with units of %d bytes", ErrManifest, c, c.Unit)
	}
	return nil
}

// shardSize returns the length of each shard of a file.
func (c Code) shardSize(size int64) int64 {
	data := int64(c.Data)
	full, rest := size/(data*c.Unit), size%(data*c.Unit)
	return full*c.Unit + (rest+data-1)/data
}

// row returns the part of a file that is in the row at off of the shards: width bytes in each data shard, in the order
// of the shards, from start on.
func (c Code) row(size, off int64) (start, width int64) {
	data := int64(c.Data)
	start = off * data // the rows before are full
	return start, min(c.Unit, (size-start+data-1)/data)
}

// A shardReader fills b from offset off of a shard, within one row.
type shardReader func(shard int, b []byte, off int64) error

// errNoShard means that a shard is missing.
var errNoShard = errors.New("the shard is missing")

// A coder computes the shards of a file, and missing shards from others. One goroutine at a time uses it.
type coder struct {
	Code
	size    int64 // size of the file
	rs      reedsolomon.Encoder
	buffers [][]byte // one for each shard
	rows    [][]byte // the part of each buffer that a row fills
}

func newCoder(c Code) (*coder, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	rs, err := reedsolomon.New(c.Data, c.Parity, reedsolomon.WithMaxGoroutines(1)) // other goroutines would not have the low priority
	if err != nil {
		return nil, err
	}
	return &coder{Code: c, rs: rs, buffers: make([][]byte, c.shards()), rows: make([][]byte, c.shards())}, nil
}

// buffer returns the buffer of a shard, of n bytes.
func (c *coder) buffer(shard int, n int64) []byte {
	if int64(cap(c.buffers[shard])) < n {
		c.buffers[shard] = make([]byte, n)
	}
	return c.buffers[shard][:n]
}

// ofFile returns a reader of data shards that reads the whole file.
func (c *coder) ofFile(read func(b []byte, off int64) error) shardReader {
	return func(shard int, b []byte, off int64) error {
		if shard >= c.Data {
			return errNoShard
		}
		begin := off / c.Unit * c.Unit
		start, width := c.row(c.size, begin)
		at := start + int64(shard)*width + off - begin
		n := min(max(c.size-at, 0), int64(len(b)))
		clear(b[n:])
		if n == 0 {
			return nil
		}
		return read(b[:n], at)
	}
}

// encode computes the parity of a part of a row, and returns that part of all shards.
func (c *coder) encode(off, n int64, read shardReader) ([][]byte, error) {
	for i := range c.rows {
		if c.rows[i] = c.buffer(i, n); i >= c.Data {
			continue
		}
		if err := read(i, c.rows[i], off); err != nil {
			return nil, err
		}
	}
	return c.rows, c.rs.Encode(c.rows)
}

// decode returns a part of a row in the shards from first up to end. Shards that cannot be read are computed from
// others.
func (c *coder) decode(first, end int, off, n int64, read shardReader) ([][]byte, error) {
	var failed error
	have, missing, want := 0, 0, make([]bool, c.shards())
	try := func(i int) bool {
		b := c.buffer(i, n)
		if err := read(i, b, off); err != nil {
			c.rows[i], failed = b[:0], errors.Join(failed, err)
			return false
		}
		c.rows[i] = b
		have++
		return true
	}
	for i := first; i < end; i++ {
		if want[i] = !try(i); want[i] {
			missing++
		}
	}
	if missing == 0 {
		return c.rows[first:end], nil
	}
	for i := range c.rows {
		if i >= first && i < end {
			continue
		}
		if c.rows[i] = nil; have < c.Data {
			try(i)
		}
	}
	if have < c.Data {
		return nil, fmt.Errorf("%d of the %d shards that are needed can be read: %w", have, c.Data, failed)
	}
	return c.rows[first:end], c.rs.ReconstructSome(c.rows, want)
}

// A summer computes the checksums of the segments of a file from its bytes in order.
type summer struct {
	sums []Sum
	sum  uint64 // checksum of the segment so far
	n    int64
	all  int64 // bytes
}

func (s *summer) add(b []byte) {
	s.all += int64(len(b))
	for len(b) > 0 {
		part := b[:min(int64(len(b)), SegmentSize-s.n)]
		s.sum, s.n, b = crc64.Update(s.sum, part), s.n+int64(len(part)), b[len(part):]
		if s.n == SegmentSize {
			s.end()
		}
	}
}

// end ends a segment, if one has begun.
func (s *summer) end() []Sum {
	if s.n > 0 {
		s.sums, s.sum, s.n = append(s.sums, Sum(s.sum)), 0, 0
	}
	return s.sums
}
