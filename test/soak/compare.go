package main

import (
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
	for _, s := range w.states(dir, c.whole) {
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
func (w *history) states(dir string, whole int64) []state {
	if w.pending == nil {
		return []state{{"where nothing was in doubt", w.model.clone()}}
	}
	o := w.pending
	all := []state{{fmt.Sprintf("without the operation in doubt (%v)", o), w.model.clone()}}
	with := func(name string, limit int64) {
		m := w.model.clone()
		if _, err := m.apply(o, limit); err == nil {
			all = append(all, state{name, m})
		}
	}
	with("with it", o.limit())
	if o.pieces(whole) {
		if n := w.model.began(o, dir); n > 0 {
			with(fmt.Sprintf("with its first %d bytes", n), n)
		}
	}
	return all
}

// began returns how many bytes of the write o are in the copy dir.
func (m *model) began(o *operation, dir string) int64 {
	h := m.handles[o.name(0)]
	if h == nil {
		return 0
	}
	for name, f := range m.names {
		if f != h.file {
			continue
		}
		local, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return 0
		}
		defer local.Close()
		got, want := make([]byte, o.number(2)), make([]byte, o.number(2))
		n, _ := local.ReadAt(got, o.number(1)) // missing bytes do not count
		o.source.fill(want, o.number(1))
		if i := differ(got[:n], want[:n]); i >= 0 {
			n = i
		}
		return int64(n)
	}
	return 0
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
