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

// surroundings are what the job's process tree has that other processes on the host have not.
type surroundings struct {
	// tree is bind-mounted at dir, the directory of --mount if that exists; "" mounts nothing. Programs without the
	// preloaded library find the files of the job there. The mount is made in a mount namespace of the job: other
	// processes do not see it, and nothing has to be unmounted. It takes root, or a user namespace.
	tree, dir string
	// unprivileged: this process has capabilities in a user namespace, which the job does not get.
	unprivileged bool
}

// mountAt has the exported view mounted at the mount point of the job, where that is possible.
func mountAt(job *surroundings, cfg *config.Config) {
	if cfg.Export != "" && mayMount() && isDirectory(cfg.Mount) {
		job.tree, job.dir = filepath.Join(cfg.Export, "job"), cfg.Mount
	}
}

// mayMountAt reports, before anything is started, whether mountAt may mount the view. A user who cannot mount may get
// a user namespace (enterNamespace).
func mayMountAt(cfg *config.Config) bool {
	return cfg.FUSE && isDirectory(cfg.Mount) && hasFUSE() && (mayMount() || !hasFusermount())
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// start starts a process in the surroundings.
func (m surroundings) start(cmd *exec.Cmd) error {
	if m == (surroundings{}) {
		return cmd.Start()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its namespace is not used again
		err := m.enter()
		if err == nil {
			err = cmd.Start()
		}
		done <- err
	}()
	return <-done
}

// enter changes the namespace and the capabilities of the calling thread. Mounts that are made on the host later
// propagate to the job, mounts of the job do not propagate to the host.
func (m surroundings) enter() error {
	err := m.mount()
	if err == nil && m.unprivileged {
		err = dropCapabilities()
	}
	return err
}

func (m surroundings) mount() error {
	if m.dir == "" {
		return nil
	}
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
