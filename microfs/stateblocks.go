package microfs

import (
	"fmt"

	"nvmecr/internal/crc64"
	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
)

// A state lies in its area in blocks of 4 KiB: 4088 bytes of the state and a CRC. The CRC also
// covers the state's sequence and the block's number, so that a block of an earlier state or of
// another place does not pass. 255 blocks, or the rest at the end, are followed by a block with the
// exclusive or of their bytes. One damaged block of such a group can be rebuilt.
//
//	block 0 | block 1 | ... | block 254 | parity | block 256 | ... | last | parity
const (
	statePayload = blockSize - 8
	groupBlocks  = 256 // parity included
	groupBytes   = groupBlocks * blockSize
	groupPayload = (groupBlocks - 1) * statePayload
)

// framedSize returns the size of a state of n bytes in its area.
func framedSize(n nvmf.Bytes) nvmf.Bytes {
	blocks := (n + statePayload - 1) / statePayload
	return (blocks + (blocks+groupBlocks-2)/(groupBlocks-1)) * blockSize
}

// framedCapacity returns the length of the longest state that fits an area of size bytes.
func framedCapacity(size nvmf.Bytes) nvmf.Bytes {
	blocks := size / blockSize
	return (blocks - (blocks+groupBlocks-1)/groupBlocks) * statePayload
}

// blockSum is the checksum of block n of the state with that sequence.
func blockSum(payload []byte, sequence, n uint64) uint64 {
	var where [16]byte
	le.PutUint64(where[:], sequence)
	le.PutUint64(where[8:], n)
	return crc64.Update(crc64.Checksum(where[:]), payload)
}

// frameGroup writes up to groupPayload bytes of a state, its group number g, as blocks into buf,
// and returns the used part of buf.
func frameGroup(buf, payload []byte, sequence uint64, g int) []byte {
	n := (len(payload) + statePayload - 1) / statePayload
	buf = buf[:(n+1)*blockSize]
	parity := buf[n*blockSize:]
	clear(parity)
	for i := range n {
		b := buf[i*blockSize : (i+1)*blockSize]
		clear(b[copy(b[:statePayload], payload):statePayload])
		payload = payload[min(statePayload, len(payload)):]
		xor(parity[:statePayload], b)
		sealBlock(b, sequence, uint64(g*groupBlocks+i))
	}
	sealBlock(parity, sequence, uint64(g*groupBlocks+n))
	return buf
}

func sealBlock(b []byte, sequence, n uint64) {
	le.PutUint64(b[statePayload:], blockSum(b[:statePayload], sequence, n))
}

func xor(to, from []byte) {
	for i := 0; i+8 <= len(to); i += 8 {
		le.PutUint64(to[i:], le.Uint64(to[i:])^le.Uint64(from[i:]))
	}
}

// frame is frameGroup for a whole state.
func frame(state []byte, sequence uint64) []byte {
	var all []byte
	buf := make([]byte, groupBytes)
	for g := 0; len(state) > 0; g++ {
		n := min(groupPayload, len(state))
		all = append(all, frameGroup(buf, state[:n], sequence, g)...)
		state = state[n:]
	}
	return all
}

// unframe returns the state of length bytes in the blocks of framed. Damaged blocks are rebuilt in
// framed if possible; repaired has their numbers.
func unframe(framed []byte, length nvmf.Bytes, sequence uint64) (state []byte, repaired []int, err error) {
	state = make([]byte, 0, len(framed))
	for at := 0; at < len(framed); at += groupBytes {
		group := framed[at:min(len(framed), at+groupBytes)]
		first := at / blockSize
		bad := damaged(group, sequence, first)
		if len(bad) > 0 && mutant.On(mutant.NoParity) {
			return nil, nil, fmt.Errorf("block %d of the state is damaged: %w", bad[0], ErrCorrupt)
		}
		if len(bad) > 1 {
			return nil, nil, fmt.Errorf("blocks %d and %d of the state are damaged, one could be repaired: %w", bad[0], bad[1], ErrCorrupt)
		}
		for _, n := range bad {
			rebuild(group, n-first)
			sealBlock(group[(n-first)*blockSize:], sequence, uint64(n))
			repaired = append(repaired, n)
		}
		for i := 0; i+blockSize < len(group); i += blockSize {
			state = append(state, group[i:i+statePayload]...)
		}
	}
	if nvmf.Bytes(len(state)) < length {
		return nil, nil, fmt.Errorf("state of %d bytes in %d: %w", length, len(state), ErrCorrupt)
	}
	return state[:length], repaired, nil
}

// damaged returns the numbers of the damaged blocks of a group; first is the number of the group's
// first block.
func damaged(group []byte, sequence uint64, first int) (bad []int) {
	for i := 0; i < len(group)/blockSize; i++ {
		b := group[i*blockSize : (i+1)*blockSize]
		if le.Uint64(b[statePayload:]) != blockSum(b[:statePayload], sequence, uint64(first+i)) {
			bad = append(bad, first+i)
		}
	}
	return bad
}

// rebuild makes block i of a group the exclusive or of all others.
func rebuild(group []byte, i int) {
	lost := group[i*blockSize : i*blockSize+statePayload]
	clear(lost)
	for j := 0; j < len(group)/blockSize; j++ {
		if j != i {
			xor(lost, group[j*blockSize:])
		}
	}
}
