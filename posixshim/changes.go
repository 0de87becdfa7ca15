package posixshim

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// Several processes may map one file and write to different parts of it, or to different bytes of a page. The memory of a process
// has the parts of the others as they were when the memory was read. So a process must write back only the bytes that it has
// changed. It finds them by comparing the memory with a copy, which has the bytes as they were last read or written back.

// A memory is a memfd, and the mapping of it in this process.
type memory struct {
	fd   int    // -1: none
	data []byte // all of it
}

func newMemory() (memory, error) {
	fd, err := unix.MemfdCreate("nvmecr", unix.MFD_CLOEXEC)
	if err != nil {
		return memory{fd: -1}, fmt.Errorf("memory for a mapped file: %w", err)
	}
	return memory{fd: ownfd.Hold(fd)}, nil
}

func (m *memory) resize(size int64) error {
	if m.fd < 0 {
		return nil
	}
	if err := m.unmap(); err != nil {
		return err
	}
	if err := unix.Ftruncate(m.fd, size); err != nil {
		return fmt.Errorf("memory for a mapped file: %w", err)
	}
	if size == 0 {
		return nil
	}
	data, err := unix.Mmap(m.fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("memory for a mapped file: %w", err)
	}
	m.data = data
	return nil
}

func (m *memory) unmap() error {
	if m.data == nil {
		return nil
	}
	data := m.data
	m.data = nil
	return unix.Munmap(data)
}

// seekData is SEEK_DATA on the memory; ENXIO if there is none.
func (m *memory) seekData(at int64) (int64, error) {
	if m.fd < 0 {
		return 0, unix.ENXIO
	}
	return unix.Seek(m.fd, at, unix.SEEK_DATA)
}

// free unmaps the memory and closes the memfd.
func (m *memory) free() {
	_ = m.unmap()
	if m.fd >= 0 {
		_ = ownfd.Close(m.fd)
	}
	m.fd = -1
}

// part is a range of bytes of a chunk.
type part struct{ start, end int }

// If a page has more than maxParts changed parts, they are rounded to words. Each part becomes an extent, which the index of a
// job's tree has to store. An array of numbers of which some bytes have changed would have an extent for each number.
const (
	maxParts = 16
	word     = 8
)

// changes returns the parts in which now differs from was. Bytes between two changes may be another process's, so parts are exact,
// except in pages with more than maxParts.
func changes(was, now []byte) (all []part) {
	for at := 0; at < len(now); at += page {
		end := min(at+page, len(now))
		if bytes.Equal(was[at:end], now[at:end]) {
			continue
		}
		in := differing(was, now, part{at, end}, 1)
		if len(in) > maxParts {
			in = differing(was, now, part{at, end}, word)
		}
		if last := len(all) - 1; last >= 0 && all[last].end == in[0].start {
			all[last].end = in[0].end
			in = in[1:]
		}
		all = append(all, in...)
	}
	return all
}

// differing returns the parts of a page that differ, rounded to step bytes.
func differing(was, now []byte, of part, step int) (parts []part) {
	for at := of.start; at < of.end; at += step {
		end := min(at+step, of.end)
		same := true
		for i := at; same && i < end; i++ { // bytes.Equal for each step would take ten times as long
			same = was[i] == now[i]
		}
		if same {
			continue
		}
		if last := len(parts) - 1; last >= 0 && parts[last].end == at {
			parts[last].end = end
		} else {
			parts = append(parts, part{at, end})
		}
	}
	return parts
}
