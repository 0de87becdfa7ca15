package runrecord

import (
	"bytes"
	"errors"

	"nvmecr/internal/parttable"
	"nvmecr/nvmf"
)

// Found is the content of the two copies of a namespace.
type Found struct {
	// Record is the newest valid record. If it is nil Err is the reason, unless no copy has a record.
	Record *Record
	// Err is ErrVersion or ErrDamaged. It can be ErrVersion in addition to a Record: a later version may have written the newer copy.
	Err error

	bytes []byte
}

// Same reports whether nothing was written between f and other.
func (f *Found) Same(other *Found) bool { return bytes.Equal(f.bytes, other.bytes) }

// Read reads both copies. The error is that of the queue. After nvmf.ErrConnectionLost the queue needs a Reset.
func Read(dev nvmf.Device, q nvmf.Queue) (*Found, error) {
	all := make([]byte, 2*size)
	f := &Found{bytes: all}
	for c := range 2 {
		b := all[nvmf.Bytes(c)*size:][:size]
		if err := transfer(dev, q, nvmf.Read, c, b); err != nil {
			return nil, err
		}
		r, err := decode(b, c)
		switch {
		case err == nil && r.After(f.Record):
			f.Record = r
		case errors.Is(err, ErrVersion), errors.Is(err, ErrDamaged) && f.Err == nil:
			f.Err = err
		}
	}
	if f.Record != nil && !errors.Is(f.Err, ErrVersion) {
		f.Err = nil
	}
	return f, nil
}

// Write writes one copy of r, 0 or 1. It does not flush.
func Write(dev nvmf.Device, q nvmf.Queue, r *Record, copyNumber int) error {
	return transfer(dev, q, nvmf.Write, copyNumber, encode(r, copyNumber))
}

// Flush makes written records durable.
func Flush(dev nvmf.Device, q nvmf.Queue) error {
	if !dev.Identity().VolatileWriteCache {
		return nil
	}
	return run(q, &nvmf.Command{Opcode: nvmf.Flush})
}

func transfer(dev nvmf.Device, q nvmf.Queue, op nvmf.Opcode, copyNumber int, b []byte) error {
	id := dev.Identity()
	return run(q, &nvmf.Command{
		Opcode: op,
		LBA:    nvmf.LBA(parttable.RunRecordOffset(copyNumber) / id.LBASize),
		Blocks: nvmf.LBA(size / id.LBASize),
		Data:   [][]byte{b},
	})
}

func run(q nvmf.Queue, cmd *nvmf.Command) error {
	cmds := []*nvmf.Command{cmd}
	q.Submit(cmds)
	return q.Wait(cmds)
}
