package bench

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"time"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
	"nvmecr/nvmf/memdev"
	nvmetarget "nvmecr/nvmf/target"
)

// replay measures the mount of a partition whose writer has crashed. It varies the
// number of log records, with and without coalescing, and the number of files, in the
// log and in a state checkpoint.
//
// The partition is filled in memory, without a network, and mounted over TCP through a
// target in this process. An unmount writes no state checkpoint, so it leaves the log
// in the same state as a crash.
func replay(ctx context.Context, e *Env) (*result.Result, error) {
	limit := 1_000_000
	if e.Quick {
		limit = 20_000
	}
	res := &result.Result{}
	if err := replayAppends(ctx, res, limit); err != nil {
		return nil, err
	}
	for i, w := range []workload{overwrites, renames, temporaries, checkpointFiles} {
		e.progress("replay of "+w.name, i+1, 6)
		r, err := crashed(ctx, w, limit, true)
		if err != nil {
			return nil, err
		}
		res.Goals = append(res.Goals, replayGoal(w, r))
	}
	return res, replayFiles(ctx, res, limit)
}

// replayGoal is the goal for the rate of replayed records, including the mount.
func replayGoal(w workload, r replayed) result.Goal {
	rates := make(stats.Sample, len(r.mounts))
	for i, m := range r.mounts {
		rates[i] = float64(r.records) / 1e6 / m
	}
	return result.Goal{
		What: "replay, " + w.name, Limit: 1, Unit: "M records/s", Measured: result.Interval(rates),
		Beside: fmt.Sprintf("%d records in %.1f ms", r.records, r.mounts.Median()*1000),
	}
}

// replayAppends measures small appends, either with one record for each, or coalesced
// into one record for as many as a log page holds.
func replayAppends(ctx context.Context, res *result.Result, limit int) error {
	t := result.Table{Title: "Appends of 512 bytes", Rows: "appends", Columns: []result.Column{
		{Name: "coalesced: log pages", Unit: result.Whole}, {Name: "mount", Unit: result.Duration},
		{Name: "each: log pages", Unit: result.Whole}, {Name: "mount", Unit: result.Duration},
	}}
	var last replayed
	for n := limit / 1000; n <= limit; n *= 10 {
		with, err := crashed(ctx, appends, n, false)
		if err != nil {
			return err
		}
		if last, err = crashed(ctx, appends, n, true); err != nil {
			return err
		}
		t.Add(fmt.Sprint(n), result.Count(float64(with.pages)), result.Number(result.Middle(with.mounts)),
			result.Count(float64(last.pages)), result.Number(result.Middle(last.mounts)))
	}
	res.Tables = append(res.Tables, t)
	res.Goals = append(res.Goals, replayGoal(appends, last))
	return nil
}

func replayFiles(ctx context.Context, res *result.Result, limit int) error {
	t := result.Table{Title: "Files", Rows: "files", Columns: []result.Column{
		{Name: "in the log: pages", Unit: result.Whole}, {Name: "mount", Unit: result.Duration},
		{Name: "in a state checkpoint of", Unit: result.Size}, {Name: "mount", Unit: result.Duration},
	}}
	var last replayed
	for n := limit / 1000; n <= limit; n *= 10 {
		var err error
		if last, err = crashed(ctx, creates, n, true); err != nil {
			return err
		}
		t.Add(fmt.Sprint(n), result.Count(float64(last.pages)), result.Number(result.Middle(last.mounts)),
			result.Count(float64(last.state)), result.Number(result.Middle(last.loads)))
	}
	res.Tables = append(res.Tables, t)
	res.Goals = append(res.Goals, replayGoal(creates, last))
	return nil
}

// replayed describes the log that a workload has left, and has the seconds of its
// mounts.
type replayed struct {
	records int
	pages   uint64
	mounts  stats.Sample
	state   nvmf.Bytes   // size of the state checkpoint that is taken afterwards; for creates only
	loads   stats.Sample // seconds of the mounts after it; for creates only
}

// crashed runs a workload on an empty partition, and mounts the partition.
func crashed(ctx context.Context, w workload, n int, each bool) (replayed, error) {
	var r replayed
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
	if r.mounts, err = timeMounts(ctx, id, seg); err != nil || w.name != creates.name {
		return r, err
	}
	err = mounted(ctx, id, seg, func(fs *microfs.FS) error {
		r.state = fs.StatFS().StateBytes
		return fs.Checkpoint()
	})
	if err == nil {
		r.loads, err = timeMounts(ctx, id, seg)
	}
	return r, err
}

// fill runs a workload. It returns the number of log records, and the number of their
// pages.
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

const replayNQN = "nqn.2014-08.org.nvmecr:bench-replay"

// serve starts a target for the device.
func serve(dev nvmf.Device) (*nvmetarget.Target, nvmf.TransportID, error) {
	t, err := nvmetarget.New(nvmetarget.Config{Subsystems: []nvmetarget.Subsystem{{
		NQN: replayNQN, Namespaces: []nvmetarget.Namespace{{Backing: nvmetarget.NewDevice(dev)}},
	}}})
	if err != nil {
		dev.Close()
		return nil, nvmf.TransportID{}, err
	}
	addr, err := t.Listen("127.0.0.1:0")
	if err != nil {
		_ = t.Close(context.Background()) // err is the cause
		return nil, nvmf.TransportID{}, err
	}
	host, port, err := net.SplitHostPort(addr.String())
	return t, nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: host, Service: port, SubNQN: replayNQN, NSID: 1}, err
}

// timeMounts returns the seconds of a few mounts.
func timeMounts(ctx context.Context, id nvmf.TransportID, seg microfs.Segment) (stats.Sample, error) {
	var times stats.Sample
	for range 3 {
		runtime.GC() // of earlier work
		begin := time.Now()
		err := mounted(ctx, id, seg, func(*microfs.FS) error {
			times = append(times, time.Since(begin).Seconds())
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return times, nil
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
