package drain

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/google/uuid"
)

const (
	partialDir = ".draining"
	removalDir = ".removing"
	// RunFile is the name of a file that says which run uses the level.
	RunFile = ".run"
)

// A Level is a directory that keeps the sets of a store.
type Level struct {
	dir  string // absolute
	root directory
}

// Open returns the level of a store in dir, a directory that exists.
func Open(dir, store string) (*Level, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("second level %s: not a directory (make it, or see that its file system is mounted): %w", dir, errors.Join(err, syscall.ENOTDIR))
	}
	dir = filepath.Join(dir, store)
	if err := os.Mkdir(dir, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Level{dir, hostDir{root}}, nil
}

// Close closes the level.
func (l *Level) Close() error { return l.root.Close() }

// Sets returns the complete sets, in the order of their directory names. Directories whose manifest cannot be used
// are left out and named in the error, a DamagedSets; the returned sets are valid nevertheless.
func (l *Level) Sets() (sets []Set, err error) {
	names, err := l.root.List()
	if err != nil {
		return nil, err
	}
	var damaged DamagedSets
	for _, name := range names {
		if strings.HasPrefix(name, ".") {
			continue
		}
		s, e2 := l.manifest(name)
		switch {
		case errors.Is(e2, fs.ErrNotExist) || errors.Is(e2, syscall.ENOTDIR): // not a set
		case e2 != nil:
			damaged = append(damaged, &DamagedSet{filepath.Join(l.dir, name), e2})
		case s.Drained.IsZero():
			damaged = append(damaged, &DamagedSet{filepath.Join(l.dir, name), fmt.Errorf("%w: it has no checksums", ErrManifest)})
		default:
			s.Dir = filepath.Join(l.dir, name)
			sets = append(sets, *s)
		}
	}
	return sets, damaged.err()
}

func (l *Level) manifest(dir string) (*Set, error) {
	return readManifest(l.root, path.Join(dir, manifestName))
}

func readManifest(d directory, name string) (*Set, error) {
	text, err := readFile(d, name)
	if err != nil {
		return nil, err
	}
	return decode(text)
}

// Remove removes a set. The set disappears at once; its space is freed after that.
func (l *Level) Remove(s *Set) error { return l.remove(filepath.Base(s.Dir)) }

func (l *Level) remove(dir string) error {
	if err := l.root.MkdirAll(removalDir); err != nil {
		return err
	}
	err := l.root.Rename(dir, path.Join(removalDir, uuid.NewString()))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(l.root.Sync("."), l.root.RemoveAll(removalDir))
}

// Verify compares all files of a set with their checksums. On damage the error wraps ErrDamaged.
func (l *Level) Verify(ctx context.Context, s *Set, o Options) error {
	root, err := l.root.Sub(filepath.Base(s.Dir))
	if err != nil {
		return err
	}
	defer root.Close()
	return errors.Join(verify(ctx, root, s, s.copied(), o, nil), verifySizes(root, s))
}

var unfit = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// label returns the name for the directory of a set: the paths of its files up to the step, as far as these
// characters are valid in a name.
func label(s *Set) string {
	name := s.Name
	if i := strings.IndexByte(s.Pattern, '{'); i >= 0 {
		name = s.Pattern[:i] + s.Name
	}
	name = unfit.ReplaceAllString(strings.Trim(name, "/"), "_")
	if name == "" || name[0] == '.' {
		name = "_" + name
	}
	return name[:min(len(name), 200)]
}
