package target_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/target"
)

// TestReachesStorage checks that the kernel has no dirty pages of a served file after a
// Flush, and after a write with FUA.
func TestReachesStorage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns")
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	b, err := target.OpenFile(path, 4096)
	require.NoError(t, err)
	_, addr := serve(t, one(b))
	_, q := io2(t, addr, 0)
	write := func(lba uint64, fua bool) {
		s := q.rw(nvme.IOWrite, lba, 2, 0)
		s.SetRange(lba, 2, flagsOf(fua))
		q.capsule(s, bytes.Repeat([]byte("x"), 8192))
		require.Zero(t, q.response().Status())
	}
	for _, nsid := range []uint32{1, 0xffffffff} {
		write(3, false)
		s := q.command(nvme.IOFlush)
		binary.LittleEndian.PutUint32(s[4:], nsid)
		q.capsule(s, nil)
		require.Zero(t, q.response().Status())
		blocktest.RequireSynced(t, path, "Flush")
	}
	write(9, true)
	blocktest.RequireSynced(t, path, "a write with FUA")
}

// syncCounter is a Backing that records the ranges of its Sync calls.
type syncCounter struct {
	target.Backing
	mu     sync.Mutex
	ranges [][2]int64
}

// take returns the ranges since the last call of take.
func (s *syncCounter) take() [][2]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	ranges := s.ranges
	s.ranges = nil
	return ranges
}

func (s *syncCounter) Sync(offset, length int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ranges = append(s.ranges, [2]int64{offset, length})
	return s.Backing.Sync(offset, length)
}

// TestFUASyncsItsRange checks that a command with FUA syncs exactly the range that it
// changes.
func TestFUASyncsItsRange(t *testing.T) {
	b := &syncCounter{Backing: memory(t, 1<<20, 4096)}
	_, addr := serve(t, one(b))
	_, q := io2(t, addr, 0)
	for _, opcode := range []uint8{nvme.IOWrite, nvme.IOWriteZeroes} {
		var data []byte
		if opcode == nvme.IOWrite {
			data = make([]byte, 8192)
		}
		for _, fua := range []bool{false, true} {
			s := q.rw(opcode, 5, 2, 0)
			s.SetRange(5, 2, flagsOf(fua))
			q.capsule(s, data)
			require.Zero(t, q.response().Status())
			if ranges := b.take(); fua {
				require.Equal(t, [][2]int64{{5 * 4096, 8192}}, ranges, "opcode %#x", opcode)
			} else {
				require.Empty(t, ranges, "opcode %#x", opcode)
			}
		}
	}
}

func flagsOf(fua bool) uint32 {
	if fua {
		return nvme.FUA
	}
	return 0
}
