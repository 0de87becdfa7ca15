package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
)

// A mountPoint is the directory of --mount where that exists. What the preloaded library is not in finds the files
// of the job there: they are mounted at it in a mount namespace of the job's own, so that no other process sees
// them there, and nothing has to be unmounted. That takes root.
type mountPoint struct{ tree, dir string }

// mountPoint returns where the job is to find what has been exported; nil where it is not.
func (s *servant) mountPoint(cfg *config.Config) *mountPoint {
	if info, err := os.Stat(cfg.Mount); s.view == "" || os.Geteuid() != 0 || err != nil || !info.IsDir() {
		return nil
	}
	return &mountPoint{tree: filepath.Join(s.view, "job"), dir: cfg.Mount}
}

// start starts a process that has the mount.
func (m *mountPoint) start(cmd *exec.Cmd) error {
	if m == nil {
		return cmd.Start()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine: no other one gets its namespace
		if err := m.enter(); err != nil {
			done <- err
			return
		}
		done <- cmd.Start()
	}()
	return <-done
}

// enter gives the thread the mount. Mounts that the host makes later reach the job, none of the job's the host.
func (m *mountPoint) enter() error {
	err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
	}
	if err == nil {
		err = unix.Mount(m.tree, m.dir, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("the files at the mount point %s (--fuse=off does without): %w", m.dir, err)
	}
	return nil
}
