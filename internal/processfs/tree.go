package processfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/tree"
	"nvmecr/tree/index"
	"nvmecr/tree/wire"
)

// openTree opens the tree of the job. A rank that writes has its partition; other processes write through the index.
func (o *Opener) openTree(p store.Proc, opts store.Options) (*vfs.Mount, error) {
	o.prepareViews()
	if p.Singleton() || opts.ReadOnly {
		client, err := o.dialIndex(wire.NoPartition)
		if err != nil {
			return nil, err
		}
		return o.treeMount(client, tree.Options{Available: o.spaceFor(p, client)}, nil, p.Singleton())
	}
	if err := o.grow(p); err != nil {
		return nil, err
	}
	part, err := o.openWaiting(p, opts)
	if err != nil {
		return nil, err
	}
	if p.Rank == 0 {
		if err := tree.NoteSize(part.FS, p.Size); err != nil {
			return nil, errors.Join(err, part.Close())
		}
	}
	// Only now, since connecting with a partition ends its previous client.
	client, err := o.dialIndex(uint32(p.Rank))
	if err != nil {
		return nil, errors.Join(err, part.Close())
	}
	return o.treeMount(client, tree.Options{Own: part.FS}, part.Close, true)
}

// prepareViews prepares to read the partitions of others.
func (o *Opener) prepareViews() {
	o.viewing.Do(func() { o.views = store.NewViews(o.Config, o.Logf) })
}

// grow creates partitions for all ranks of the job.
func (o *Opener) grow(p store.Proc) error {
	client, err := o.dialIndex(wire.NoPartition)
	if err != nil {
		return err
	}
	_, err = client.Partitions(uint32(p.Size))
	return errors.Join(err, client.Goodbye())
}

// spaceFor returns tree.Options.Available for a process that has not opened its rank's partition.
func (o *Opener) spaceFor(p store.Proc, client *tree.Client) func(total, free nvmf.Bytes) nvmf.Bytes {
	if p.Singleton() {
		return nil
	}
	partitions, _ := client.Partitions(0) // the client knows the number
	return func(total, free nvmf.Bytes) nvmf.Bytes {
		if partitions > 1 {
			if fs, err := o.views.Rank(context.Background(), p.Rank, time.Now()); err == nil {
				s := fs.StatFS()
				return nvmf.Bytes(s.Free) * s.Hugeblock
			}
		}
		return min(free, total/nvmf.Bytes(p.Size)) // never written: all ranks will get equal parts
	}
}

// treeMount returns the tree over a connection. It owns the connection, and closePart, which closes a partition or is nil.
func (o *Opener) treeMount(client *tree.Client, to tree.Options, closePart func() error, writable bool) (*vfs.Mount, error) {
	to.Readers, to.Logf = readers{o.views}, o.Logf
	if closePart == nil {
		closePart = func() error { return nil }
	}
	fs, err := tree.New(client, to)
	if err != nil {
		return nil, errors.Join(err, client.Close(), closePart())
	}
	return &vfs.Mount{FS: fs, Writable: writable, Tree: true, Current: func() bool { return true }, Close: func() error {
		return errors.Join(fs.Close(), closePart())
	}}, nil
}

// readers provides the partitions of others.
type readers struct{ views *store.Views }

func (r readers) Reader(partition uint32, since time.Time) (*microfs.FS, error) {
	fs, err := r.views.Rank(context.Background(), int(partition), since)
	if err != nil {
		return nil, fmt.Errorf("what rank %d has written: %w", partition, err)
	}
	return fs, nil
}

// ReadTree opens the tree of a store for reading, from outside of any run: acknowledged data, whether a job is running or not. begin,
// unless nil, is called first in the goroutine that reads data of the index's partition.
func ReadTree(ctx context.Context, cfg *config.Config, begin func(), logf func(format string, args ...any)) (*vfs.Mount, error) {
	part, err := store.Open(ctx, cfg, store.Proc{Rank: parttable.Singleton}, store.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	views := store.NewViews(cfg, logf)
	x := index.New(part.FS, index.Options{Format: tree.Format, Timeout: cfg.Timeout, Logf: logf, Space: views.Space})
	ours, theirs := net.Pipe()
	go func() {
		if begin != nil {
			begin()
		}
		_ = x.Serve(theirs, nil) // this process is the only client
	}()
	client, err := tree.Connect(ours, wire.Hello{Format: tree.Format, Partition: wire.NoPartition, PID: uint32(os.Getpid())}, cfg.Timeout)
	if err != nil {
		x.Close()
		return nil, errors.Join(err, part.Close())
	}
	closing := func() error {
		err := client.Goodbye()
		x.Close()
		views.Close()
		return errors.Join(err, part.Close())
	}
	fs, err := tree.New(client, tree.Options{Readers: readers{views}, Logf: logf})
	if err != nil {
		return nil, errors.Join(err, closing())
	}
	return &vfs.Mount{FS: fs, Current: part.Current, Close: closing}, nil
}
