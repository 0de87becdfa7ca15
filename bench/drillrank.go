package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/bench/workers"
	"nvmecr/internal/store"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
)

// A drillStep is one of the designs between a kernel file system and nvmecr.
type drillStep struct {
	name      string
	hugeblock nvmf.Bytes
	each      bool // each write has its own log record: records are not coalesced
	whole     bool // fsync writes all metadata
}

// drillSteps are the steps in user space, in the order of the paper. The first two are
// options of microfs that are not settings for users.
var drillSteps = []drillStep{
	{"+ user space, private namespace", 4 * nvmf.KiB, true, true},
	{"+ metadata provenance", 4 * nvmf.KiB, false, false},
	{"+ hugeblocks", 32 * nvmf.KiB, false, false},
}

// drillPath returns the path by which a command names a file of a step.
func drillPath(step, k int) string { return fmt.Sprintf("step:%d:ckpt.%d", step, k%2) }

// DrillRank runs a rank that writes checkpoints in its own process, without the
// preload. It writes through microfs with the options of a step, or through the kernel
// to a path. Its part of the namespace has one file system for each step. It executes
// the commands write, mkdir and unlink.
func DrillRank(ctx context.Context, target nvmf.TransportID, addresses string) error {
	runtime.LockOSThread() // the queue polls on this thread
	place, err := store.ProcFromEnv(os.Getenv)
	if err != nil {
		return err
	}
	dev, err := dial.Open(ctx, target, dial.Options{})
	if err != nil {
		return err
	}
	defer dev.Close()
	r := &drillRank{dev: dev}
	if err := r.mount(ctx, place); err != nil {
		return errors.Join(err, r.unmount())
	}
	return errors.Join(workers.Serve(ctx, addresses, r.prepare), r.unmount())
}

// drillRank has the file systems of a rank, one for each step.
type drillRank struct {
	dev   nvmf.Device
	fs    []*microfs.FS
	piece []byte
}

func (r *drillRank) mount(ctx context.Context, place store.Proc) error {
	parts := nvmf.Bytes(place.Size * len(drillSteps))
	length := (r.dev.Identity().Capacity() / parts).AlignDown(nvmf.MiB)
	for i, s := range drillSteps {
		seg := microfs.Segment{Start: nvmf.Bytes(place.Rank*len(drillSteps)+i) * length, Length: length}
		err := microfs.Format(ctx, r.dev, seg, microfs.FormatOptions{Generation: 1, Rank: place.Rank, Size: place.Size, Hugeblock: s.hugeblock})
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fs, err := microfs.Mount(ctx, r.dev, seg, microfs.Options{Generation: 1, NoCoalesce: s.each})
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		r.fs = append(r.fs, fs)
	}
	return nil
}

func (r *drillRank) unmount() error {
	var errs []error
	for _, fs := range r.fs {
		errs = append(errs, fs.Unmount())
	}
	return errors.Join(errs...)
}

// prepare parses a command.
func (r *drillRank) prepare(command string) (workers.Work, error) {
	word, rest, _ := strings.Cut(command, " ")
	switch word {
	case "mkdir":
		return nothing(func() error { return ignoring(os.Mkdir(rest, 0o700), os.ErrExist) }), nil
	case "unlink":
		return nothing(func() error { return ignoring(os.Remove(rest), os.ErrNotExist) }), nil
	case "write":
		var w drillWrite
		if _, err := fmt.Sscanf(rest, "%d %d %d %d %s", &w.size, &w.transfer, &w.stamp, &w.sync, &w.path); err != nil || w.transfer == 0 {
			return nil, fmt.Errorf("no such command: %s", command)
		}
		if len(r.piece) != int(w.transfer) {
			r.piece = make([]byte, w.transfer)
			for i := range r.piece {
				r.piece[i] = byte(i * 31)
			}
		}
		return func() (map[string]int64, error) { return r.write(w) }, nil
	}
	return nil, fmt.Errorf("no such command: %s", command)
}

func nothing(f func() error) workers.Work {
	return func() (map[string]int64, error) { return nil, f() }
}

func ignoring(err, fine error) error {
	if errors.Is(err, fine) {
		return nil
	}
	return err
}

// drillWrite is the command to write a checkpoint.
type drillWrite struct {
	size, transfer nvmf.Bytes
	stamp          uint64
	sync           int
	path           string
}

// drillFile is the file of a checkpoint.
type drillFile interface {
	write(piece []byte, at nvmf.Bytes) error
	sync() error
	Close() error
}

// write writes a checkpoint, with open, write, fsync and close.
func (r *drillRank) write(w drillWrite) (map[string]int64, error) {
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
		return nil, err
	}
	f, err := r.open(w.path)
	if err != nil {
		return nil, err
	}
	for at := nvmf.Bytes(0); at < w.size && err == nil; at += w.transfer {
		for i := 0; i+8 <= len(r.piece); i += stretch {
			binary.LittleEndian.PutUint64(r.piece[i:], w.stamp+uint64(at)+uint64(i))
		}
		err = f.write(r.piece[:min(w.transfer, w.size-at)], at)
	}
	if err == nil && w.sync != 0 {
		err = f.sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
		return nil, err
	}
	return map[string]int64{"user": after.Utime.Nano() - before.Utime.Nano(), "system": after.Stime.Nano() - before.Stime.Nano()}, nil
}

// open creates or truncates a file.
func (r *drillRank) open(path string) (drillFile, error) {
	step, ok := strings.CutPrefix(path, "step:")
	if !ok {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		return kernelFile{f}, err
	}
	number, name, _ := strings.Cut(step, ":")
	i, err := strconv.Atoi(number)
	if err != nil || i < 0 || i >= len(r.fs) {
		return nil, fmt.Errorf("%s: there is no such step", path)
	}
	f, err := r.fs[i].Open(microfs.RootIno, name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_TRUNC, 0o600)
	return &stepFile{File: f, fs: r.fs[i], whole: drillSteps[i].whole}, err
}

type kernelFile struct{ *os.File }

func (f kernelFile) write(piece []byte, _ nvmf.Bytes) error { _, err := f.Write(piece); return err }
func (f kernelFile) sync() error                            { return f.Sync() }

// stepFile is a file of a step.
type stepFile struct {
	*microfs.File
	fs    *microfs.FS
	whole bool
	bufs  [1][]byte
}

func (f *stepFile) write(piece []byte, at nvmf.Bytes) error {
	f.bufs[0] = piece
	_, err := f.WriteAt(f.bufs[:], int64(at))
	return err
}

func (f *stepFile) sync() error {
	if err := f.Sync(); err != nil || !f.whole {
		return err
	}
	return f.fs.Checkpoint()
}
