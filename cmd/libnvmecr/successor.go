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

// attachToServer has nvmecr serve export the files of the run on this host, until its last process has ended. On the host of
// nvmecr run that is done; on others the first process that uses the mount starts it. Where that fails there is no view.
func attachToServer(cfg *config.Config) {
	group := store.LockGroup(cfg.Run)
	if cfg.Export == "" || group == "" || owner.OfRun(group) {
		return
	}
	if _, other := owner.OtherUser(group); other {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cfg.Timeout)
	defer cancel()
	err := owner.Attach(ctx, group, func() error { return startServer(cfg) })
	if err != nil && cfg.Log != config.LogError {
		complain("files are not exported to the kernel of this host: %v", err)
	}
}

// successor connects to nvmecr serve, which takes over what other processes have open of this one. Where it was killed, or
// this is another host than that of nvmecr run and there is no view, the first process that needs it starts it.
func successor() (posixshim.Successor, error) {
	proc, err := where()
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

// dialSuccessor connects to nvmecr serve. Where the job has one tree nvmecr run starts another one on its host when that was killed.
func dialSuccessor(group string) (socket int, err error) {
	cfg := opening.Config
	for limit := time.Now().Add(cfg.Timeout); ; time.Sleep(10 * time.Millisecond) {
		socket, err = owner.DialSuccessor(group)
		if !absent(err) || cfg.View != config.ViewJob || !owner.OfRun(group) || time.Now().After(limit) {
			return socket, err
		}
	}
}

// startServer starts nvmecr serve, and returns when it serves. It is no child of this process, which may wait for all
// its children.
func startServer(cfg *config.Config) error {
	if cfg.Command == "" {
		return errors.New("the path of nvmecr is not known: start the program with nvmecr run")
	}
	cmd := exec.Command(cfg.Command, "serve", "--detach")
	cmd.Dir = "/"
	// Nothing but the settings: what the job has preloaded, too, is not for it.
	cmd.Env = cfg.Environ([]string{"PATH=/usr/local/bin:/usr/bin:/bin"})
	out, err := cmd.CombinedOutput()
	said := strings.TrimSpace(string(out))
	if errors.Is(err, unix.ECHILD) {
		err = nil // a handler of the application's has waited for it
	}
	if err != nil {
		return fmt.Errorf("%s serve: %w: %s", cfg.Command, err, said)
	}
	if said != "" && cfg.Log != config.LogError {
		complain("%s", said)
	}
	return nil
}
