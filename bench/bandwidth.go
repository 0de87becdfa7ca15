package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvmecr/internal/demo"
	"nvmecr/nvmf"
)

// memoryTarget is a target over memory, a process of its own as the embedded
// one is.
type memoryTarget struct {
	job *demo.Job
	id  nvmf.TransportID
}

// startTarget starts `nvmecr target` over memory and waits until it listens.
func (b *bench) startTarget(ctx context.Context, size nvmf.Bytes) (*memoryTarget, error) {
	job, err := b.stage.Start([]string{b.nvmecr, "target", "--listen", "127.0.0.1:0",
		"--namespace", fmt.Sprintf("mem:%d", uint64(size))})
	if err != nil {
		return nil, err
	}
	for len(job.Stdout.Lines()) == 0 {
		if job.Ended() {
			return nil, job.Wait(ctx)
		}
		time.Sleep(time.Millisecond)
	}
	id, err := nvmf.ParseTransportID(job.Stdout.Lines()[0])
	return &memoryTarget{job, id}, err
}

// bandwidth compares what an application sees with raw NVMe/TCP, in turns, on
// two targets of the same kind.
func (b *bench) bandwidth(ctx context.Context) error {
	size := nvmf.Bytes(b.ranks) * nvmf.Bytes(2*b.mib+64) * nvmf.MiB
	store, err := b.startTarget(ctx, size)
	if err != nil {
		return err
	}
	plain, err := b.startTarget(ctx, size)
	if err != nil {
		return err
	}
	raw, err := startRaw(ctx, plain.id, b.ranks, b.mib)
	if err != nil {
		return err
	}
	defer raw.stop()

	// Memory that was never touched costs the first writer page faults: both
	// sides go over all of it before it counts.
	var app, bare rates
	for round := -3; round < b.rounds; round++ {
		a, err := b.application(ctx, store.id)
		if err != nil {
			return err
		}
		r, err := raw.round(ctx)
		if err != nil {
			return err
		}
		if round >= 0 {
			app.add(a)
			bare.add(r)
		}
	}
	total := float64(b.ranks * b.mib)
	for _, what := range []struct {
		name, goal string
		app, bare  []float64
	}{{"write", "0.80", app.write, bare.write}, {"read", "0.85", app.read, bare.read}} {
		// Other load changes over time: neighbours in time are compared.
		var ratios []float64
		for i := range what.app {
			ratios = append(ratios, what.bare[i]/what.app[i])
		}
		row(fmt.Sprintf("%s, %d ranks, 1 MiB pieces: %.0f of %.0f MiB/s raw", what.name, b.ranks,
			total/median(what.app), total/median(what.bare)), fmt.Sprintf("%.2f", median(ratios)), what.goal)
	}
	return nil
}

// rates are seconds of rounds.
type rates struct{ write, read []float64 }

func (r *rates) add(o rates) {
	r.write = append(r.write, o.write...)
	r.read = append(r.read, o.read...)
}

// application runs one round of the application under the preload.
func (b *bench) application(ctx context.Context, target nvmf.TransportID) (rates, error) {
	argv := append(b.stage.RunFlags("bench", "--target", target.String()),
		demo.MPIRun("mpirun.openmpi", b.ranks, b.app, "/nvmecr", strconv.Itoa(b.mib), "1")...)
	job, err := b.stage.Start(argv)
	if err != nil {
		return rates{}, err
	}
	if err := job.Wait(ctx); err != nil {
		return rates{}, err
	}
	return parseRates(job.Stdout.Lines())
}

func parseRates(lines []string) (rates, error) {
	var r rates
	for _, line := range lines {
		var seconds float64
		if n, _ := fmt.Sscanf(line, "write %f", &seconds); n == 1 {
			r.write = append(r.write, seconds)
		} else if n, _ := fmt.Sscanf(line, "read %f", &seconds); n == 1 {
			r.read = append(r.read, seconds)
		}
	}
	if len(r.write) == 0 || len(r.read) == 0 {
		return r, fmt.Errorf("no result in: %s", strings.Join(lines, " | "))
	}
	return r, nil
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// compile builds the application.
func compile(dir string) (string, error) {
	app := filepath.Join(dir, "ckpt")
	out, err := exec.Command("mpicc.openmpi", "-O2", "-o", app, "bench/testdata/ckpt.c").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("mpicc.openmpi: %w: %s", err, out)
	}
	return app, nil
}

// rawSide is the processes of the raw side: one queue each.
type rawSide struct {
	procs []*exec.Cmd
	in    []*os.File
	out   []*bufio.Reader
}

func startRaw(ctx context.Context, target nvmf.TransportID, ranks, mib int) (*rawSide, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &rawSide{}
	for slot := range ranks {
		cmd := exec.CommandContext(ctx, self, "-raw", target.String(), "-slot", strconv.Itoa(slot),
			"-ranks", strconv.Itoa(ranks), "-mib", strconv.Itoa(mib))
		stdin, in, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		cmd.Stdin, cmd.Stderr = stdin, os.Stderr
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		stdin.Close()
		s.procs, s.in, s.out = append(s.procs, cmd), append(s.in, in), append(s.out, bufio.NewReader(out))
	}
	return s, nil
}

// round lets all processes write and then read at the same time, and returns
// the time to the slowest of each.
func (s *rawSide) round(ctx context.Context) (rates, error) {
	var r rates
	for _, what := range []string{"write", "read"} {
		begin := time.Now()
		for _, in := range s.in {
			if _, err := fmt.Fprintln(in, what); err != nil {
				return r, err
			}
		}
		for _, out := range s.out {
			if line, err := out.ReadString('\n'); err != nil || line != "done\n" {
				return r, fmt.Errorf("raw side: %q %w", line, err)
			}
		}
		took := time.Since(begin).Seconds()
		if what == "write" {
			r.write = append(r.write, took)
		} else {
			r.read = append(r.read, took)
		}
	}
	return r, ctx.Err()
}

func (s *rawSide) stop() {
	for i, p := range s.procs {
		s.in[i].Close()
		_ = p.Wait() // it has nothing left to say
	}
}
