package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// verifyReadback compares the copy of all files that a restarted rank has found with the model of the history, and determines whether the
// operation in doubt was executed.
func (c *checker) verifyReadback(w *history, copied string) error {
	if w.pending != nil {
		w.model.doubt(w.pending)
	}
	m, n, differences, err := c.find(w, copied)
	if err != nil {
		return err
	}
	if m == nil {
		return fmt.Errorf("what the restarted rank read back (%s) is not what was acknowledged:\n%s", copied, differences)
	}
	if w.pending != nil {
		c.tally.add(&c.tally.Doubts, 1)
	}
	c.tally.add(&c.tally.Verified, n)
	w.model, w.pending, w.killed = m, nil, false
	m.kill()
	return nil
}

// find returns the state that equals the copy, without or with the operation in doubt, and the number of bytes compared. m is nil if
// neither does; differences then has the reason.
func (c *checker) find(w *history, copied string) (m *model, n int64, differences string, err error) {
	dir := filepath.Join(copied, fmt.Sprintf("a%d", w.number))
	var said []string
	for _, s := range w.states(dir, c) {
		n, differences, err := s.model.compare(dir)
		if err != nil {
			return nil, 0, "", err
		}
		if len(differences) == 0 {
			return s.model, n, "", nil
		}
		said = append(said, fmt.Sprintf("rank %d, actor %d, %s:\n    %s", w.rank, w.number, s.name, strings.Join(differences, "\n    ")))
	}
	return nil, 0, "  " + strings.Join(said, "\n  "), nil
}

type state struct {
	name  string
	model *model
}

// states returns the possible states of the directory.
func (w *history) states(dir string, c *checker) []state {
	if w.pending == nil {
		return []state{{"where nothing was in doubt", w.model.clone()}}
	}
	o := w.pending
	all := []state{{fmt.Sprintf("without the operation in doubt (%v)", o), w.model.clone()}}
	with := func(name string, limit int64) *model {
		m := w.model.clone()
		if _, err := m.apply(o, limit); err != nil {
			return nil
		}
		all = append(all, state{name, m})
		return m
	}
	with("with it", o.limit())
	if !o.writes() || !o.pieces(c.whole) && !c.tree {
		return all
	}
	found, old := w.model.copyOf(o, dir)
	if n := found.began(o, nil); n > 0 && o.pieces(c.whole) {
		with(fmt.Sprintf("with its first %d bytes", n), n)
	}
	if n := found.began(o, old); n > 0 && c.tree && (n == o.limit() || o.pieces(c.whole)) {
		if m := with(fmt.Sprintf("with its first %d bytes, but for some that were there before", n), n); m != nil {
			f := m.handles[o.name(0)].file
			f.data = f.data.keep(old, o, found)
		}
	}
	return all
}

// found is what the copy of a file has of the range that an operation writes. It is short if the file ends before.
type found []byte

// copyOf returns what the copy dir has of the range of the write o, and what the file had before.
func (m *model) copyOf(o *operation, dir string) (found, content) {
	h := m.handles[o.name(0)]
	if h == nil {
		return nil, nil
	}
	for name, f := range m.names {
		if f != h.file {
			continue
		}
		local, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return nil, nil
		}
		defer local.Close()
		got := make([]byte, o.number(2))
		n, _ := local.ReadAt(got, o.number(1)) // missing bytes do not count
		return got[:n], f.data
	}
	return nil, nil
}

// began returns how many bytes the write o has written, where bytes that the file had before count as well. Holes are no such bytes.
func (b found) began(o *operation, old content) int64 {
	want := make([]byte, len(b))
	o.source.fill(want, o.number(1))
	start := int64(0)
	for _, e := range old {
		if a, z := o.clip(start, e.end, len(b)); e.from != (source{}) && a < z && b.equal(e.from, o, a, z) {
			e.from.fill(want[a:z], o.number(1)+a)
		}
		start = e.end
	}
	if i := differ(b, want); i >= 0 {
		return int64(i)
	}
	return int64(len(b))
}

// clip returns the part of a range of the file that is in the n bytes that o writes, relative to them.
func (o *operation) clip(start, end int64, n int) (a, z int64) {
	return max(0, start-o.number(1)), min(int64(n), end-o.number(1))
}

// equal reports whether b has at [a, z) what s writes.
func (b found) equal(s source, o *operation, a, z int64) bool {
	want := make([]byte, z-a)
	s.fill(want, o.number(1)+a)
	return bytes.Equal(b[a:z], want)
}

// keep returns c with the extents of old that o writes to and that the copy still has.
func (c content) keep(old content, o *operation, b found) content {
	start := int64(0)
	for _, e := range old {
		if a, z := o.clip(start, e.end, len(b)); e.from != (source{}) && a < z && b.equal(e.from, o, a, z) {
			c = c.write(o.number(1)+a, z-a, e.from)
		}
		start = e.end
	}
	return c
}

// compare returns the differences between the directory on the local disk and the model, and the number of bytes compared.
func (m *model) compare(dir string) (n int64, differences []string, err error) {
	found := map[string]fs.DirEntry{}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == dir {
			return nil
		}
		if name, _ := filepath.Rel(dir, path); err == nil {
			found[name] = e
		}
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	if _, there := found["."]; there != m.exists {
		differences = append(differences, fmt.Sprintf("the actor's directory: expected %t, got %t", m.exists, there))
	}
	delete(found, ".")
	for _, name := range m.sorted() {
		e := found[name]
		delete(found, name)
		difference, err := m.compareOne(m.names[name], filepath.Join(dir, name), e)
		if err != nil {
			return 0, nil, err
		}
		if difference != "" {
			differences = append(differences, name+": "+difference)
		} else if f := m.names[name]; f != nil {
			n += f.data.size()
		}
	}
	for name := range found {
		differences = append(differences, name+": is there and must not be")
	}
	return n, differences, nil
}

func (m *model) compareOne(want *file, path string, e fs.DirEntry) (string, error) {
	kind := func(isDir, isLink bool) string {
		switch {
		case isDir:
			return "a directory"
		case isLink:
			return "a symbolic link"
		}
		return "a file"
	}
	if e == nil {
		return "is missing", nil
	}
	expected := kind(want == nil, want != nil && want.link)
	if got := kind(e.IsDir(), e.Type() == fs.ModeSymlink); got != expected {
		return fmt.Sprintf("expected %s, got %s", expected, got), nil
	}
	if want == nil {
		return "", nil
	}
	if want.link {
		target, err := os.Readlink(path)
		if err == nil && target != want.target {
			return fmt.Sprintf("expected a link to %q, got one to %q", want.target, target), nil
		}
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	difference, err := want.data.compare(io.LimitReader(f, info.Size()))
	if err == nil && info.Size() != want.data.size() {
		difference = strings.TrimPrefix(fmt.Sprintf("%s; size: expected %d, got %d", difference, want.data.size(), info.Size()), "; ")
	}
	return difference, err
}
