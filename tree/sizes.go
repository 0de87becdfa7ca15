package tree

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/microfs"
)

// The numbers of ranks of a job are recorded in the names of empty files in the partition of rank 0: the time from
// which a number applies, and the number. They tell how many ranks have written a checkpoint, whatever the size of
// earlier and later jobs.
const (
	sizePrefix = "ranks-"
	sizeName   = sizePrefix + "%016x-%x" // sorts by time
)

// A Size is the number of ranks of a job from a time on, until the time of the next Size.
type Size struct {
	Since time.Time
	Ranks int
}

// Sizes returns the sizes recorded in the partition of rank 0, oldest first.
func Sizes(part *microfs.FS) (list []Size, err error) {
	root, err := part.OpenIno(microfs.RootIno, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("looking for how many ranks the job has had: %w", err)
	}
	defer root.Close() // only read
	names, err := root.ReadDir(sizePrefix, 0)
	for _, n := range names {
		var since uint64
		var ranks int
		if _, err := fmt.Sscanf(n.Name, sizeName, &since, &ranks); err == nil && ranks > 0 {
			list = append(list, Size{time.Unix(0, int64(since)), ranks})
		}
	}
	return list, err
}

// NoteSize records in the partition of rank 0 the number of ranks from now on.
func NoteSize(part *microfs.FS, ranks int) error {
	sizes, err := Sizes(part)
	if err != nil || len(sizes) > 0 && sizes[len(sizes)-1].Ranks == ranks {
		return err
	}
	name := fmt.Sprintf(sizeName, uint64(time.Now().UnixNano()), ranks)
	f, err := part.Open(microfs.RootIno, name, unix.O_WRONLY|unix.O_CREAT, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil && !errors.Is(err, syscall.ENOSPC) { // a later write reports that the store is full
		return fmt.Errorf("noting that the job has %d ranks: %w", ranks, err)
	}
	return nil
}
