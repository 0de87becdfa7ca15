package main

import (
	"errors"

	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// openForWriting opens the partition, or leaves it to the process that has it
// and serves this one: the shell that has begun the rank's output, for example. One that
// is alone where only ranks can write goes on reading.
func openForWriting() error {
	err := process.OpenForWriting()
	var elsewhere *posixshim.RedirectError
	if errors.As(err, &elsewhere) || errors.Is(err, store.ErrNoSingletonPartition) {
		return nil
	}
	return err
}
