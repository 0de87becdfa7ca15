package bench

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime"
	"strconv"
	"syscall"

	"nvmecr/bench/paper"
	"nvmecr/bench/result"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// The case of the paper's Table I. Its largest run has 56 processes for each SSD, with
// 445 MB of metadata each. That is 1.7% of an SSD, so an SSD has 1.5 TB. There are ten
// checkpoints.
const (
	paperPartition   = nvmf.Bytes(1_500_000_000_000 / 56 / 4096 * 4096)
	paperCheckpoints = 10
)

// metadata measures the size of a rank's metadata, on the media and in memory, for
// growing numbers of files and amounts of data.
//
// The file system is in this process, on a device in memory. The memory of a whole rank
// is measured under the preload.
func metadata(ctx context.Context, e *Env) (*result.Result, error) {
	res := &result.Result{}
	limit, data := 1_000_000, min(paperCheckpoints*paperCheckpoint, freeMemory()/4)
	if e.Quick {
		limit, data = 10_000, min(data, 64*nvmf.MiB)
	}
	e.progress("the paper's case", 0, 4)
	whole, err := paperCase(ctx, res, data)
	if err != nil {
		return nil, err
	}
	e.progress("files", 1, 4)
	files, err := againstFiles(ctx, res, limit)
	if err != nil {
		return nil, err
	}
	e.progress("data", 2, 4)
	if err := againstData(ctx, res, data); err != nil {
		return nil, err
	}
	e.progress("ranks under the preload", 3, 4)
	rank, err := e.rankMemory(ctx, res)
	if err != nil {
		return nil, err
	}
	res.Finding = fmt.Sprintf("The metadata of a rank with ten checkpoints takes %s of memory, its whole process %s more than without nvmecr; the paper's takes 506 MB. "+
		"On the media %s are in use of %s that are set aside, %s of the partition; the paper has 445 MB there, 1.7%%. %s files take %s of memory.",
		size(whole.heap), size(rank), size(whole.used()), size(whole.reserved), result.Percent.Format(whole.reserved/whole.capacity), result.Whole.Format(float64(limit)), size(files.heap))
	res.Claims = append(res.Claims,
		paper.Memory.Beside("%s of metadata; %s is what the whole process grows by", size(whole.heap), size(rank)),
		paper.MediaOurs.Beside("%s in use, %s set aside", size(whole.used()), size(whole.reserved)),
		paper.MediaShare.Beside("%s set aside, %s in use", result.Percent.Format(whole.reserved/float64(paperPartition)), result.Percent.Format(whole.used()/float64(paperPartition))),
		paper.HugeblockFewer.Beside("see hugeblock"),
	)
	res.Note("Memory is what the heap holds after a garbage collection, less what it held before the mount; data is not kept in memory, its checksums are: 8 bytes for each 32 KiB. " +
		"In use on the media are the log's pages and a state checkpoint, its checksums and parity included. Set aside are superblocks, log, and two areas for state checkpoints that are large enough for any state.")
	return res, nil
}

// usage has the sizes of a mounted file system in bytes.
type usage struct {
	files      int
	heap       float64
	log, state float64 // in use on the media: log pages, and the last state checkpoint
	traffic    float64 // written in addition to the data
	reserved   float64 // on the media, not available for data
	remounted  float64 // heap after a mount of the same media
	capacity   float64
}

// used returns the size of the metadata on the media.
func (u usage) used() float64 { return u.log + u.state }

// heapInUse returns the number of live bytes on the heap.
func heapInUse() float64 {
	var m runtime.MemStats
	for range 2 { // the second run frees what finalizers have released
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// use fills an empty partition in memory with files of data bytes in total, and returns
// its usage.
func use(ctx context.Context, capacity, data nvmf.Bytes, fill func(w *worker) error) (u usage, err error) {
	memory, err := memdev.New(capacity, 4096, memdev.Options{})
	if err != nil {
		return u, err
	}
	dev := &countingDevice{Device: memory}
	defer dev.Close()
	seg := microfs.Segment{Length: dev.Identity().Capacity()}
	if err := microfs.Format(ctx, dev, seg, microfs.FormatOptions{Generation: 1, Size: 1}); err != nil {
		return u, err
	}
	before := heapInUse()
	err = whileMounted(ctx, dev, seg, func(fs *microfs.FS) error {
		w, mounted := &worker{ctx: ctx, fs: fs}, dev.written
		if err := errors.Join(fill(w), w.err); err != nil {
			return err
		}
		u.heap = max(0, heapInUse()-before)
		s := fs.StatFS()
		u.log, u.traffic = float64(s.LogPages-s.LogFree)*4096, float64(dev.written-mounted-data)
		u.reserved = float64(capacity) - float64(s.Blocks)*float64(s.Hugeblock)
		u.files, u.capacity = int(s.Files), float64(capacity)
		before := dev.written
		err := fs.Checkpoint()
		u.state = float64(dev.written - before)
		return err
	})
	if err != nil {
		return u, err
	}
	return u, whileMounted(ctx, dev, seg, func(*microfs.FS) error {
		u.remounted = max(0, heapInUse()-before)
		return nil
	})
}

// countingDevice counts the bytes written to a device.
type countingDevice struct {
	nvmf.Device
	written nvmf.Bytes
}

// OpenQueue opens a queue that counts written bytes.
func (d *countingDevice) OpenQueue(ctx context.Context, depth int) (nvmf.Queue, error) {
	q, err := d.Device.OpenQueue(ctx, depth)
	return &countingQueue{q, d}, err
}

type countingQueue struct {
	nvmf.Queue
	device *countingDevice
}

// Submit counts the bytes of write commands.
func (q *countingQueue) Submit(commands []*nvmf.Command) {
	for _, c := range commands {
		if c.Opcode == nvmf.Write {
			q.device.written += nvmf.Bytes(c.Blocks) * q.device.Identity().LBASize
		}
	}
	q.Queue.Submit(commands)
}

// whileMounted mounts for writing, calls f, and unmounts.
func whileMounted(ctx context.Context, dev nvmf.Device, seg microfs.Segment, f func(*microfs.FS) error) error {
	fs, err := microfs.Mount(ctx, dev, seg, microfs.Options{Generation: 1})
	if err != nil {
		return err
	}
	return errors.Join(f(fs), fs.Unmount())
}

// write writes n bytes to a new file in pieces of 1 MiB.
func (w *worker) write(name string, n nvmf.Bytes) error {
	f, err := w.fs.Open(microfs.RootIno, name, syscall.O_RDWR|syscall.O_CREAT, 0o600)
	if err != nil {
		return err
	}
	piece := [][]byte{make([]byte, nvmf.MiB)}
	for at := nvmf.Bytes(0); at < n; at += nvmf.MiB {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		piece[0] = piece[0][:min(nvmf.MiB, n-at)]
		if _, err := f.WriteAt(piece, int64(at)); err != nil {
			return err
		}
	}
	return f.Close()
}

// paperCase measures ten checkpoints on a partition as large as the paper's.
func paperCase(ctx context.Context, res *result.Result, data nvmf.Bytes) (usage, error) {
	u, err := use(ctx, paperPartition, data/paperCheckpoints*paperCheckpoints, func(w *worker) error {
		for i := range paperCheckpoints {
			if err := w.write(fmt.Sprintf("CoMD.ckpt.%04d", i), data/paperCheckpoints); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return u, err
	}
	t := result.Table{Title: fmt.Sprintf("One rank: %d checkpoints, %s in all, on a partition of %s", paperCheckpoints, result.Size.Full(float64(data)), result.Size.Full(float64(paperPartition))),
		Rows: "", Columns: []result.Column{{Name: "memory", Unit: result.Size}, {Name: "on the media", Unit: result.Size}, {Name: "set aside there", Unit: result.Size}, {Name: "of the partition", Unit: result.Percent}}}
	t.Add("nvmecr", result.Count(u.heap), result.Count(u.used()), result.Count(u.reserved), result.Count(u.reserved/u.capacity))
	t.AddPaper("NVMe-CR", result.Text("506 MB"), result.Text("445.25 MB"), result.None(), result.Text("1.7%%"))
	t.AddPaper("OrangeFS, for each storage node", result.None(), result.Text("2686.25 MB"), result.None(), result.None())
	t.AddPaper("GlusterFS, for each storage node", result.None(), result.Text("3.5 MB"), result.None(), result.None())
	res.Tables = append(res.Tables, t)
	if data < paperCheckpoints*paperCheckpoint {
		res.Note("The paper's ten checkpoints are %s; memory here suffices for %s.", result.Size.Full(paperCheckpoints*paperCheckpoint), result.Size.Full(float64(data)))
	}
	return u, nil
}

// againstFiles measures partitions with growing numbers of empty files.
func againstFiles(ctx context.Context, res *result.Result, limit int) (usage, error) {
	t := result.Table{Title: "Files without data", Rows: "files", Columns: []result.Column{
		{Name: "memory", Unit: result.Size}, {Name: "each", Unit: result.Size}, {Name: "after a restart", Unit: result.Size},
		{Name: "log in use", Unit: result.Size}, {Name: "state checkpoint", Unit: result.Size}, {Name: "written meanwhile", Unit: result.Size}}}
	p := result.Plot{Title: "Memory and state checkpoint against files", X: result.Axis{Name: "files", Log: true, Unit: result.Whole}, Y: result.Axis{Name: "bytes", Log: true, Unit: result.Size}}
	var last usage
	for n := limit / 1000; n <= limit; n *= 10 {
		u, err := use(ctx, 24*nvmf.GiB, 0, func(w *worker) error {
			_, err := w.times(n, func(i int) error { return w.create(strconv.FormatInt(int64(i), 36)) })
			return err
		})
		if err != nil {
			return u, err
		}
		t.Add(result.Whole.Format(float64(n)), result.Count(u.heap), result.Count(u.heap/float64(n)), result.Count(u.remounted), result.Count(u.log), result.Count(u.state), result.Count(u.traffic))
		p.Add("memory", float64(n), result.Exactly(u.heap))
		p.Add("state checkpoint", float64(n), result.Exactly(u.state))
		last = u
	}
	p.Marks = []result.Mark{{Name: "the paper's 506 MB for each process", Y: paper.Memory.Value}}
	res.Tables, res.Plots = append(res.Tables, t), append(res.Plots, p)
	return last, nil
}

// againstData measures a file that grows.
func againstData(ctx context.Context, res *result.Result, limit nvmf.Bytes) error {
	t := result.Table{Title: "One file, written in pieces of 1 MiB", Rows: "data", Columns: []result.Column{
		{Name: "memory", Unit: result.Size}, {Name: "of the data", Unit: result.Percent}, {Name: "after a restart", Unit: result.Size},
		{Name: "log in use", Unit: result.Size}, {Name: "state checkpoint", Unit: result.Size}, {Name: "written beside the data", Unit: result.Size}}}
	for data := limit / 64; data <= limit; data *= 4 {
		u, err := use(ctx, 2*limit+512*nvmf.MiB, data, func(w *worker) error { return w.write("data", data) })
		if err != nil {
			return err
		}
		t.Add(result.Size.Full(float64(data)), result.Count(u.heap), result.Count(u.heap/float64(data)), result.Count(u.remounted), result.Count(u.log), result.Count(u.state), result.Count(u.traffic))
	}
	res.Tables = append(res.Tables, t)
	return nil
}

// rankMemory measures the memory of two processes that write the same data: a rank
// under the preload, and one without it. It returns by how much more the first one has
// grown after its checkpoints.
func (e *Env) rankMemory(ctx context.Context, res *result.Result) (grown float64, err error) {
	o := *e
	o.Ranks, o.Launch, o.Agents = 1, nil, nil           // one rank on this host is enough
	b, err := o.testbed(ctx, max(e.Size, 128*nvmf.MiB)) // space for the files
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	plain, err := o.startGroup(ctx, base(), e.Rank)
	if err != nil {
		return 0, err
	}
	b.closers = append(b.closers, closer(plain.Stop))
	a, err := b.application(ctx)
	if err != nil {
		return 0, err
	}
	t := result.Table{Title: "The whole process of a rank", Rows: "after", Columns: []result.Column{{Name: "without nvmecr", Unit: result.Size}, {Name: "with", Unit: result.Size}, {Name: "more", Unit: result.Size}}}
	measure := func(what string) error {
		without, err := resident(ctx, plain, "/nonexistent")
		if err != nil {
			return err
		}
		with, err := resident(ctx, a.group, "/nonexistent")
		grown = with - without
		t.Add(what, result.Count(without), result.Count(with), result.Count(grown))
		return err
	}
	if err := measure("the mount"); err != nil {
		return 0, err
	}
	const files = 10_000
	create := func(dir string) string { return fmt.Sprintf("create %d %s", files, path.Join(dir, "f")) }
	if _, err := plain.DoAll(ctx, create(e.scratch)); err != nil {
		return 0, err
	}
	if _, err := a.group.DoAll(ctx, create(a.cfg.Mount)); err != nil {
		return 0, err
	}
	if err := measure(fmt.Sprintf("%s files were made", result.Whole.Format(files))); err != nil {
		return 0, err
	}
	elsewhere := &side{name: "without", group: plain, path: checkpoints(e.scratch)}
	once := work{size: min(e.Size, 8*nvmf.MiB), transfer: min(e.Transfer, 8*nvmf.MiB)}
	if _, err := elsewhere.write(ctx, once, 0); err != nil {
		return 0, err
	}
	app := a.side("nvmecr")
	for k := range max(e.Count, 1) {
		if _, err := app.write(ctx, work{size: e.Size, transfer: e.Transfer}, k); err != nil {
			return 0, err
		}
	}
	if err := measure(fmt.Sprintf("%d checkpoints of %s more", max(e.Count, 1), e.Size)); err != nil {
		return 0, err
	}
	res.Tables = append(res.Tables, t)
	return grown, nil
}

func size(bytes float64) string { return result.Size.Full(bytes) }
