package microfs

import (
	"fmt"

	"github.com/google/uuid"

	"nvmecr/internal/crc64"
	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// State header, 4 KiB, two slots: it says which state area is current and from where the log
// continues. Both slots hold the same header except while it is being switched.
const (
	hdMagic    = "NVMECRST"
	hdVersion  = 1
	hdUUID     = 16
	hdSequence = 32
	hdArea     = 40
	hdLength   = 48
	hdStateCRC = 56
	hdPage     = 64
	hdPageVer  = 72
	hdPageCRC  = 80
	hdGen      = 88
)

// maxSequence limits sequences, also of claims, far below their overflow: later sequences must
// compare as newer.
const maxSequence = 1 << 62

type stateHeader struct {
	sequence uint64
	area     int
	length   nvmf.Bytes
	crc      uint64
	prior    oplog.Prior
}

func (h *stateHeader) encode(b []byte, fs uuid.UUID) {
	clear(b)
	copy(b, hdMagic)
	le.PutUint32(b[8:], hdVersion)
	copy(b[hdUUID:], fs[:])
	le.PutUint64(b[hdSequence:], h.sequence)
	le.PutUint32(b[hdArea:], uint32(h.area))
	le.PutUint64(b[hdLength:], uint64(h.length))
	le.PutUint64(b[hdStateCRC:], h.crc)
	le.PutUint64(b[hdPage:], h.prior.Page)
	le.PutUint64(b[hdPageVer:], h.prior.Version)
	le.PutUint64(b[hdPageCRC:], h.prior.CRC)
	le.PutUint64(b[hdGen:], h.prior.Generation)
	le.PutUint64(b[sbCRC:], crc64.Checksum(b[:sbCRC]))
}

func decodeStateHeader(b []byte, g *geometry) (*stateHeader, error) {
	if string(b[:8]) != hdMagic || crc64.Checksum(b[:sbCRC]) != le.Uint64(b[sbCRC:]) {
		return nil, fmt.Errorf("state header is not intact: %w", ErrCorrupt)
	}
	if v := le.Uint32(b[8:]); v != hdVersion {
		return nil, fmt.Errorf("state header has version %d, this program knows %d: %w", v, hdVersion, ErrVersion)
	}
	if uuid.UUID(b[hdUUID:hdUUID+16]) != g.fs {
		return nil, fmt.Errorf("state header of another file system: %w", ErrCorrupt)
	}
	h := &stateHeader{
		sequence: le.Uint64(b[hdSequence:]),
		area:     int(le.Uint32(b[hdArea:])),
		length:   nvmf.Bytes(le.Uint64(b[hdLength:])),
		crc:      le.Uint64(b[hdStateCRC:]),
		prior: oplog.Prior{
			Page: le.Uint64(b[hdPage:]), Version: le.Uint64(b[hdPageVer:]),
			CRC: le.Uint64(b[hdPageCRC:]), Generation: le.Uint64(b[hdGen:]),
		},
	}
	if h.area > 1 || h.length > framedCapacity(g.stateSize) || h.sequence >= maxSequence {
		return nil, fmt.Errorf("state header describes an impossible state: %w", ErrCorrupt)
	}
	return h, nil
}
