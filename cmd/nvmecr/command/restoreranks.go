package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"nvmecr/drain"
	"nvmecr/internal/config"
	"nvmecr/internal/store"
)

// startRanks starts this command once for each rank of the set, and passes it the indices of the files to restore.
// The ranks close their files when all ranks have written theirs.
func startRanks(ctx context.Context, from origin, stderr io.Writer) error {
	set := from.set
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ready, say, err := os.Pipe() // each rank writes a byte when it has written its files
	if err != nil {
		return err
	}
	wait, let, err := os.Pipe() // then each rank reads a byte, and closes its files
	if err != nil {
		return errors.Join(err, ready.Close(), say.Close())
	}
	defer ready.Close()
	defer let.Close()
	need, err := needFile(&needed{set.Pattern, set.Ended, set.Division, set.Code, from.need})
	if err != nil {
		return errors.Join(err, say.Close(), wait.Close())
	}
	defer need.Close()
	var group errgroup.Group // without a context: after an error the other ranks have to remove their files
	for rank := range set.Ranks {
		c := exec.CommandContext(ctx, self, "restore", "--from", from.level, "--checkpoint", set.Name, "--together", set.Pattern)
		c.Env = append(os.Environ(), fmt.Sprintf("PMI_RANK=%d", rank), fmt.Sprintf("PMI_SIZE=%d", set.Ranks))
		c.Stderr, c.ExtraFiles = stderr, []*os.File{say, wait, need}
		if err = c.Start(); err != nil {
			break
		}
		group.Go(func() error {
			if err := c.Wait(); err != nil {
				return fmt.Errorf("rank %d: %w", rank, err)
			}
			return nil
		})
	}
	err = errors.Join(err, say.Close(), wait.Close())
	_, short := io.ReadFull(ready, make([]byte, set.Ranks)) // returns when all ranks are ready, or all have ended
	if err == nil && short == nil {
		_, err = let.Write(make([]byte, set.Ranks))
	}
	return errors.Join(err, let.Close(), group.Wait())
}

// A needed tells a rank which files of which set to restore. A level can have several sets of one name if a checkpoint was written again.
type needed struct {
	Pattern  string
	Ended    time.Time
	Division drain.Sum
	Code     drain.Code
	Files    []int // indices in the set; nil for all
}

// of reports whether the files are of the set.
func (n *needed) of(s *drain.Set) bool {
	return s != nil && s.Pattern == n.Pattern && s.Ended.Equal(n.Ended) && s.Division == n.Division && s.Code == n.Code
}

// needFile returns an anonymous file with need.
func needFile(need *needed) (*os.File, error) {
	fd, err := unix.MemfdCreate("need", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "need")
	if err := json.NewEncoder(f).Encode(need); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// restorePart runs in a rank that startRanks has started. It restores the rank's part of the needed files.
func (o *restoreOptions) restorePart(cmd *cobra.Command, cfg *config.Config, proc store.Proc, pattern string) error {
	var need needed
	f := io.NewSectionReader(os.NewFile(5, "need"), 0, 1<<62) // ExtraFiles[2]; the ranks share its offset, so read by ReadAt
	if err := json.NewDecoder(f).Decode(&need); err != nil {
		return err
	}
	o.areas = o.areas || o.from == levelCopies
	drained, err := o.wholeDrained()
	if err != nil {
		return err
	}
	for _, s := range drain.Merge(nil, nil, o.copiedSets(cmd.Context()), drained, o.patternInside(pattern)) {
		for i := range s.Checkpoints {
			c := &s.Checkpoints[i]
			switch {
			case c.Name != o.name:
			case o.from == levelCopies && need.of(c.Copied):
				return o.share(cmd.Context(), cfg, proc, origin{level: levelCopies, set: c.Copied, need: need.Files, get: o.copies.Get})
			case o.from == levelSecond && need.of(c.Drained):
				return o.share(cmd.Context(), cfg, proc, origin{level: levelSecond, set: c.Drained, need: need.Files, get: o.level.Get})
			}
		}
	}
	return fmt.Errorf("checkpoint %s of %s is not on %s any more", o.name, pattern, o.from)
}

// waitForRanks waits until all ranks of startRanks have written their files.
func waitForRanks() error {
	say, wait := os.NewFile(3, "ready"), os.NewFile(4, "wait") // ExtraFiles
	if _, err := say.Write([]byte{0}); err != nil {
		return err
	}
	if err := say.Close(); err != nil {
		return err
	}
	if _, err := wait.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("another rank has failed: %w", err)
	}
	return nil
}
