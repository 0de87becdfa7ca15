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

// surroundings are what a job finds that no other process does.
type surroundings struct {
	// tree is mounted at dir, if not "": the directory of --mount where that exists. What the preloaded library is not in finds the files
	// of the job there: they are mounted at it in a mount namespace of the job's own, so that no other process sees
	// them there, and nothing has to be unmounted. That takes root, or a user namespace.
	tree, dir string
	// unprivileged says that the job has none of our capabilities: those in a user namespace.
	unprivileged bool
}

// mountAt has the job find what has been exported at the mount, where that can be.
func mountAt(job *surroundings, cfg *config.Config) {
	if info, err := os.Stat(cfg.Mount); cfg.Export != "" && mayMount() && err == nil && info.IsDir() {
		job.tree, job.dir = filepath.Join(cfg.Export, "job"), cfg.Mount
	}
}

// start starts a process there.
func (m surroundings) start(cmd *exec.Cmd) error {
	if m == (surroundings{}) {
		return cmd.Start()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine: no other one gets its namespace
		err := m.enter()
		if err == nil {
			err = cmd.Start()
		}
		done <- err
	}()
	return <-done
}

// enter puts the thread there. Mounts that the host makes later reach the job, none of the job's the host.
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
