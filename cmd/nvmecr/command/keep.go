package command

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"nvmecr/checkpoint"
	"nvmecr/drain"
	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A keeper says which checkpoints stay: so many, or, where auto is set, as many as there is space for beside one more. The newest complete one
// always does. None at all goes if it is neither.
type keeper struct {
	count int
	auto  bool
}

func parseKeep(text string) (k keeper, err error) {
	switch {
	case text == "":
		return k, nil
	case text == "auto":
		return keeper{auto: true}, nil
	}
	if k.count, err = strconv.Atoi(text); err != nil || k.count < 1 {
		return k, fmt.Errorf("%q is neither a number of checkpoints to keep, nor auto", text)
	}
	return k, nil
}

// tidy removes checkpoints from the tree of a run, the oldest complete one first.
// Before the job has ended what may still be written does not count, and stays.
func (k keeper) tidy(s *drain.Series, ended bool) error {
	stored := slices.DeleteFunc(s.Stored(), func(c *drain.Checkpoint) bool { return !ended && !quiet(c) })
	if k == (keeper{}) || len(stored) < 2 || k.count > 0 && len(stored) <= k.count {
		return nil
	}
	cfg, err := config.FromEnv(os.Getenv)
	if err != nil {
		return err
	}
	m, err := openInRun(cfg, store.Proc{Rank: 0, Size: 1}, func(string, ...any) {})
	if err != nil {
		return err
	}
	newest, have := stored[len(stored)-1], freeOfRanks(m.FS)
	for _, c := range stored[:len(stored)-1] {
		if k.count > 0 && len(stored) <= k.count || k.auto && have > spare*newest.Size() {
			break
		}
		if err = removeFiles(m.FS, s.Pattern, c.Files); err != nil {
			break
		}
		stored, have = stored[1:], have+c.Size() // ranks give it back when they next look
	}
	return errors.Join(err, m.Close())
}

// spare is the space that auto leaves, in checkpoints of the size of the newest: no rank has more than its part of it, and the next one
// may be larger.
const spare = 2

// freeOfRanks is what is free of the store without what processes that are no ranks, as this one, have for themselves.
func freeOfRanks(files vfs.FS) int64 {
	st := files.StatFS()
	return int64(st.Free-min(st.Avail, st.Free)) * int64(st.Hugeblock)
}

// removeFiles removes the files of a checkpoint, and directories of it that are empty then.
func removeFiles(files vfs.FS, pattern string, list []checkpoint.File) error {
	shared := 1 + strings.Count(strings.TrimPrefix(pattern[:strings.IndexByte(pattern, '{')], "/"), "/") // directories above it, with the root
	for _, f := range list {
		if err := files.Unlink(microfs.RootIno, f.Path); err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		for dir := path.Dir(f.Path); strings.Count(dir, "/") >= shared && dir != "/"; dir = path.Dir(dir) {
			if files.Rmdir(microfs.RootIno, dir) != nil {
				break // it has more than the checkpoint, for now
			}
		}
	}
	return nil
}
