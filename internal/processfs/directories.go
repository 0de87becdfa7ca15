package processfs

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// withDirectories creates in a rank's partition the directories that job scripts have made. If the partition is open for reading, by
// the first process of the rank, it is opened for writing for that. Errors only lose directories.
func (o *Opener) withDirectories(part *store.Partition, opts store.Options) (*vfs.Mount, error) {
	m := mountOf(part, hintFS{vfs.Microfs(part.FS), o}, opts)
	if opts.ReadOnly && o.compared.Swap(true) {
		return m, nil
	}
	list, err := part.SingletonDirectories(context.Background(), o.Config)
	if err != nil {
		o.Logf("directories that the job script has made may be missing: %v", err)
		return m, nil
	}
	if len(list) == store.MaxDirectories {
		o.Logf("the job script has made more than %d directories: some may be missing", store.MaxDirectories)
	}
	lacking := missingDirectories(part.FS, list)
	switch {
	case len(lacking) == 0:
	case !opts.ReadOnly:
		if err := makeDirectories(part.FS, lacking); err != nil {
			o.Logf("directories that the job script has made are missing: %v", err)
		}
	default:
		writable, err := o.Open(true)
		if err != nil { // another process of the rank has the partition, and has created the directories
			return m, nil
		}
		return writable, part.Close()
	}
	return m, nil
}

// missingDirectories returns the missing directories.
func missingDirectories(fs *microfs.FS, list []store.Directory) (lacking []store.Directory) {
	for _, d := range list {
		if _, err := fs.Stat(microfs.RootIno, d.Path, false); errors.Is(err, unix.ENOENT) {
			lacking = append(lacking, d)
		}
	}
	return lacking
}

func makeDirectories(fs *microfs.FS, list []store.Directory) error {
	for _, d := range list {
		err := fs.Mkdir(microfs.RootIno, d.Path, d.Mode)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}
