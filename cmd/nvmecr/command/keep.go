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
	"time"

	"nvmecr/checkpoint"
	"nvmecr/drain"
	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A retention says how many checkpoints stay in the store: a number, or with auto as many as leave space for further
// ones. The newest complete one always stays. The zero value keeps all.
type retention struct {
	count int
	auto  bool
}

func parseRetention(text string) (k retention, err error) {
	switch {
	case text == "":
		return k, nil
	case text == "auto":
		return retention{auto: true}, nil
	}
	if k.count, err = strconv.Atoi(text); err != nil || k.count < 1 {
		return k, fmt.Errorf("%q is neither a number of checkpoints to keep, nor auto", text)
	}
	return k, nil
}

// apply removes checkpoints from the tree of a run: incomplete ones that were given up, and the oldest complete ones.
// Before the end of the job, a checkpoint that may still be written to neither counts nor is removed. mayRemove is asked
// before anything is removed.
func (k retention) apply(s *drain.Series, ended bool, mayRemove func(*drain.Series) bool) error {
	stored := slices.DeleteFunc(s.Stored(), func(c *drain.Checkpoint) bool { return !ended && !settled(c) })
	givenUp := k.givenUp(s, stored, ended)
	if k == (retention{}) || len(givenUp) == 0 && (len(stored) < 2 || k.count > 0 && len(stored) <= k.count) {
		return nil
	}
	cfg, err := config.FromEnv(os.Getenv)
	if err != nil {
		return err
	}
	m, err := openMount(cfg, store.Proc{Rank: 0, Size: 1}, func(string, ...any) {})
	if err != nil {
		return err
	}
	have := freeOfRanks(m.FS)
	for _, c := range givenUp {
		have += c.Size()
	}
	for _, c := range append(givenUp, k.surplus(s.Pattern, stored, have)...) {
		if !mayRemove(s) {
			break
		}
		if err = removeFiles(m.FS, s.Pattern, c.Files); err != nil {
			break
		}
	}
	return errors.Join(err, m.Close())
}

// givenUp returns the incomplete checkpoints that a job no longer writes: they have smaller numbers than each of the
// newest complete ones that stay, and none of their files has been changed since these were written. stored are the
// complete ones, oldest first. ended is true after the end of the job.
func (k retention) givenUp(s *drain.Series, stored []*drain.Checkpoint, ended bool) (list []*drain.Checkpoint) {
	n := max(k.count, 1)
	if len(stored) < n {
		return nil
	}
	for i := range s.Checkpoints {
		c := &s.Checkpoints[i]
		notAfter := func(newer *drain.Checkpoint) bool { return !checkpoint.Follows(s.Pattern, &newer.Set, &c.Set) }
		if c.Stored && !c.Complete() && (ended || settled(c)) && !slices.ContainsFunc(stored[len(stored)-n:], notAfter) {
			list = append(list, c)
		}
	}
	return list
}

// surplus returns the complete checkpoints to remove. stored are the complete ones, oldest first, and have is the free
// space. In addition to the newest ones two stay, since either may be the newest if a clock is wrong: the one with the
// greatest number, and the one with the latest time.
func (k retention) surplus(pattern string, stored []*drain.Checkpoint, have int64) (list []*drain.Checkpoint) {
	newest, count := stored[len(stored)-1], len(stored)
	sets := make([]checkpoint.Set, len(stored))
	var latest time.Time
	for i, c := range stored {
		sets[i] = c.Set
		if at := c.Written(); at.After(latest) {
			latest = at
		}
	}
	greatest := checkpoint.Greatest(pattern, sets)
	for i, c := range stored[:len(stored)-1] {
		switch {
		case k.count > 0 && count <= k.count || k.auto && have > spare*newest.Size():
			return list
		case i == greatest:
			count--
		case c.Written().Equal(latest) && !newest.Written().Equal(latest):
			count--
		default:
			list = append(list, c)
			count, have = count-1, have+c.Size() // approximate: ranks free the blocks later, when they learn of the removal
		}
	}
	return list
}

// findRemovable finds the patterns of which old checkpoints are removed: that of the user, or those whose files are checkpoints beyond doubt.
func (f *follower) findRemovable(list []drain.Series) {
	series := plainSeries(list)
	if f.pattern == "" {
		series = checkpoint.Evident(series)
	}
	f.removable = map[string]bool{}
	for i := range series {
		f.removable[series[i].Pattern] = true
	}
}

// mayRemove reports whether old checkpoints of the series are removed. If not, it says so once.
func (f *follower) mayRemove(s *drain.Series) bool {
	if stem := checkpoint.Stem(s.Pattern); !f.removable[s.Pattern] && !f.spared[stem] {
		f.spared[stem] = true
		fmt.Fprintf(f.cmd.ErrOrStderr(), "nvmecr: --keep removes no file of %s, since the names do not say that these are checkpoints: "+
			"if they are, name them with --level2-pattern\n", printable(s.Pattern))
	}
	return f.removable[s.Pattern]
}

// retain is drainOptions.retain for patterns of which old checkpoints are removed.
func (f *follower) retain(level setLevel, pattern string, last *drain.Set) error {
	if f.keep == 0 || !f.removable[pattern] {
		return nil
	}
	return f.drainOptions.retain(level, pattern, last)
}

// spare is the space that auto leaves free, as a multiple of the newest checkpoint. The free space of a single rank
// may be less than its share, and the next checkpoint may be larger.
const spare = 2

// freeOfRanks returns the free space in the partitions of ranks, without the singleton partition, which processes
// that are not ranks use.
func freeOfRanks(files vfs.FS) int64 {
	st := files.StatFS()
	return int64(st.Free-min(st.Avail, st.Free)) * int64(st.Hugeblock)
}

// removeFiles removes the files of a checkpoint, and those of its directories that become empty. Files that the job has
// changed since they were listed stay.
func removeFiles(files vfs.FS, pattern string, list []checkpoint.File) error {
	above := strings.TrimPrefix(pattern[:strings.IndexByte(pattern, '{')], "/")
	shared := 1 + strings.Count(above, "/") // depth of the directories above the checkpoint, with the root
	for _, f := range list {
		if a, err := files.Stat(microfs.RootIno, f.Path, false); err == nil && (a.Size != f.Size || !a.Mtime.Equal(f.Modified)) {
			continue
		}
		if err := files.Unlink(microfs.RootIno, f.Path); err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		for dir := path.Dir(f.Path); strings.Count(dir, "/") >= shared && dir != "/"; dir = path.Dir(dir) {
			if files.Rmdir(microfs.RootIno, dir) != nil {
				break // not empty yet
			}
		}
	}
	return nil
}
