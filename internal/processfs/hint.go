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

// A program that shares files between ranks finds files missing. The first time that another rank has a missing file, a message says
// so. The search mounts other partitions for reading. So it is made a few times only, in few partitions, with a short time-out, and
// never if no file is missing.
const (
	maxHints     = 3               // searches of a process
	hintPatience = 2 * time.Second // time-out of a search
	hintAll      = 8               // a job of at most so many ranks is searched completely
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

// hint searches other ranks for a missing file.
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
	case <-ctx.Done(): // the search ends by itself
	}
}

// missing returns the path, from the root, up to its first missing name.
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

// rankWith names a rank, or the job script, that has a path.
func (o *Opener) rankWith(ctx context.Context, proc store.Proc, name string) string {
	cfg := *o.Config
	cfg.Timeout = hintPatience
	for _, rank := range ranksToSearch(proc) {
		if ctx.Err() != nil {
			return ""
		}
		p, err := store.Open(ctx, &cfg, store.Proc{Rank: rank, Size: proc.Size}, store.Options{ReadOnly: true})
		if err != nil {
			continue // it may have written nothing
		}
		a, err := p.FS.Stat(microfs.RootIno, name, false)
		_ = p.Close() // only read
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

// ranksToSearch returns the ranks to search: all ranks of a small job, otherwise those that are most likely to have the file.
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
