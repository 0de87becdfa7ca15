package posixshim

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// Several processes may map one file and write to it, each to its own part, or its own bytes of a page. The memory of
// each has the others' parts as they were when it was made, so a process may write only what it has changed: what differs
// between its memory and a second copy, which has what the file had when it was read, or what was saved since.

// A memory is a memfd of a file's size, all of which we see as data.
type memory struct {
	fd   int // -1 if there is none
	data []byte
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

// seekData finds what is in the memory; nothing if there is none.
func (m *memory) seekData(at int64) (int64, error) {
	if m.fd < 0 {
		return 0, unix.ENXIO
	}
	return unix.Seek(m.fd, at, unix.SEEK_DATA)
}

// free gives the memory back.
func (m *memory) free() {
	_ = m.unmap()
	if m.fd >= 0 {
		_ = ownfd.Close(m.fd)
	}
	m.fd = -1
}

// part is some of a chunk's bytes.
type part struct{ start, end int }

// Of a page with more parts than fewParts those of a word are one: numbers of which only some bytes have changed would
// make a part each, for which the index of a job's tree has to keep where it is.
const (
	fewParts = 16
	word     = 8
)

// changes returns where now differs from was. What is between two changes is another process's, and not in it: but for
// pages of many parts, where it is rounded to words.
func changes(was, now []byte) (all []part) {
	for at := 0; at < len(now); at += page {
		end := min(at+page, len(now))
		if bytes.Equal(was[at:end], now[at:end]) {
			continue
		}
		in := differing(was, now, part{at, end}, 1)
		if len(in) > fewParts {
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

// differing returns the parts of a page that differ, in steps.
func differing(was, now []byte, of part, step int) (parts []part) {
	for at := of.start; at < of.end; at += step {
		end := min(at+step, of.end)
		same := true
		for i := at; same && i < end; i++ { // a call for each byte would take ten times as long
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
