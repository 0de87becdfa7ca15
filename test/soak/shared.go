package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Files that all ranks share in one tree: see testdata/shared.h. Ranks check their own reads; copies are checked here.

const (
	cellSize  = 10007
	cellState = 20 // bytes
)

// common is the actor of cells and records.
const common = 127*actors + 1

// sharedDir is the directory in which ranks record acknowledged writes to shared files.
func (f *testbed) sharedDir() string { return filepath.Join(f.stage.Dir, f.name+".shared") }

// judgeShared compares the shared files in a copy of the store with the acknowledged writes.
func (r *round) judgeShared(dest, who string) error {
	dir := filepath.Join(dest, "shared")
	n, err := r.judgeCells(dir)
	for _, log := range []struct {
		acked, file string
		count       func([]byte) map[string]int
	}{
		{"synced", fmt.Sprintf("log.%d", r.number), countRecords},
		{"shell", fmt.Sprintf("shell.%d", r.number), countLines},
	} {
		err = errors.Join(err, r.judgeLog(dir, log.acked, log.file, log.count))
	}
	if err != nil {
		return fmt.Errorf("what %s found of files in common: %w", who, err)
	}
	r.tally.add(&r.tally.Outside, n)
	return nil
}

// failedShared checks whether failed calls on shared files had a reason.
func (r *round) failedShared() error {
	text, err := os.ReadFile(filepath.Join(r.sharedDir(), "failed"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if len(words) < 3 {
			return fmt.Errorf("not a line of failed calls: %q", line)
		}
		at, err := strconv.ParseInt(words[0], 10, 64)
		errno, err2 := strconv.Atoi(words[1])
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if errno == 0 || !r.faults.excused(false, at) {
			return fmt.Errorf("%s: %w", words[2], syscall.Errno(errno))
		}
		r.tally.add(&r.tally.Errors, 1)
	}
	return errors.Join(err, os.Truncate(filepath.Join(r.sharedDir(), "failed"), 0))
}

// judgeCells compares each cell with its possible versions.
func (r *round) judgeCells(dir string) (compared int64, err error) {
	states, err := os.ReadFile(filepath.Join(r.sharedDir(), "cells"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	data, err2 := os.ReadFile(filepath.Join(dir, "cells"))
	if err := errors.Join(err, err2); err != nil && !errors.Is(err2, fs.ErrNotExist) {
		return 0, err
	}
	got := make([]byte, cellSize)
	for k := 0; (k+1)*cellState <= len(states); k++ {
		s := parseCell(states[k*cellState:])
		clear(got) // the file may be shorter
		copy(got, data[min(len(data), k*cellSize):])
		if i := s.wrong(got, int64(k)*cellSize); i >= 0 {
			at := int64(k)*cellSize + int64(i)
			return 0, fmt.Errorf("byte %d, of cell %d, must be of %+v, and is %s", at, k, s, describe(got[i:], at))
		}
		compared += cellSize
	}
	return compared, nil
}

// A cell has the possible versions of the bytes of a part of the file: known, low to high, or zero if that is possible.
type cell struct {
	known, low, high uint32
	zero             bool
}

func parseCell(b []byte) cell {
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }
	if word(4) == 0 { // never written
		return cell{low: 1}
	}
	return cell{word(0), word(1), word(2), word(3) != 0}
}

// wrong returns the first byte that has none of these versions, or -1.
func (c cell) wrong(got []byte, off int64) int {
	var may [][]byte
	add := func(version uint32) {
		b := make([]byte, len(got))
		if version > 0 {
			source{common, version}.fill(b, off)
		}
		may = append(may, b)
	}
	add(c.known)
	for v := c.low; v <= c.high; v++ {
		add(v)
	}
	if c.zero {
		add(0)
	}
next:
	for i := range got {
		for _, b := range may {
			if got[i] == b[i] {
				continue next
			}
		}
		return i
	}
	return -1
}

// judgeLog checks that each acknowledged record of the round is in the log once.
func (r *round) judgeLog(dir, acked, file string, count func([]byte) map[string]int) error {
	text, err := os.ReadFile(filepath.Join(r.sharedDir(), acked))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	log, err2 := os.ReadFile(filepath.Join(dir, file))
	if err := errors.Join(err, err2); err != nil && !errors.Is(err2, fs.ErrNotExist) {
		return err
	}
	found := count(log)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		number, record, _ := strings.Cut(lines.Text(), " ")
		if number != strconv.Itoa(r.number) {
			continue
		}
		if n := found[record]; n != 1 {
			return fmt.Errorf("%s, of %d bytes, has the record %s %d times", file, len(log), record, n)
		}
		r.tally.add(&r.tally.Records, 1)
	}
	return lines.Err()
}

// countRecords counts the complete records, whatever is between them.
func countRecords(log []byte) map[string]int {
	found := map[string]int{}
	const header = len("<00000000 00000000 00000000>")
	for at := 0; ; at++ {
		i := bytes.IndexByte(log[min(at, len(log)):], '<')
		if i < 0 {
			return found
		}
		at += i
		var id, number, n uint32
		if _, err := fmt.Sscanf(string(log[at:min(at+header, len(log))]), "<%08x %08x %08x>", &id, &number, &n); err != nil || at+header+int(n) > len(log) {
			continue
		}
		want := make([]byte, n)
		source{common, id + number}.fill(want, 0)
		if bytes.Equal(want, log[at+header:][:n]) {
			found[fmt.Sprintf("%08x %08x", id, number)]++
		}
	}
}

// countLines counts the lines of shells.
func countLines(log []byte) map[string]int {
	found := map[string]int{}
	for line := range strings.Lines(string(log)) {
		found[strings.TrimSpace(line)]++
	}
	return found
}
