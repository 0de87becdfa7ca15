package drain

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/google/uuid"

	"nvmecr/checkpoint"
)

// unitSize is the unit in which equal data of two sets is shared.
const unitSize = 32 << 10

// A base is the previous set of the series, with which a new set shares data.
type base struct {
	root  directory
	files map[string]string // paths of its files, by role
}

// share prepares to share data with the previous set, if that is requested.
func (p *partial) share() {
	if p.o.Incremental && p.set.Compress == Plain {
		p.base = p.level.base(p.set)
	}
}

// base opens the newest set of the series of s. It is nil if no set can be used: then s is written as a whole.
func (l *Level) base(s *Set) *base {
	sets, _ := l.Sets() // damaged sets are not used
	var newest *Set
	for i := range sets {
		if b := &sets[i]; checkpoint.Stem(b.Pattern) == checkpoint.Stem(s.Pattern) && b.Compress == Plain && (newest == nil || b.Ended.After(newest.Ended)) {
			newest = b
		}
	}
	if newest == nil {
		return nil
	}
	root, err := l.root.Sub(path.Base(newest.Dir))
	if err != nil { // the set was removed meanwhile
		return nil
	}
	b := &base{root: root, files: map[string]string{}}
	for i := range newest.Files {
		f := &newest.Files[i]
		b.files[newest.role(f)] = newest.In(f)
	}
	return b
}

// role returns the path of a file with the step replaced, to find the same file in another set of the series. A wrong
// match costs only a comparison.
func (s *Set) role(f *File) string { return strings.ReplaceAll(s.In(f), s.Name, "{}") }

// open opens the file of the base; nil if it has none.
func (b *base) open(s *Set, f *File) file {
	if b == nil {
		return nil
	}
	name, ok := b.files[s.role(f)]
	if !ok {
		return nil
	}
	from, err := b.root.Open(name, os.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	from.Forget(0, 0) // drop the page cache: damage on the disk must not be shared
	return from
}

func (b *base) close() {
	if b != nil {
		_ = b.root.Close() // nothing is written by it
	}
}

// store writes a part of a file, except for units that equal those of the base. If cloning fails after all, they are
// written.
func (c *copier) store(part []byte, off int64) error {
	var before []byte
	if c.before != nil {
		before = c.beforeBuf[:len(part)]
		n, _ := c.before.ReadAt(before, off) // units beyond a short read or an error are not shared
		before = before[:n]
	}
	for at := 0; at < len(part); {
		n, same := firstRun(part[at:], before[min(at, len(before)):])
		if err := c.storeRun(part[at:at+n], off+int64(at), same); err != nil {
			return err
		}
		at += n
	}
	return nil
}

func (c *copier) storeRun(run []byte, off int64, same bool) error {
	if err := c.o.at("write"); err != nil {
		return err
	}
	if n := int64(len(run)); same && c.to.Clone(c.before, off, n) == nil {
		c.cloned += n
		return nil
	}
	_, err := c.to.WriteAt(run, off)
	return err
}

// firstRun returns how many bytes at the beginning of part are in units of which before has all, or none.
func firstRun(part, before []byte) (n int, same bool) {
	for n < len(part) {
		end := min(n+unitSize, len(part))
		equal := end-n == unitSize && end <= len(before) && bytes.Equal(part[n:end], before[n:end])
		if n > 0 && equal != same {
			break
		}
		n, same = end, equal
	}
	return n, same
}

// CanShare returns nil if sets can share units on the level, or the reason why not. It tries with two temporary
// files.
func (l *Level) CanShare() (err error) {
	dir := path.Join(partialDir, "try-"+uuid.NewString())
	if err := l.root.MkdirAll(dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.root.RemoveAll(dir)) }()
	var files [2]file
	for i := range files {
		if files[i], err = l.root.Open(path.Join(dir, fmt.Sprint(i)), os.O_RDWR|os.O_CREATE|os.O_EXCL, fs.FileMode(0o600)); err != nil {
			return err
		}
		defer files[i].Close()
	}
	if _, err := files[0].WriteAt(make([]byte, 2*unitSize), 0); err != nil {
		return err
	}
	if err := files[1].Clone(files[0], unitSize, unitSize); err != nil {
		return fmt.Errorf("the file system of %s cannot clone parts of files, as XFS and Btrfs can, and NFS 4.2 over them: %w", l.dir, err)
	}
	return nil
}
