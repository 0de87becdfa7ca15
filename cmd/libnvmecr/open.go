package main

import (
	"errors"

	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// openForWriting opens the partition for writing. It is no error if another process of the rank has the partition and makes the
// calls of this one, such as the shell that has opened the rank's output. It is no error either if this process is not a rank and
// the store has no partition for such processes: it can read.
func openForWriting() error {
	err := process.OpenForWriting()
	var elsewhere *posixshim.RedirectError
	if errors.As(err, &elsewhere) || errors.Is(err, store.ErrNoSingletonPartition) {
		return nil
	}
	return err
}
