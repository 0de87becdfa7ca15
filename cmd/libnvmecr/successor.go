package main

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// successor connects to nvmecr serve, which takes over what other processes have open of this one. nvmecr run starts it
// on its host. On another host, or where it was killed, the first process that needs it does.
func successor() (posixshim.Successor, error) {
	place, err := where()
	if err != nil {
		return posixshim.Successor{}, err
	}
	group := store.LockGroup(opening.Config.Run)
	socket, err := owner.DialSuccessor(group)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		if started := startSuccessor(opening.Config); started != nil {
			return posixshim.Successor{}, errors.Join(err, started)
		}
		socket, err = owner.DialSuccessor(group)
	}
	return posixshim.Successor{Socket: socket, Rank: place.Rank, Size: place.Size}, err
}

// startSuccessor starts nvmecr serve, and returns when it serves. It is no child of this process, which may wait for all
// its children.
func startSuccessor(cfg *config.Config) error {
	if cfg.Command == "" {
		return errors.New("nobody says where nvmecr is")
	}
	cmd := exec.Command(cfg.Command, "serve", "--detach")
	cmd.Dir = "/"
	// Nothing but the settings: what the job has preloaded, too, is not for it.
	cmd.Env = cfg.Environ([]string{"PATH=/usr/local/bin:/usr/bin:/bin"})
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.ECHILD) {
		err = nil // a handler of the application's has waited for it
	}
	if err != nil {
		return fmt.Errorf("%s serve: %w: %s", cfg.Command, err, strings.TrimSpace(string(out)))
	}
	return nil
}
