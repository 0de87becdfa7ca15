package main

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"time"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
	"nvmecr/nvmf/memdev"
	"nvmecr/nvmf/target"
)

// recovery times the mount of a partition whose writer is gone: against the
// number of log records, with and without coalescing, and against the number
// of files, in the log and in a state checkpoint.
//
// The partition is filled in memory, without a network between, and mounted
// through a target of this process over TCP. An unmount leaves the log as a
// crash does: it writes no state checkpoint.
func (b *bench) recovery(ctx context.Context) error {
	if err := recoverRecords(ctx); err != nil {
		return err
	}
	for _, w := range []workload{overwrites, renames, temporaries, checkpoints} {
		r, err := crashed(ctx, w, most, true)
		if err != nil {
			return err
		}
		row(fmt.Sprintf("replay of %d records, %s: %s", r.records, w.name, millis(r.mount)), rate(r.records, r.mount), "1.0 M/s")
	}
	return recoverFiles(ctx)
}

// most is the largest number of records and of files.
const most = 1_000_000

// recoverRecords is about small appends: each a record of its own, or one
// record for as many as a log page takes.
func recoverRecords(ctx context.Context) error {
	fmt.Printf("%-12s %20s %12s %20s %12s %12s\n", "appends", "coalesced: log pages", "mount", "each: log pages", "mount", "records/s")
	var last result
	for n := most / 1000; n <= most; n *= 10 {
		with, err := crashed(ctx, appends, n, false)
		if err != nil {
			return err
		}
		if last, err = crashed(ctx, appends, n, true); err != nil {
			return err
		}
		fmt.Printf("%-12d %20d %12s %20d %12s %12s\n", n, with.pages, millis(with.mount), last.pages, millis(last.mount), rate(n, last.mount))
	}
	row(fmt.Sprintf("replay of %d records, %s: %s", most, appends.name, millis(last.mount)), rate(most, last.mount), "1.0 M/s")
	return nil
}

func recoverFiles(ctx context.Context) error {
	fmt.Printf("%-12s %20s %12s %12s %20s %12s\n", "files", "in the log: pages", "mount", "records/s", "in a state: MiB", "mount")
	var last result
	for n := most / 1000; n <= most; n *= 10 {
		var err error
		if last, err = crashed(ctx, creates, n, true); err != nil {
			return err
		}
		fmt.Printf("%-12d %20d %12s %12s %20.1f %12s\n", n, last.pages, millis(last.mount), rate(n, last.mount),
			float64(last.state)/float64(nvmf.MiB), millis(last.load))
	}
	row(fmt.Sprintf("replay of %d records, %s: %s", most, creates.name, millis(last.mount)), rate(most, last.mount), "1.0 M/s")
	return nil
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }

func rate(n int, d time.Duration) string { return fmt.Sprintf("%.2f M/s", float64(n)/1e6/d.Seconds()) }

// result is what a workload left and what mounting that took.
type result struct {
	records int
	pages   uint64
	mount   time.Duration
	state   nvmf.Bytes    // of the state checkpoint taken afterwards,
	load    time.Duration // and the mount after it; for creates only
}

// crashed runs a workload on an empty partition and mounts what it leaves.
func crashed(ctx context.Context, w workload, n int, each bool) (result, error) {
	var r result
	dev, err := memdev.New(w.size, 4096, memdev.Options{})
	if err != nil {
		return r, err
	}
	seg := microfs.Segment{Length: dev.Identity().Capacity()}
	err = microfs.Format(ctx, dev, seg, microfs.FormatOptions{Generation: 1, Size: 1, LogPages: 1 << 14, Hugeblock: w.hugeblock})
	if err == nil {
		r.records, r.pages, err = fill(ctx, dev, seg, w, n, each)
	}
	if err != nil {
		dev.Close()
		return r, fmt.Errorf("%s: %w", w.name, err)
	}
	t, id, err := serve(dev)
	if err != nil {
		return r, err
	}
	defer t.Close(ctx)
	if r.mount, err = timeMounts(ctx, id, seg); err != nil || w.name != creates.name {
		return r, err
	}
	err = mounted(ctx, id, seg, func(fs *microfs.FS) error {
		r.state = fs.StatFS().StateBytes
		return fs.Checkpoint()
	})
	if err == nil {
		r.load, err = timeMounts(ctx, id, seg)
	}
	return r, err
}

// fill runs a workload. It returns how many records it logged, and in how many
// pages they are.
func fill(ctx context.Context, dev nvmf.Device, seg microfs.Segment, w workload, n int, each bool) (int, uint64, error) {
	fs, err := microfs.Mount(ctx, dev, seg, microfs.Options{Generation: 1, NoCoalesce: each})
	if err != nil {
		return 0, 0, err
	}
	records, err := w.run(&worker{ctx: ctx, fs: fs}, n)
	s := fs.StatFS()
	if err == nil && s.Checkpoints > 0 {
		err = fmt.Errorf("a state checkpoint was taken")
	}
	if uerr := fs.Unmount(); err == nil {
		err = uerr
	}
	return records, s.LogPages - s.LogFree, err
}

const recoveryNQN = "nqn.2014-08.org.nvmecr:bench"

// serve starts a target over the device.
func serve(dev nvmf.Device) (*target.Target, nvmf.TransportID, error) {
	t, err := target.New(target.Config{Subsystems: []target.Subsystem{{
		NQN: recoveryNQN, Namespaces: []target.Namespace{{Backing: target.NewDevice(dev)}},
	}}})
	if err != nil {
		dev.Close()
		return nil, nvmf.TransportID{}, err
	}
	addr, err := t.Listen("127.0.0.1:0")
	if err != nil {
		_ = t.Close(context.Background()) // the cause is err
		return nil, nvmf.TransportID{}, err
	}
	host, port, err := net.SplitHostPort(addr.String())
	return t, nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: host, Service: port, SubNQN: recoveryNQN, NSID: 1}, err
}

// timeMounts returns the median time of a few mounts.
func timeMounts(ctx context.Context, id nvmf.TransportID, seg microfs.Segment) (time.Duration, error) {
	var times []float64
	for range 3 {
		runtime.GC() // of what came before
		begin := time.Now()
		err := mounted(ctx, id, seg, func(*microfs.FS) error {
			times = append(times, float64(time.Since(begin)))
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return time.Duration(median(times)), nil
}

// mounted connects, mounts for writing, calls f, and unmounts.
func mounted(ctx context.Context, id nvmf.TransportID, seg microfs.Segment, f func(*microfs.FS) error) error {
	dev, err := dial.Open(ctx, id, dial.Options{})
	if err != nil {
		return err
	}
	defer dev.Close()
	fs, err := microfs.Mount(ctx, dev, seg, microfs.Options{Generation: 1})
	if err != nil {
		return err
	}
	err = f(fs)
	if uerr := fs.Unmount(); err == nil {
		err = uerr
	}
	return err
}
