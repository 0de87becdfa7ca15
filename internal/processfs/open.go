package processfs

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/posixshim"
)

// Open opens the file system, for posixshim.New.
func (o *Opener) Open(write bool) (*vfs.Mount, error) {
	// A process of another user takes another lock, and would be a second writer.
	if uid, other := owner.OtherUser(store.LockGroup(o.Config.Run)); other {
		return nil, &posixshim.OtherUserError{Mount: o.Config.Mount, Self: uint32(unix.Geteuid()), Run: uid}
	}
	p, err := o.Proc()
	if err != nil {
		return nil, err
	}
	opts := store.Options{ReadOnly: !write, OnYield: func(*store.Partition) bool { return o.Process.Yield() }}
	if o.Formatted != nil {
		opts.Formatted = o.Formatted()
	}
	if o.Config.Log != config.LogError {
		opts.Logf = o.Logf
	}
	if write {
		opts.Keep = o.Process.Kept()
		if opts.Note, err = o.Process.Address(); err != nil && opts.Logf != nil {
			opts.Logf("other processes of this rank cannot be served: %v", err)
		}
	}
	var m *vfs.Mount
	switch {
	case o.Config.View == config.ViewJob:
		m, err = o.openTree(p, opts)
	case p.Singleton():
		m, err = o.openSingleton(p, opts)
	default:
		m, err = o.openRank(p, opts)
	}
	var busy *owner.BusyError
	if errors.As(err, &busy) && busy.Note != "" {
		return nil, &posixshim.RedirectError{Address: busy.Note, Err: err}
	}
	return m, err
}

// openRank opens the partition of a rank. A partition that was never written is opened for writing, which formats it.
func (o *Opener) openRank(p store.Proc, opts store.Options) (*vfs.Mount, error) {
	part, err := o.openWaiting(p, opts)
	if opts.ReadOnly && (errors.Is(err, parttable.ErrNoTable) || errors.Is(err, microfs.ErrUnformatted) || errors.Is(err, store.ErrUndivided)) {
		return o.Open(true)
	}
	if err != nil {
		return nil, err
	}
	return o.withDirectories(part, opts)
}

func mountOf(part *store.Partition, fs vfs.FS, opts store.Options) *vfs.Mount {
	return &vfs.Mount{FS: fs, Writable: !opts.ReadOnly, Current: part.Current, Close: part.Close}
}

// reopenPause is the pause between two attempts to reach a target.
const reopenPause = 100 * time.Millisecond

// openWaiting opens the partition. It waits for a target that cannot be reached, like all later calls: nvmecr run has reached all
// targets.
func (o *Opener) openWaiting(p store.Proc, opts store.Options) (*store.Partition, error) {
	for begin := time.Now(); ; time.Sleep(reopenPause) {
		part, err := store.Open(context.Background(), o.Config, p, opts)
		if !store.Unavailable(err) || time.Since(begin)+reopenPause > o.Config.Timeout {
			return part, err
		}
		if opts.Logf != nil {
			opts.Logf("waiting for a target: %v", err)
		}
	}
}
