package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// attachToServer makes nvmecr serve export the files of the run on this host, copy this host's share of checkpoints to a directory of the
// second level, and make the calls of forked children whose parent has ended, until the last process of the run has ended. nvmecr run
// does that on its own host. On other hosts the first process that uses the mount starts nvmecr serve or, if there is neither a view nor
// such a directory, the first process that forks. If that fails there is no view, and the host of nvmecr run copies all.
func attachToServer(cfg *config.Config, forks bool) {
	group := store.LockGroup(cfg.Run)
	if forks != (cfg.Export == "" && !cfg.Level2IsDirectory()) || group == "" || owner.OfRun(group) {
		return
	}
	if _, other := owner.OtherUser(group); other {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cfg.Timeout)
	defer cancel()
	err := owner.Attach(ctx, group, func() error { return startServer(cfg) })
	if err != nil && cfg.Log != config.LogError {
		complain("nvmecr serve of this host: %v", err)
	}
}

// successor connects to nvmecr serve, which takes over the open files that other processes have of this one. If nvmecr serve does
// not run, because it was killed, or because this is not the host of nvmecr run and has no view, successor starts it.
func successor() (posixshim.Successor, error) {
	proc, err := whichRank()
	if err != nil {
		return posixshim.Successor{}, err
	}
	group := store.LockGroup(opening.Config.Run)
	socket, err := dialSuccessor(group)
	if absent(err) {
		if started := startServer(opening.Config); started != nil {
			return posixshim.Successor{}, errors.Join(err, started)
		}
		socket, err = owner.DialSuccessor(group)
	}
	return posixshim.Successor{Socket: socket, Rank: proc.Rank, Size: proc.Size}, err
}

func absent(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) }

// dialSuccessor connects to nvmecr serve. If the job has one tree, nvmecr run starts nvmecr serve again after it was killed. So
// on the host of nvmecr run dialSuccessor waits for that.
func dialSuccessor(group string) (socket int, err error) {
	cfg := opening.Config
	for limit := time.Now().Add(cfg.Timeout); ; time.Sleep(10 * time.Millisecond) {
		socket, err = owner.DialSuccessor(group)
		if !absent(err) || cfg.View != config.ViewJob || !owner.OfRun(group) || time.Now().After(limit) {
			return socket, err
		}
	}
}

// startServer starts nvmecr serve, and returns when that serves. nvmecr serve is no child of this process, because the
// application may wait for all children.
func startServer(cfg *config.Config) error {
	if cfg.Command == "" {
		return errors.New("the path of nvmecr is not known: start the program with nvmecr run")
	}
	cmd := exec.Command(cfg.Command, "serve", "--detach")
	cmd.Dir = "/"
	// The environment has only the settings of nvmecr: no LD_PRELOAD of the job, for example.
	cmd.Env = cfg.Environ([]string{"PATH=/usr/local/bin:/usr/bin:/bin"})
	out, err := cmd.CombinedOutput()
	said := strings.TrimSpace(string(out))
	if errors.Is(err, unix.ECHILD) {
		err = nil // a SIGCHLD handler of the application has waited for it
	}
	if err != nil {
		return fmt.Errorf("%s serve: %w: %s", cfg.Command, err, said)
	}
	if said != "" && cfg.Log != config.LogError {
		complain("%s", said)
	}
	return nil
}
