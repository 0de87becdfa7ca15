package command

import (
	"nvmecr/internal/config"
	"nvmecr/internal/processfs"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/posixshim"
)

// openInRun opens, for writing, the files that a process of the job has under the mount.
func openInRun(cfg *config.Config, proc store.Proc, say func(format string, args ...any)) (*vfs.Mount, error) {
	opener := &processfs.Opener{Config: cfg, Proc: func() (store.Proc, error) { return proc, nil }, Logf: say}
	opener.Process = posixshim.New(opener.Open, say)
	opener.Process.Identify = store.Cred
	if err := opener.Process.Credentials(); err != nil {
		return nil, err
	}
	return opener.Open(true)
}
