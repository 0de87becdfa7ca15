package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
)

// A file is the file of a name or a handle.
type file struct {
	target string // of a symbolic link
	link   bool
	data   content
	state  completeness
}

// completeness is the known state of the mark that the last close of a writer sets.
type completeness int

const (
	unknown  completeness = iota
	torn                  // written to, and not closed
	complete              // closed since it was written to
)

// A handle is an open file.
type handle struct {
	file   *file
	at     int64
	append bool
}

// A model is an actor's directory, and its open files. Names are relative to the directory; those of subdirectories map to nil.
type model struct {
	exists  bool // the directory itself
	names   map[string]*file
	handles map[string]*handle
}

func newModel() *model {
	return &model{names: map[string]*file{}, handles: map[string]*handle{}}
}

// clone copies all of it.
func (m *model) clone() *model {
	c := &model{exists: m.exists, names: map[string]*file{}, handles: map[string]*handle{}}
	files := map[*file]*file{nil: nil}
	copied := func(f *file) *file {
		if files[f] == nil && f != nil {
			one := *f
			files[f] = &one // content is never changed in place
		}
		return files[f]
	}
	for name, f := range m.names {
		c.names[name] = copied(f)
	}
	for h, o := range m.handles {
		c.handles[h] = &handle{copied(o.file), o.at, o.append}
	}
	return c
}

// kill drops the state that ends with a process.
func (m *model) kill() { clear(m.handles) }

// forgetState makes the mark unknown, of a file that is opened or changed in a way that may set or clear it.
func (f *file) forgetState() { f.state = unknown }

// opens returns the number of handles of f.
func (m *model) opens(f *file) (n int) {
	for _, h := range m.handles {
		if h.file == f {
			n++
		}
	}
	return n
}

func (m *model) close(handle string) {
	f := m.handles[handle].file
	delete(m.handles, handle)
	if m.opens(f) > 0 {
		return
	}
	if f.state == torn {
		f.state = complete
	}
}

func (m *model) children(dir string) []string {
	var found []string
	for name := range m.names {
		if strings.HasPrefix(name, dir+"/") {
			found = append(found, name)
		}
	}
	return found
}

// find returns the file of a name; isDir if it is a directory.
func (m *model) find(name string) (f *file, isDir bool, err syscall.Errno) {
	if dir, _, inside := strings.Cut(name, "/"); inside {
		if _, ok := m.names[dir]; !ok {
			return nil, false, syscall.ENOENT
		}
	}
	f, ok := m.names[name]
	if !ok {
		return nil, false, syscall.ENOENT
	}
	return f, f == nil, 0
}

// parent returns the error of creating name if its directory does not exist.
func (m *model) parent(name string) syscall.Errno {
	if dir, _, inside := strings.Cut(name, "/"); inside {
		if _, ok := m.names[dir]; !ok {
			return syscall.ENOENT
		}
	}
	return 0
}

func (m *model) links(f *file) (n int) {
	for _, other := range m.names {
		if other == f {
			n++
		}
	}
	return n
}

// A result is the result of an operation.
type result struct {
	n     int64
	errno syscall.Errno
	more  []string
}

func failed(e syscall.Errno) result {
	if e == 0 {
		return result{}
	}
	return result{n: -1, errno: e}
}

// apply executes o, a write up to limit bytes, and returns the expected result. An error is one of o itself: its record of the
// application's state, such as an offset, is wrong.
func (m *model) apply(o *operation, limit int64) (result, error) {
	switch o.verb {
	case "mkdir":
		return failed(m.mkdir(o.name(0))), nil
	case "rmdir":
		return failed(m.rmdir(o.name(0))), nil
	case "unlink":
		_, _, err := m.find(o.name(0))
		delete(m.names, o.name(0))
		return failed(err), nil
	case "symlink":
		if _, ok := m.names[o.name(1)]; ok {
			return failed(syscall.EEXIST), nil
		}
		m.names[o.name(1)] = &file{link: true, target: o.name(0)}
		return result{}, nil
	case "link":
		return failed(m.hardlink(o.name(0), o.name(1))), nil
	case "rename":
		return failed(m.rename(o.name(0), o.name(1))), nil
	case "truncate":
		f, _, err := m.find(o.name(0))
		if err == 0 {
			f.data = f.data.truncate(o.number(1))
			f.forgetState()
		}
		return failed(err), nil
	case "stat":
		f, _, err := m.find(o.name(0))
		if err != 0 {
			return failed(err), nil
		}
		return result{more: []string{fmt.Sprint(f.data.size()), fmt.Sprint(m.links(f))}}, nil
	case "open":
		return failed(m.open(o.name(0), o.name(1), o.name(2))), nil
	}
	h := m.handles[o.name(0)]
	if h == nil {
		return result{}, fmt.Errorf("%v: the file is not open", o)
	}
	switch o.verb {
	case "close":
		m.close(o.name(0))
		return result{}, nil
	case "fsync":
		return result{}, nil
	case "ftruncate":
		h.file.data = h.file.data.truncate(o.number(1))
		h.file.forgetState()
		return result{}, nil
	case "read":
		n := max(0, min(o.number(2), h.file.data.size()-o.number(1)))
		return result{n: n, more: h.file.data.sums(o.number(1), n)}, nil
	case "write", "pwrite", "stream":
		return m.write(h, o, limit)
	}
	return result{}, fmt.Errorf("%v: no such operation", o)
}

func (m *model) write(h *handle, o *operation, limit int64) (result, error) {
	off, n := o.number(1), min(o.number(2), limit)
	if h.append {
		h.at = h.file.data.size()
	}
	if o.verb != "pwrite" {
		if off != h.at {
			return result{}, fmt.Errorf("%v: the offset must be %d", o, h.at)
		}
		h.at += n
	}
	h.file.data = h.file.data.write(off, n, o.source)
	h.file.state = torn
	return result{n: n}, nil
}

func (m *model) mkdir(name string) syscall.Errno {
	if name == "-" {
		if m.exists {
			return syscall.EEXIST
		}
		m.exists = true
		return 0
	}
	if _, ok := m.names[name]; ok {
		return syscall.EEXIST
	}
	m.names[name] = nil
	return 0
}

func (m *model) rmdir(name string) syscall.Errno {
	if _, _, err := m.find(name); err != 0 {
		return err
	}
	if len(m.children(name)) > 0 {
		return syscall.ENOTEMPTY
	}
	delete(m.names, name)
	return 0
}

func (m *model) hardlink(from, to string) syscall.Errno {
	f, _, err := m.find(from)
	if err == 0 {
		err = m.parent(to)
	}
	if _, ok := m.names[to]; ok && err == 0 {
		err = syscall.EEXIST
	}
	if err == 0 {
		m.names[to] = f
	}
	return err
}

func (m *model) rename(from, to string) syscall.Errno {
	f, isDir, err := m.find(from)
	if err == 0 {
		err = m.parent(to)
	}
	if err != 0 || from == to {
		return err
	}
	old, there := m.names[to]
	switch {
	case isDir && there && len(m.children(to)) > 0:
		return syscall.ENOTEMPTY
	case !isDir && there && old == f:
		return 0 // two names of one file: both are kept
	}
	delete(m.names, from)
	m.names[to] = f
	for _, child := range m.children(from) {
		m.names[to+strings.TrimPrefix(child, from)] = m.names[child]
		delete(m.names, child)
	}
	return 0
}

func (m *model) open(h, name, how string) syscall.Errno {
	f, _, err := m.find(name)
	switch has := func(c string) bool { return strings.Contains(how, c) }; {
	case err == 0 && has("x"):
		return syscall.EEXIST
	case err != 0 && (!has("c") || m.parent(name) != 0):
		return err
	case err != 0:
		f = &file{}
		m.names[name] = f
	case has("t"):
		f.data = nil
		f.forgetState()
	}
	if f.state == torn && m.opens(f) == 0 {
		f.forgetState() // an earlier writer was killed; the next close may set the mark
	}
	m.handles[h] = &handle{file: f, append: strings.Contains(how, "a")}
	return 0
}

// doubt makes the marks of files unknown that o may have changed.
func (m *model) doubt(o *operation) {
	for _, arg := range o.args {
		if h := m.handles[arg]; h != nil {
			h.file.forgetState()
		}
		if f := m.names[arg]; f != nil {
			f.forgetState()
		}
	}
}

// sorted returns the names in order.
func (m *model) sorted() []string { return slices.Sorted(maps.Keys(m.names)) }
