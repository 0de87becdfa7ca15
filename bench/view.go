package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/fuseview"
	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
)

// Names of the sides other than the preload.
const (
	viewName         = "the view"
	fuseLoopbackName = "a go-fuse loopback over tmpfs"
)

// view compares access to a store's files through the kernel with access through the
// preload, and with a plain FUSE loopback in Go.
func view(ctx context.Context, e *Env) (res *result.Result, err error) {
	if e.remote() {
		return nil, errors.New("the view is one of this host's: leave --launch out, and do not start it through mpirun or srun")
	}
	one := e.with(1)
	b := &testbed{env: one}
	defer func() { err = errors.Join(err, b.Close()) }()
	memory := fmt.Sprintf("mem:%d", uint64(one.namespace(one.Size)))
	t, err := one.startTarget(ctx, memory, memory)
	if err != nil {
		return nil, err
	}
	b.closers, b.store = append(b.closers, t), t.ids[:1]
	for _, id := range t.ids {
		if err := touch(ctx, id); err != nil {
			return nil, err
		}
	}
	a, err := b.application(ctx)
	if err != nil {
		return nil, err
	}
	res = &result.Result{Finding: "There is no FUSE here."}
	ours := a.side("the preload")
	byKernel, err := b.viewSide(ctx, a, t.ids[1])
	if err != nil {
		res.NotMeasured(viewName, "%v", err)
		return res, ctx.Err()
	}
	loopback, err := b.fuseLoopbackSide(ctx, a)
	if err != nil {
		res.NotMeasured(fuseLoopbackName, "%v", err)
		return res, ctx.Err()
	}
	return res, one.viewTables(ctx, res, ours, byKernel, loopback)
}

// viewTables measures, and fills in the tables and the ratios. The ratios have no
// goals.
func (e *Env) viewTables(ctx context.Context, res *result.Result, ours, byKernel, loopback *side) error {
	var all []string
	for _, w := range []work{{size: e.Size, transfer: nvmf.MiB}, {size: min(e.Size, 4*nvmf.MiB), transfer: 4 * nvmf.KiB}} {
		w.transfer = min(w.transfer, w.size)
		took, err := e.inTurns(ctx, "pieces of "+w.transfer.String(), w, true, ours, byKernel, loopback)
		if err != nil {
			return err
		}
		mib := float64(w.size) / float64(nvmf.MiB)
		title := fmt.Sprintf("1 rank, %s in pieces of %s, fsync and close included", w.size, w.transfer)
		res.Tables = append(res.Tables, bandwidths(title, mib, []*side{ours, byKernel, loopback}, took))
		for _, what := range []string{"write", "read"} {
			for _, other := range []*side{ours, loopback} {
				through, beside := took[byKernel].seconds(what), took[other].seconds(what)
				r, err := stats.Ratios(beside, through)
				if err != nil {
					return err
				}
				res.Goals = append(res.Goals, result.Goal{
					What: fmt.Sprintf("%s, pieces of %s, %s beside %s", what, w.transfer, viewName, other.name), Aside: true, Unit: result.Ratio, Measured: result.Interval(r),
					Beside: fmt.Sprintf("%s of %s", result.Unit("MiB/s").Format(result.Per(mib, through).Value), result.Unit("MiB/s").Full(result.Per(mib, beside).Value)),
				})
				if other == ours {
					all = append(all, fmt.Sprintf("%s of %s %s", what, w.transfer, result.Ratio.Format(stats.Sample(r).Median())))
				}
			}
		}
	}
	res.Finding = "By way of the kernel, beside the preload: " + strings.Join(all, ", ") + "."
	res.Note("The view and the preload have a store each, on one target over memory. The loopback is go-fuse's, with requests of 1 MiB as the view has.")
	return nil
}

// seconds returns the times of the rounds of writing, or of reading.
func (t *taken) seconds(what string) stats.Sample {
	if what == "write" {
		return spans(t.write)
	}
	return spans(t.read)
}

// viewSide returns a side on which the processes of the application write through the
// kernel to another store.
func (b *testbed) viewSide(ctx context.Context, a *application, id nvmf.TransportID) (*side, error) {
	cfg := config.Default()
	if err := errors.Join(cfg.Adopt(a.cfg.Values()), cfg.Set("name", storeName)); err != nil {
		return nil, err
	}
	cfg.Targets = []nvmf.TransportID{id}
	var err error
	if cfg.Run, err = store.NewRun(uuid.Nil); err != nil {
		return nil, err
	}
	if err := store.Reset(ctx, cfg); err != nil {
		return nil, err
	}
	if cfg.Export, err = os.MkdirTemp(b.env.scratch, "view-"); err != nil {
		return nil, err
	}
	server, err := b.env.startServer(cfg)
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, server)
	return b.directorySide(ctx, a, viewName, filepath.Join(cfg.Export, "job", "bench"))
}

// fuseLoopbackSide returns a side on which the processes of the application write to a
// directory in memory through a FUSE loopback.
func (b *testbed) fuseLoopbackSide(ctx context.Context, a *application) (*side, error) {
	dir, err := b.env.memoryDir()
	if err != nil {
		return nil, err
	}
	if dir, err = b.env.claims.in(dir); err != nil {
		return nil, err
	}
	mounted, err := os.MkdirTemp(b.env.scratch, "loopback-")
	if err != nil {
		return nil, err
	}
	server, err := startDaemon(exec.Command(b.env.Bench, "fuse-loopback", dir, mounted), "mounted")
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, server)
	return b.directorySide(ctx, a, fuseLoopbackName, filepath.Join(mounted, "bench"))
}

// FuseLoopback mounts a directory by FUSE at another path until input ends. It prints a
// line to output when it has mounted. A limit above 0 limits its rate to that many
// bytes per second.
func FuseLoopback(dir, mounted string, limit int, input io.Reader, output io.Writer) error {
	root, err := fs.NewLoopbackRoot(dir)
	if limit > 0 {
		root, err = newSlowRoot(dir, limit)
	}
	if err != nil {
		return err
	}
	second := time.Second // the default of libfuse
	server, err := fs.Mount(mounted, root, &fs.Options{
		AttrTimeout: &second, EntryTimeout: &second, NullPermissions: true,
		MountOptions: fuse.MountOptions{FsName: dir, Name: "loopback", MaxWrite: int(nvmf.MiB), DirectMount: true},
	})
	if err != nil {
		return fmt.Errorf("mounting a loopback at %s by FUSE: %w", mounted, err)
	}
	if _, err = fmt.Fprintln(output, "mounted"); err == nil {
		_, _ = io.Copy(io.Discard, input) // an error also ends the mount
	}
	if err := errors.Join(err, fuseview.Detach(mounted)); err != nil {
		return err
	}
	server.Wait()
	return nil
}
