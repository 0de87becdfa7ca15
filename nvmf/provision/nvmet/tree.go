package nvmet

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree is the part of configfs below the target's directory. Names are relative to that
// directory.
type Tree interface {
	// List returns the names in a directory.
	List(dir string) ([]string, error)
	// Read returns the value of an attribute without the newline.
	Read(name string) (string, error)
	Write(name, value string) error
	// Hide makes an attribute readable only by its owner.
	Hide(name string) error
	Mkdir(name string) error
	Rmdir(name string) error
	// Link makes name a symbolic link to another name of the tree.
	Link(to, name string) error
	Unlink(name string) error
}

// directory is the Tree of a mounted configfs.
type directory string

func (d directory) at(name string) string { return filepath.Join(string(d), name) }

func (d directory) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(d.at(dir))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (d directory) Read(name string) (string, error) {
	b, err := os.ReadFile(d.at(name))
	return strings.TrimRight(string(b), "\n"), err
}

// Write sets an attribute by one system call, since each write(2) replaces the value.
func (d directory) Write(name, value string) error {
	f, err := os.OpenFile(d.at(name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

func (d directory) Hide(name string) error     { return os.Chmod(d.at(name), 0o600) }
func (d directory) Mkdir(name string) error    { return os.Mkdir(d.at(name), 0o755) }
func (d directory) Link(to, name string) error { return os.Symlink(d.at(to), d.at(name)) }

func (d directory) Rmdir(name string) error {
	return wrapPath("rmdir", d.at(name), unix.Rmdir(d.at(name)))
}

func (d directory) Unlink(name string) error {
	return wrapPath("unlink", d.at(name), unix.Unlink(d.at(name)))
}

func wrapPath(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: path, Err: err}
}
