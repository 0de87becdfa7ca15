package mirror

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"nvmecr/internal/crc64"
	"nvmecr/nvmf"
)

// The layout is drawn in the package comment.
const (
	slotSize  = 4 * nvmf.KiB
	stateSize = 2 * slotSize
	align     = nvmf.MiB

	version = 1
	magic   = "NVMECR-MIRROR\x00\x00\x00"

	offVersion      = 16
	offSlot         = 20
	offIncompatible = 24
	offSide         = 32
	offMode         = 36
	offGeneration   = 40
	offUUID         = 48
	offLength       = 64
	offCRC          = 4088
)

// A mode is what the state of a side says of the two sides.
type mode uint32

const (
	both  mode = 1 // both sides have all data
	alone mode = 2 // this side has all data, and the other one lacks later writes
	stale mode = 3 // this side lacks data
)

// A state is the record of a mirror on one of its sides.
type state struct {
	mode       mode
	generation uint64
	mirror     uuid.UUID
	length     nvmf.Bytes
}

// ErrVersion means that a later version of nvmecr has written the state.
var ErrVersion = errors.New("the mirror is of another version of nvmecr: use the one that wrote it")

// errNoState means that a slot holds no valid state.
var errNoState = errors.New("no state")

// Half returns how many bytes each half of a namespace has.
func Half(id *nvmf.Identity) nvmf.Bytes {
	if id.Capacity() < 2*stateSize {
		return 0
	}
	return ((id.Capacity() - 2*stateSize) / 2).AlignDown(align)
}

// States returns the part of a namespace that has the states of both sides. Its length is 0 if the namespace is too small.
func States(id *nvmf.Identity) (start, length nvmf.Bytes) {
	if Half(id) == 0 {
		return 0, 0
	}
	return id.Capacity().AlignDown(slotSize) - 2*stateSize, 2 * stateSize
}

// encode returns the image of the slot that the state goes to.
func (s *state) encode(side int) []byte {
	le := binary.LittleEndian
	b := make([]byte, slotSize)
	copy(b, magic)
	le.PutUint32(b[offVersion:], version)
	le.PutUint32(b[offSlot:], uint32(s.generation%2))
	le.PutUint32(b[offSide:], uint32(side))
	le.PutUint32(b[offMode:], uint32(s.mode))
	le.PutUint64(b[offGeneration:], s.generation)
	copy(b[offUUID:], s.mirror[:])
	le.PutUint64(b[offLength:], uint64(s.length))
	le.PutUint64(b[offCRC:], crc64.Checksum(b[:offCRC]))
	return b
}

// decode returns the newer state of the two slots in b; nil if there is none.
func decode(b []byte, side int) (*state, error) {
	var newest *state
	for slot := range 2 {
		s, err := decodeSlot(b[nvmf.Bytes(slot)*slotSize:][:slotSize], slot, side)
		if errors.Is(err, ErrVersion) {
			return nil, err
		}
		if err == nil && (newest == nil || s.generation > newest.generation) {
			newest = s
		}
	}
	return newest, nil
}

func decodeSlot(b []byte, slot, side int) (*state, error) {
	le := binary.LittleEndian
	if string(b[:len(magic)]) != magic {
		return nil, errNoState
	}
	if v := le.Uint32(b[offVersion:]); v != version {
		return nil, fmt.Errorf("%w: version %d", ErrVersion, v)
	}
	if crc64.Checksum(b[:offCRC]) != le.Uint64(b[offCRC:]) {
		return nil, errNoState
	}
	if f := le.Uint64(b[offIncompatible:]); f != 0 {
		return nil, fmt.Errorf("%w: features %#x", ErrVersion, f)
	}
	s := &state{
		mode:       mode(le.Uint32(b[offMode:])),
		generation: le.Uint64(b[offGeneration:]),
		length:     nvmf.Bytes(le.Uint64(b[offLength:])),
	}
	copy(s.mirror[:], b[offUUID:])
	possible := s.mode >= both && s.mode <= stale && s.generation > 0 && s.generation < 1<<62 && s.length > 0 && s.length%align == 0
	if !possible || le.Uint32(b[offSlot:]) != uint32(slot) || s.generation%2 != uint64(slot) || le.Uint32(b[offSide:]) != uint32(side) {
		return nil, errNoState
	}
	return s, nil
}

// A Side is one of the two sides of a mirror: a part of a device.
type Side struct {
	Device nvmf.Device
	Number int // 0: home, 1: partner
}

// start returns the offset of the side's bytes on its device.
func (s Side) start() nvmf.Bytes { return nvmf.Bytes(s.Number) * Half(s.Device.Identity()) }

// stateAt returns the address of the side's two slots on its device.
func (s Side) stateAt() nvmf.LBA {
	id := s.Device.Identity()
	start, _ := States(id)
	return nvmf.LBA((start + nvmf.Bytes(s.Number)*stateSize) / id.LBASize)
}

// stateCommand returns the command that reads both slots into b.
func (s Side) stateCommand(b []byte) nvmf.Command {
	return nvmf.Command{Opcode: nvmf.Read, LBA: s.stateAt(), Blocks: nvmf.LBA(stateSize / s.Device.Identity().LBASize), Data: [][]byte{b}}
}

// read returns the state of the side; nil if it has none.
func (s Side) read(ctx context.Context) (*state, error) {
	b := make([]byte, stateSize)
	c := s.stateCommand(b)
	if err := s.run(ctx, &c); err != nil {
		return nil, fmt.Errorf("state of the mirror: %w", err)
	}
	return decode(b, s.Number)
}

// write makes st the state of the side, durably.
func (s Side) write(ctx context.Context, st *state) error {
	id := s.Device.Identity()
	b := st.encode(s.Number)
	at := s.stateAt() + nvmf.LBA(nvmf.Bytes(st.generation%2)*slotSize/id.LBASize)
	err := s.run(ctx, &nvmf.Command{Opcode: nvmf.Write, FUA: true, LBA: at, Blocks: nvmf.LBA(slotSize / id.LBASize), Data: [][]byte{b}})
	if err == nil && id.VolatileWriteCache {
		err = s.run(ctx, &nvmf.Command{Opcode: nvmf.Flush})
	}
	if err != nil {
		return fmt.Errorf("writing the state of the mirror: %w", err)
	}
	return nil
}

// run executes one command on a queue of its own. It reconnects and repeats the command until ctx ends. The command may be repeated,
// since all its repetitions write the same bytes.
func (s Side) run(ctx context.Context, c *nvmf.Command) (err error) {
	q, err := s.Device.OpenQueue(ctx, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	for {
		cmds := []*nvmf.Command{c}
		q.Submit(cmds)
		err := q.Wait(cmds)
		if !errors.Is(err, nvmf.ErrConnectionLost) {
			return err
		}
		if e := q.Reset(ctx); e != nil {
			return fmt.Errorf("%w: %w", err, e)
		}
	}
}
