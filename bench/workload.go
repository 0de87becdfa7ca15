package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"syscall"

	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// A workload fills a log with about n records, and returns the number of records
// without coalescing. It keeps a file open: while a file is open and a quarter of the
// log is free, no state checkpoint is taken. With names of four letters a record has 48
// bytes, like that of a small write.
type workload struct {
	name      string
	size      nvmf.Bytes // size of the partition, which is sparse
	hugeblock nvmf.Bytes // 0 means the default
	run       func(w *worker, n int) (int, error)
}

var (
	appends = workload{"512-byte appends", nvmf.GiB, 0, func(w *worker, n int) (int, error) {
		f := w.open("appends")
		piece := [][]byte{make([]byte, 512)}
		return w.times(n, func(int) error { _, _, err := f.Append(piece); return err })
	}}

	overwrites = workload{"overwrites of 100,000 hugeblocks in any order", nvmf.GiB, 4 * nvmf.KiB, func(w *worker, n int) (int, error) {
		const blocks = 100_000
		f := w.open("overwrites")
		if _, err := f.WriteAt([][]byte{make([]byte, blocks*4096)}, 0); err != nil {
			return 0, err
		}
		piece := [][]byte{make([]byte, 4096)}
		r := rand.New(rand.NewPCG(1, 1))
		return w.times(n, func(int) error { _, err := f.WriteAt(piece, r.Int64N(blocks)*4096); return err })
	}}

	creates = workload{"creates", 24 * nvmf.GiB, 0, func(w *worker, n int) (int, error) {
		w.open("creates")
		return w.times(n, func(i int) error { return w.create(strconv.FormatInt(int64(i), 36)) })
	}}

	temporaries = workload{"files made and removed", nvmf.GiB, 0, func(w *worker, n int) (int, error) {
		w.open("temporaries")
		records, err := w.times(n/2, func(i int) error {
			name := strconv.FormatInt(int64(i%1000), 36)
			if err := w.create(name); err != nil {
				return err
			}
			return w.fs.Unlink(microfs.RootIno, name)
		})
		return 2 * records, err
	}}

	renames = workload{"renames of 1000 files between two directories", nvmf.GiB, 0, func(w *worker, n int) (int, error) {
		w.open("renames")
		dirs := [2]string{"a/", "b/"}
		for _, d := range dirs {
			w.check(w.fs.Mkdir(microfs.RootIno, d, 0o700))
		}
		for i := range 1000 {
			w.check(w.create(dirs[0] + strconv.FormatInt(int64(i), 36)))
		}
		return w.times(n, func(i int) error {
			name, from := strconv.FormatInt(int64(i%1000), 36), i/1000%2
			return w.fs.Rename(microfs.RootIno, dirs[from]+name, microfs.RootIno, dirs[1-from]+name, 0)
		})
	}}

	// checkpointFiles writes less than 1 GiB of data: three records for each file.
	checkpointFiles = workload{"files made, written, closed", 8 * nvmf.GiB, 0, func(w *worker, n int) (int, error) {
		w.open("checkpoints")
		piece := [][]byte{make([]byte, 512)}
		records, err := w.times(n/6, func(i int) error {
			f, err := w.fs.Open(microfs.RootIno, strconv.FormatInt(int64(i), 36), syscall.O_RDWR|syscall.O_CREAT, 0o600)
			if err != nil {
				return err
			}
			if _, err := f.WriteAt(piece, 0); err != nil {
				return err
			}
			return f.Close()
		})
		return 3 * records, err
	}}
)

// A worker runs a workload. It keeps the first error.
type worker struct {
	ctx context.Context
	fs  *microfs.FS
	err error
}

func (w *worker) check(err error) {
	if w.err == nil {
		w.err = err
	}
}

// open opens a file and leaves it open.
func (w *worker) open(name string) *microfs.File {
	f, err := w.fs.Open(microfs.RootIno, name, syscall.O_RDWR|syscall.O_CREAT, 0o600)
	w.check(err)
	return f
}

// create creates an empty file. This adds one record, since nothing is written to the
// file.
func (w *worker) create(name string) error {
	f, err := w.fs.Open(microfs.RootIno, name, syscall.O_RDONLY|syscall.O_CREAT, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func (w *worker) times(n int, f func(i int) error) (int, error) {
	for i := range n {
		if w.err == nil && i%1000 == 0 {
			w.err = w.ctx.Err()
		}
		if w.err == nil {
			w.err = f(i)
		}
		if w.err != nil {
			return i, fmt.Errorf("operation %d: %w", i, w.err)
		}
	}
	return n, nil
}
