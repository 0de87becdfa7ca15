package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// A testbed has the targets of an experiment, and the sides of a comparison that use them. Close
// ends all of them.
type testbed struct {
	env     *Env
	store   []nvmf.TransportID // namespaces of the application's store
	raw     *nvmf.TransportID  // namespace for the raw side; nil: none
	why     string             // reason why raw is nil
	closers []io.Closer
}

// testbed prepares targets for checkpoints of the given size.
func (e *Env) testbed(ctx context.Context, size nvmf.Bytes) (*testbed, error) {
	b := &testbed{env: e, store: e.Config.Targets}
	if e.RawTarget != "" {
		id, err := nvmf.ParseTransportID(e.RawTarget)
		if err != nil {
			return nil, fmt.Errorf("raw target: %w", err)
		}
		b.raw = &id
	}
	if len(b.store) > 0 {
		b.why = "the targets given hold the store: name a namespace that may be overwritten with --raw-target"
		return b, nil
	}
	memory := fmt.Sprintf("mem:%d", uint64(e.namespace(size)))
	t, err := e.startTarget(ctx, memory, memory)
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, t)
	for i, id := range t.ids {
		e.progress("touching the target's memory", i, len(t.ids))
		if err := touch(ctx, id); err != nil {
			_ = b.Close() // err is the cause
			return nil, err
		}
	}
	b.store = t.ids[:1]
	if b.raw == nil {
		b.raw = &t.ids[1]
	}
	return b, nil
}

// Close stops everything that was started, in reverse order.
func (b *testbed) Close() error { return closeAll(b.closers) }

// application starts the application on the testbed.
func (b *testbed) application(ctx context.Context, settings ...string) (*application, error) {
	a, err := b.env.startApplication(ctx, b.store, settings...)
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, a)
	return a, nil
}

// besideRaw starts the application and the raw ranks.
func (b *testbed) besideRaw(ctx context.Context, settings ...string) (*application, *side, error) {
	a, err := b.application(ctx, settings...)
	if err != nil {
		return nil, nil, err
	}
	raw, err := b.rawSide(ctx)
	return a, raw, err
}

// rawSide starts the raw ranks. It returns nil if they have no namespace.
func (b *testbed) rawSide(ctx context.Context) (*side, error) {
	if b.raw == nil {
		return nil, nil
	}
	r, err := b.env.startRaw(ctx, *b.raw)
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, r)
	return r.side(rawName), nil
}

// socketSide starts the sockets baseline, with memory as large as a namespace. It
// returns nil if the target is on another host.
func (b *testbed) socketSide(ctx context.Context, size nvmf.Bytes) (*side, error) {
	if b.env.remote() || len(b.env.Config.Targets) > 0 {
		return nil, nil
	}
	s, err := b.env.startSockets(ctx, b.env.Ranks, b.env.namespace(size))
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, s)
	return s.side(socketsName), nil
}

// peerSide returns a side on which the processes of the application write to a new
// directory of a peer. If the ranks are on other hosts, they create the directory.
func (b *testbed) peerSide(ctx context.Context, a *application, p Peer) (*side, error) {
	if b.env.remote() {
		run := strings.TrimPrefix(filepath.Base(b.env.scratch), claimPrefix)
		return b.directorySide(ctx, a, p.Name, filepath.Join(p.Dir, "nvmecr-ranks-"+run))
	}
	dir, err := b.env.claims.in(p.Dir)
	if err != nil {
		return nil, fmt.Errorf("peer %s: %w", p.Name, err)
	}
	return b.directorySide(ctx, a, p.Name, dir)
}

// directorySide returns a side on which the processes of the application write to a
// directory, which they create if necessary.
func (b *testbed) directorySide(ctx context.Context, a *application, name, dir string) (*side, error) {
	if _, err := a.group.DoAll(ctx, "mkdir "+dir); err != nil {
		return nil, fmt.Errorf("peer %s: %w", name, err)
	}
	s := &side{name: name, group: a.group, path: checkpoints(dir), memory: !b.env.remote() && inMemory(dir)}
	if !b.env.remote() && os.Geteuid() == 0 {
		s.cold = dropCaches
	}
	b.closers = append(b.closers, closer(func() error { return b.clear(ctx, s, dir) }))
	return s, nil
}

// inMemory reports whether a directory's files are only in the memory of this host.
func inMemory(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && (fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC)
}

// loopbackSide returns a side on which the processes of the application write to a file
// system on a loop device. It returns nil and the reason if that is not possible.
func (b *testbed) loopbackSide(ctx context.Context, a *application, kind string) (*side, string, error) {
	return b.mountedSide(ctx, a, kind+" on a loop device", func(size nvmf.Bytes) (*mountpoint, error) { return b.env.startLoopback(ctx, kind, size) })
}

// glusterSide returns a side on which the processes of the application use GlusterFS.
func (b *testbed) glusterSide(ctx context.Context, a *application) (*side, string, error) {
	return b.mountedSide(ctx, a, glusterName, func(size nvmf.Bytes) (*mountpoint, error) { return b.env.startGluster(ctx, size) })
}

// kernelSide returns a side on which the processes of the application use Linux's
// NVMe/TCP host.
func (b *testbed) kernelSide(ctx context.Context, a *application) (*side, string, error) {
	return b.mountedSide(ctx, a, kernelHostName, func(size nvmf.Bytes) (*mountpoint, error) { return b.env.startKernelHost(ctx, size) })
}

func (b *testbed) mountedSide(ctx context.Context, a *application, name string, start func(nvmf.Bytes) (*mountpoint, error)) (*side, string, error) {
	if b.env.remote() {
		return nil, "the ranks are on other hosts", nil
	}
	m, err := start(2 * b.env.namespace(b.env.Size))
	if err != nil {
		return nil, err.Error(), ctx.Err()
	}
	b.closers = append(b.closers, m)
	s, err := b.directorySide(ctx, a, name, filepath.Join(m.dir, "nvmecr-bench"))
	return s, "", err
}

// clear removes the files of a peer's side, and the directory if the ranks have created
// it, possibly on other hosts. After an interruption there are no ranks; files on this
// host are then removed with the environment.
func (b *testbed) clear(ctx context.Context, s *side, dir string) error {
	if ctx.Err() != nil {
		return nil
	}
	for k := range 2 {
		if _, err := s.group.Do(ctx, func(rank int) string { return "unlink " + s.path(rank, k) }); err != nil {
			return err
		}
	}
	if !b.env.remote() {
		return nil
	}
	_, err := s.group.DoAll(ctx, "unlink "+dir)
	return err
}

// memoryDir returns a directory in this host's memory.
func (e *Env) memoryDir() (string, error) {
	var fs unix.Statfs_t
	const dir = "/dev/shm"
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", err
	}
	if nvmf.Bytes(fs.Bavail)*nvmf.Bytes(fs.Bsize) < 2*e.namespace(e.Size) {
		return "", fmt.Errorf("%s has too little space", dir)
	}
	return dir, nil
}

// memoryFile creates a file in memory, with all its pages allocated. It is removed with
// the environment.
func (e *Env) memoryFile(size nvmf.Bytes) (string, error) {
	dir, err := e.memoryDir()
	if err != nil {
		return "", err
	}
	if dir, err = e.claims.in(dir); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(dir, "image-")
	if err != nil {
		return "", err
	}
	zeros := make([]byte, nvmf.MiB)
	for at := nvmf.Bytes(0); at < size && err == nil; at += nvmf.MiB {
		_, err = f.Write(zeros)
	}
	return f.Name(), errors.Join(err, f.Close())
}

// dropCaches empties the page cache, so that reads of files on this host come from the medium. It
// needs root.
func dropCaches() error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0o200)
}

// closer is a function to be called by Close.
type closer func() error

// Close calls the function.
func (c closer) Close() error { return c() }
