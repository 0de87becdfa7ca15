package parttable

import (
	"context"
	"errors"

	"nvmecr/nvmf"
)

// ErrOutdated: a copy is intact but older than the other.
var ErrOutdated = errors.New("is older than the other copy")

// Health is what the two copies of a table are like.
type Health struct {
	Table *Table // the newest valid copy, nil without one
	Err   error  // then why: as from Read
	// Copies are nil for a good copy, or say what is wrong with it.
	Copies [2]error
}

// CopyOffset returns where in the namespace a copy of the table lies.
func CopyOffset(slot int) nvmf.Bytes { return nvmf.Bytes(slot) * slotSize }

// Inspect looks at both copies of the table and changes nothing. The error is
// the device's.
func Inspect(ctx context.Context, dev nvmf.Device) (*Health, error) {
	m, err := open(ctx, dev)
	if err != nil {
		return nil, err
	}
	defer m.close()
	// As in Read: apparent damage may be a write in progress.
	for try := 1; ; try++ {
		h, err := m.inspect(ctx)
		if err != nil || try == 3 || h.Copies == [2]error{} {
			return h, err
		}
	}
}

func (m *media) inspect(ctx context.Context) (*Health, error) {
	c, err := m.copies(ctx)
	if errors.Is(err, ErrForeign) {
		return &Health{Err: err, Copies: c.err}, nil
	}
	if err != nil {
		return nil, err
	}
	if c.newest < 0 {
		return &Health{Err: m.why(ctx, c), Copies: c.err}, nil
	}
	h := &Health{Table: c.table[c.newest], Copies: c.err}
	if t := c.table[1-c.newest]; t != nil && t.Sequence != h.Table.Sequence {
		h.Copies[1-c.newest] = ErrOutdated
	}
	return h, nil
}
