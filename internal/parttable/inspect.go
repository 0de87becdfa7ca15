package parttable

import (
	"context"
	"errors"

	"nvmecr/nvmf"
)

// ErrOutdated means that a copy is valid but older than the other one.
var ErrOutdated = errors.New("is older than the other copy")

// Health is the state of the two copies of a table.
type Health struct {
	Table *Table // the newest valid copy, nil without one
	Err   error  // why Table is nil: the error of Read
	// Copies has nil for a valid copy, or its error.
	Copies [2]error
}

// CopyOffset returns where in the namespace a copy of the table lies.
func CopyOffset(slot int) nvmf.Bytes { return nvmf.Bytes(slot) * slotSize }

// Inspect reads both copies of the table. It changes nothing. The error is that of the device.
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
		return &Health{Err: m.invalidReason(ctx, c), Copies: c.err}, nil
	}
	h := &Health{Table: c.table[c.newest], Copies: c.err}
	if t := c.table[1-c.newest]; t != nil && t.Sequence != h.Table.Sequence {
		h.Copies[1-c.newest] = ErrOutdated
	}
	return h, nil
}
