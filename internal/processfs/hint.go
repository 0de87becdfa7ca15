package processfs

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// Programs that share files between ranks find that a file is not there. The first time that
// another rank has it one line says so. Looking costs other partitions a mount for reading, so it is
// done few times, in few partitions, for a short time, and for no program in which nothing is missing.
const (
	maxHints     = 3               // looks of a process
	hintPatience = 2 * time.Second // of one look
	hintAll      = 8               // in a job of so many ranks all are looked at
)

// hintFS is a rank's file system.
type hintFS struct {
	vfs.FS
	o *Opener
}

func (h hintFS) Open(dir microfs.Ino, path string, flags int, mode uint32) (vfs.File, error) {
	f, err := h.FS.Open(dir, path, flags, mode)
	if err == syscall.ENOENT {
		h.hint(dir, path)
	}
	return f, err
}

func (h hintFS) Stat(dir microfs.Ino, path string, follow bool) (microfs.Attr, error) {
	a, err := h.FS.Stat(dir, path, follow)
	if err == syscall.ENOENT {
		h.hint(dir, path)
	}
	return a, err
}

func (h hintFS) Access(dir microfs.Ino, path string, mode uint32, follow bool) error {
	err := h.FS.Access(dir, path, mode, follow)
	if err == syscall.ENOENT {
		h.hint(dir, path)
	}
	return err
}

func (h hintFS) Mkdir(dir microfs.Ino, path string, mode uint32) error {
	err := h.FS.Mkdir(dir, path, mode)
	if err == syscall.ENOENT {
		h.hint(dir, path)
	}
	return err
}

// hint looks whether another rank has what is missing.
func (h hintFS) hint(dir microfs.Ino, name string) {
	if name == "" || h.o.said.Load() != 0 || h.o.looks.Load() >= maxHints || h.o.looks.Add(1) > maxHints {
		return
	}
	proc, err := h.o.Proc()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), hintPatience)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		h.o.Process.Guard("a look at the files of other ranks", func() {
			missing := h.missing(dir, name)
			if missing == "" {
				return
			}
			if who := h.o.rankWith(ctx, proc, missing); who != "" && h.o.said.Swap(1) == 0 {
				h.o.Logf("%s%s is not there for rank %d; %s: each rank has files of its own",
					strings.TrimRight(h.o.Config.Mount, "/"), missing, proc.Rank, who)
			}
		})
	}()
	select {
	case <-done:
	case <-ctx.Done(): // it ends by itself
	}
}

// missing returns the part of a path, from the root, up to what is missing.
func (h hintFS) missing(dir microfs.Ino, name string) string {
	start, err := h.FS.PathOf(dir)
	if err != nil {
		return ""
	}
	at := "/"
	name = path.Join(start, name)
	for _, part := range strings.Split(strings.Trim(name, "/"), "/") {
		at = path.Join(at, part)
		if _, err := h.FS.Stat(microfs.RootIno, at, true); errors.Is(err, syscall.ENOENT) {
			return at
		} else if err != nil {
			return ""
		}
	}
	return ""
}

// rankWith names a rank that has a path, or the job script.
func (o *Opener) rankWith(ctx context.Context, proc store.Proc, name string) string {
	cfg := *o.Config
	cfg.Timeout = hintPatience
	for _, rank := range ranksToSearch(proc) {
		if ctx.Err() != nil {
			return ""
		}
		p, err := store.Open(ctx, &cfg, store.Proc{Rank: rank, Size: proc.Size}, store.Options{ReadOnly: true})
		if err != nil {
			continue // it has written nothing, perhaps
		}
		a, err := p.FS.Stat(microfs.RootIno, name, false)
		_ = p.Close() // it was only read
		switch {
		case err != nil:
		case rank == parttable.Singleton && a.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		case rank == parttable.Singleton:
			return "a process without a launcher, such as the job script, has it"
		default:
			return fmt.Sprintf("rank %d has it", rank)
		}
	}
	return ""
}

// ranksToSearch are the ranks to look at: all of a small job, else those that are most likely to have
// what another one lacks.
func ranksToSearch(proc store.Proc) []int {
	list := []int{parttable.Singleton}
	add := func(rank int) {
		if rank != proc.Rank && !slices.Contains(list, rank) {
			list = append(list, rank)
		}
	}
	add(0)
	if proc.Size <= hintAll {
		for rank := range proc.Size {
			add(rank)
		}
	}
	add((proc.Rank + 1) % proc.Size)
	add((proc.Rank + proc.Size - 1) % proc.Size)
	return list
}
