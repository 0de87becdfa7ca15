package processfs

import (
	"fmt"

	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
)

// Mount adds the mounts of the process: its own files and, if the run has --mount-all, the files of all ranks. It is called before the
// process uses any file.
func (o *Opener) Mount() error {
	o.Process.MountAt(o.Config.Mount)
	switch {
	case o.Config.MountAll == "":
		return nil
	case o.Config.View == config.ViewJob:
		return fmt.Errorf("--mount-all %s: with --view=job all files are under %s: %w", o.Config.MountAll, o.Config.Mount, unix.EINVAL)
	}
	cfg := *o.Config
	cfg.Mount = cfg.MountAll
	all := &Opener{Config: &cfg, Proc: o.Proc, Logf: o.Logf}
	return o.Process.AddMount(cfg.Mount, all.openAll)
}

// openAll opens, read-only, the files that a singleton sees.
func (o *Opener) openAll(write bool) (*vfs.Mount, error) {
	if write {
		return nil, unix.EROFS
	}
	return o.openSingleton(store.Proc{Rank: parttable.Singleton}, store.Options{ReadOnly: true})
}
