package vfs

import "nvmecr/microfs"

// Microfs returns a microfs.FS as an FS.
func Microfs(fs *microfs.FS) FS { return microFS{fs} }

type microFS struct{ *microfs.FS }

func (m microFS) Open(dir microfs.Ino, path string, flags int, mode uint32) (File, error) {
	f, err := m.FS.Open(dir, path, flags, mode)
	if err != nil {
		return nil, err // not an interface with a nil *microfs.File
	}
	return f, nil
}

func (m microFS) OpenIno(ino microfs.Ino, flags int) (File, error) {
	f, err := m.FS.OpenIno(ino, flags)
	if err != nil {
		return nil, err
	}
	return f, nil
}
