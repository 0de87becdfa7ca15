package command

import (
	"nvmecr/internal/config"
	"nvmecr/internal/processfs"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/posixshim"
)

// openMount opens the files under the mount for writing, as process proc of the job.
func openMount(cfg *config.Config, proc store.Proc, say func(format string, args ...any)) (*vfs.Mount, error) {
	opener := &processfs.Opener{Config: cfg, Proc: func() (store.Proc, error) { return proc, nil }, Logf: say}
	opener.Process = posixshim.New(opener.Open, say)
	opener.Process.Identify = store.Cred
	if err := opener.Process.Credentials(); err != nil {
		return nil, err
	}
	return opener.Open(true)
}
