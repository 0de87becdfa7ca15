package main

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/posixshim"
)

// open opens this process's file system for a posixshim.Process.
func open(write bool) (*posixshim.Mount, error) {
	// Another user has another lock, and would be a second writer.
	if uid, other := owner.OtherUser(store.LockGroup(opening.cfg.Run)); other {
		return nil, &posixshim.OtherUserError{Mount: opening.cfg.Mount, Self: uint32(unix.Geteuid()), Run: uid}
	}
	p, mapping, err := where()
	if err != nil {
		return nil, err
	}
	opts := store.Options{ReadOnly: !write, Mapping: mapping, OnYield: func(*store.Partition) bool { return process.Yield() }}
	if opening.cfg.Log != config.LogError {
		opts.Logf = complain
	}
	if write {
		if opts.Note, err = process.Address(); err != nil && opts.Logf != nil {
			opts.Logf("other processes of this rank cannot be served: %v", err)
		}
	}
	var m *posixshim.Mount
	if p.Alone() {
		m, err = openAlone(p, opts)
	} else {
		m, err = openRank(p, opts)
	}
	var busy *owner.BusyError
	if errors.As(err, &busy) && busy.Note != "" {
		return nil, &posixshim.ElsewhereError{Address: busy.Note, Err: err}
	}
	return m, err
}

// openRank opens the partition of a rank. One that nobody has written yet is opened for
// writing, which formats it: then it is empty.
func openRank(p store.Place, opts store.Options) (*posixshim.Mount, error) {
	part, err := openWaiting(p, opts)
	if opts.ReadOnly && (errors.Is(err, parttable.ErrNoTable) || errors.Is(err, microfs.ErrUnformatted) || errors.Is(err, store.ErrUndivided)) {
		return open(true)
	}
	if err != nil {
		return nil, err
	}
	return withDirectories(part, opts)
}

func mountOf(part *store.Partition, fs posixshim.FS, opts store.Options) *posixshim.Mount {
	return &posixshim.Mount{FS: fs, Writable: !opts.ReadOnly, Current: part.Current, Close: part.Close}
}

// reopenPause is between two attempts to reach a target.
const reopenPause = 100 * time.Millisecond

// openWaiting opens the partition. A target that cannot be reached is waited
// for, as it is by every call later on: it was there when nvmecr run looked. But
// what it has half formatted is left to the next run.
func openWaiting(p store.Place, opts store.Options) (*store.Partition, error) {
	for begin := time.Now(); ; time.Sleep(reopenPause) {
		part, err := store.Open(context.Background(), opening.cfg, p, opts)
		var status *nvmf.StatusError
		away := errors.Is(err, nvmf.ErrUnreachable) || errors.Is(err, nvmf.ErrConnectionLost) ||
			errors.As(err, &status) && status.Busy()
		if !away || errors.Is(err, store.ErrHalfFormatted) || time.Since(begin)+reopenPause > opening.cfg.Timeout {
			return part, err
		}
		if opts.Logf != nil {
			opts.Logf("waiting for a target: %v", err)
		}
	}
}

// openForWriting opens the partition, or leaves it to the process that has it
// and serves this one: the shell that has begun the rank's output, for example. One that
// is alone where only ranks can write goes on reading.
func openForWriting() error {
	err := process.OpenForWriting()
	var elsewhere *posixshim.ElsewhereError
	if errors.As(err, &elsewhere) || errors.Is(err, store.ErrNoSolo) {
		return nil
	}
	return err
}
