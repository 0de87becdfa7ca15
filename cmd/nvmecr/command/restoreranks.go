package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sync/errgroup"

	"nvmecr/drain"
)

// startRanks starts this command once for each rank of the set, and has all of them close their files when all have written them.
func startRanks(ctx context.Context, set *drain.Set, stderr io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ready, say, err := os.Pipe() // each rank says a byte
	if err != nil {
		return err
	}
	wait, let, err := os.Pipe() // and waits for one
	if err != nil {
		return errors.Join(err, ready.Close(), say.Close())
	}
	defer ready.Close()
	defer let.Close()
	var group errgroup.Group // one that fails leaves it to the others to remove what they have written
	for rank := range set.Ranks {
		c := exec.CommandContext(ctx, self, "restore", "--checkpoint", set.Name, "--together", set.Pattern)
		c.Env = append(os.Environ(), fmt.Sprintf("PMI_RANK=%d", rank), fmt.Sprintf("PMI_SIZE=%d", set.Ranks))
		c.Stderr, c.ExtraFiles = stderr, []*os.File{say, wait}
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
	_, short := io.ReadFull(ready, make([]byte, set.Ranks)) // until all are ready, or all have ended
	if err == nil && short == nil {
		_, err = let.Write(make([]byte, set.Ranks))
	}
	return errors.Join(err, let.Close(), group.Wait())
}

// together waits until all ranks that startRanks has started have written their files.
func together() error {
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
