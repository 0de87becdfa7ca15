package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"nvmecr/internal/demo"
	"nvmecr/nvmf"
)

// starts is how often a process is started with and without the preload.
const starts = 400

// startup compares /bin/true with and without the preload, in turns.
func (b *bench) startup(ctx context.Context) error {
	with := append(os.Environ(), "LD_PRELOAD="+filepath.Join(filepath.Dir(b.nvmecr), "libnvmecr.so"))
	var plain, preloaded []float64
	for range starts {
		if err := ctx.Err(); err != nil {
			return err
		}
		p, err := timeTrue(os.Environ())
		if err != nil {
			return err
		}
		q, err := timeTrue(with)
		if err != nil {
			return err
		}
		plain, preloaded = append(plain, p), append(preloaded, q)
	}
	row(fmt.Sprintf("/bin/true under the preload, %.2f ms without", median(plain)),
		fmt.Sprintf("%+.3f ms", median(preloaded)-median(plain)), "0.1 ms")
	return nil
}

// timeTrue returns the milliseconds that /bin/true takes.
func timeTrue(env []string) (float64, error) {
	cmd := exec.Command("/bin/true")
	cmd.Env = env
	begin := time.Now()
	err := cmd.Run()
	return float64(time.Since(begin)) / 1e6, err
}

// memory compares the resident set of an idle rank with and without nvmecr.
func (b *bench) memory(ctx context.Context) error {
	target, err := b.startTarget(ctx, nvmf.Bytes(b.ranks)*256*nvmf.MiB)
	if err != nil {
		return err
	}
	run := demo.MPIRun("mpirun.openmpi", b.ranks, b.app, "/nvmecr")
	plain, err := b.resident(ctx, run)
	if err != nil {
		return err
	}
	under, err := b.resident(ctx, append(b.stage.RunFlags("idle", "--target", target.id.String()), run...))
	if err != nil {
		return err
	}
	row(fmt.Sprintf("memory of an idle rank, %.1f MiB without", plain), fmt.Sprintf("%+.1f MiB", under-plain), "32 MiB")
	return nil
}

// resident runs the application idle and returns the MiB of its largest rank.
func (b *bench) resident(ctx context.Context, argv []string) (float64, error) {
	job, err := b.stage.Start(argv)
	if err != nil {
		return 0, err
	}
	if err := job.Wait(ctx); err != nil {
		return 0, err
	}
	for _, line := range job.Stdout.Lines() {
		if n, ok := cutNumber(line, "memory "); ok {
			return n / 1024, nil
		}
	}
	return 0, fmt.Errorf("no result in: %s", job.Stdout.Tail(5))
}

func cutNumber(line, prefix string) (float64, bool) {
	digits, ok := strings.CutPrefix(line, prefix)
	n, err := strconv.ParseFloat(digits, 64)
	return n, ok && err == nil
}
