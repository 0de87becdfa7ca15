package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/time/rate"

	"nvmecr/nvmf"
)

// slowRate is the rate of the simulated parallel file system for all processes
// together. One node gets much less bandwidth from a parallel file system than over
// NVMe-oF.
const slowRate = 256 * nvmf.MiB

// slowDirectory creates a directory in memory, and exports it by FUSE with a limited
// rate. It simulates a parallel file system.
func (b *testbed) slowDirectory(perSecond nvmf.Bytes) (string, error) {
	dir, err := b.env.memoryDir()
	if err != nil {
		return "", err
	}
	if dir, err = b.env.claims.in(dir); err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp(dir, "slow-"); err != nil {
		return "", err
	}
	mounted, err := os.MkdirTemp(b.env.scratch, "slow-")
	if err != nil {
		return "", err
	}
	limit := strconv.FormatUint(uint64(perSecond), 10)
	server, err := startDaemon(exec.Command(b.env.Bench, "fuse-loopback", "--limit", limit, dir, mounted), "mounted")
	if err != nil {
		return "", fmt.Errorf("a directory of limited rate: %w", err)
	}
	b.closers = append(b.closers, server)
	return mounted, nil
}

// A slowNode is a file or directory with a limited rate.
type slowNode struct {
	*fs.LoopbackNode
	limit *rate.Limiter // shared by all files
}

// newSlowRoot is like [fs.NewLoopbackRoot], with a limit in bytes per second.
func newSlowRoot(dir string, perSecond int) (fs.InodeEmbedder, error) {
	plain, err := fs.NewLoopbackRoot(dir)
	if err != nil {
		return nil, err
	}
	node := plain.(*fs.LoopbackNode)
	root := &slowNode{node, rate.NewLimiter(rate.Limit(perSecond), int(nvmf.MiB))}
	node.RootData.RootNode = root
	return root, nil
}

// WrapChild applies the same limit to the files below.
func (n *slowNode) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	return &slowNode{ops.(*fs.LoopbackNode), n.limit}
}

// Open opens a file.
func (n *slowNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	f, more, errno := n.LoopbackNode.Open(ctx, flags)
	return n.slow(f), more, errno
}

// Create creates a file and opens it.
func (n *slowNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	inode, f, more, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	return inode, n.slow(f), more, errno
}

func (n *slowNode) slow(f fs.FileHandle) fs.FileHandle {
	if f, ok := f.(*fs.LoopbackFile); ok {
		return &slowFile{f, n.limit}
	}
	return f
}

// A slowFile is an open file with a limited rate.
type slowFile struct {
	*fs.LoopbackFile
	limit *rate.Limiter
}

// PassthroughFd returns no descriptor: with one, the kernel would read and write
// without the limit.
func (f *slowFile) PassthroughFd() (int, bool) { return -1, false }

// Read delays the read as the limit requires.
func (f *slowFile) Read(ctx context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if f.limit.WaitN(ctx, len(dest)) != nil {
		return nil, syscall.EINTR
	}
	return f.LoopbackFile.Read(ctx, dest, off)
}

// Write delays the write as the limit requires.
func (f *slowFile) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if f.limit.WaitN(ctx, len(data)) != nil {
		return 0, syscall.EINTR
	}
	return f.LoopbackFile.Write(ctx, data, off)
}
