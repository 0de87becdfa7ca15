package command

import (
	"nvmecr/internal/config"
	"nvmecr/internal/processfs"
	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// openInRun opens, for writing, what a process of the run at a place of the job has under the mount.
func openInRun(cfg *config.Config, place store.Place, say func(format string, args ...any)) (*posixshim.Mount, error) {
	opener := &processfs.Opener{Config: cfg, Place: func() (store.Place, error) { return place, nil }, Logf: say}
	opener.Process = posixshim.New(opener.Open, say)
	opener.Process.Identify = store.Cred
	if err := opener.Process.Credentials(); err != nil {
		return nil, err
	}
	return opener.Open(true)
}
