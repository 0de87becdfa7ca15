package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// A Checkpoint is the files of one step over all ranks.
type Checkpoint struct {
	Step  int
	Size  nvmf.Bytes
	Begun time.Time // when the first of its files was created
	Ended time.Time // when the last of them last changed
	// Missing names what keeps it from being complete: files that are not
	// there or that their writer has not closed.
	Missing []string
}

// Complete reports whether every rank holds its part, closed.
func (c *Checkpoint) Complete() bool { return len(c.Missing) == 0 }

// Took is how long it took to write.
func (c *Checkpoint) Took() time.Duration { return c.Ended.Sub(c.Begun) }

// A Naming returns the names of the files that a rank of an application
// writes at a step, in the root of its partition.
type Naming func(step, rank int) []string

// Survey reads from outside which checkpoints the store holds, oldest first.
// It finds steps by the first number between dots in the names.
func Survey(ctx context.Context, cfg *config.Config, ranks int, names Naming) ([]Checkpoint, error) {
	files := make([]map[string]microfs.Attr, ranks)
	steps := make(map[int]bool)
	for rank := range files {
		var err error
		if files[rank], err = readRoot(ctx, cfg, store.Place{Rank: rank, Size: ranks}); err != nil {
			return nil, fmt.Errorf("rank %d: %w", rank, err)
		}
		for name := range files[rank] {
			if step, ok := stepOf(name); ok {
				steps[step] = true
			}
		}
	}
	var all []Checkpoint
	for _, step := range slices.Sorted(maps.Keys(steps)) {
		all = append(all, assemble(step, files, names))
	}
	return all, nil
}

func assemble(step int, files []map[string]microfs.Attr, names Naming) Checkpoint {
	c := Checkpoint{Step: step}
	for rank, have := range files {
		for _, name := range names(step, rank) {
			a, ok := have[name]
			if !ok || !a.Closed {
				c.Missing = append(c.Missing, fmt.Sprintf("%s of rank %d", name, rank))
			}
			if !ok {
				continue
			}
			c.Size += nvmf.Bytes(a.Size)
			if c.Begun.IsZero() || a.Btime.Before(c.Begun) {
				c.Begun = a.Btime
			}
			for _, t := range []time.Time{a.Mtime, a.Ctime} {
				if t.After(c.Ended) {
					c.Ended = t
				}
			}
		}
	}
	return c
}

// Newest returns the last complete checkpoint.
func Newest(all []Checkpoint) (Checkpoint, error) {
	for _, c := range slices.Backward(all) {
		if c.Complete() {
			return c, nil
		}
	}
	return Checkpoint{}, errors.New("no checkpoint is complete in every rank")
}

// readRoot returns the files in the root of a partition; none where it was
// never written.
func readRoot(ctx context.Context, cfg *config.Config, place store.Place) (map[string]microfs.Attr, error) {
	files := make(map[string]microfs.Attr)
	p, err := store.Open(ctx, cfg, place, store.Options{ReadOnly: true})
	if errors.Is(err, microfs.ErrUnformatted) {
		return files, nil
	}
	if err != nil {
		return nil, err
	}
	defer p.Close()
	root, err := p.FS.Open(microfs.RootIno, "/", 0, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for after := ""; ; {
		names, err := root.ReadDir(after, 1000)
		if err != nil || len(names) == 0 {
			return files, err
		}
		for _, d := range names {
			after = d.Name
			if files[d.Name], err = p.FS.Stat(microfs.RootIno, d.Name, false); err != nil {
				return nil, err
			}
		}
	}
}

func stepOf(name string) (int, bool) {
	_, rest, _ := strings.Cut(name, ".")
	digits, _, _ := strings.Cut(rest, ".")
	step, err := strconv.Atoi(digits)
	return step, err == nil && step >= 0
}
