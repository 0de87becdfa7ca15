package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
)

// programs measures how much the preload slows down programs that use no files of
// nvmecr: one that makes many short calls, and one that starts other programs and
// computes. They run on one core, because the choice of a core makes more difference
// than the preload.
func (g *goalRun) programs(ctx context.Context) (err error) {
	runtime.LockOSThread() // programs inherit the affinity of this thread
	defer runtime.UnlockOSThread()
	var before, first unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	first.Set(0)
	if unix.SchedSetaffinity(0, &first) == nil { // this process may not be allowed to use that core
		defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &before)) }()
	}
	with, err := g.Under(g.Config, base())
	if err != nil {
		return err
	}
	for _, p := range []struct {
		what   string
		make   func(g *goalRun, dir string) (argv []string, why string, err error)
		rounds int // number of runs for each round of the benchmark
	}{
		{"ls -R", (*goalRun).manyFiles, 8},
		{"a compile", (*goalRun).source, 3},
	} {
		dir, err := os.MkdirTemp(g.scratch, "program-")
		if err != nil {
			return err
		}
		argv, why, err := p.make(g, dir)
		if err != nil {
			return err
		}
		what := p.what + " under the preload takes longer by"
		if why != "" {
			g.absent(result.Goal{What: what, Limit: programsMore, AtMost: true, Unit: result.Percent}, why)
			continue
		}
		if err := g.program(ctx, what, argv, with, p.rounds*g.Rounds); err != nil {
			return err
		}
	}
	return nil
}

// programsMore is the part by which a program may take longer under the preload.
const programsMore = 0.01

// program runs a program with and without the preload, in turns.
func (g *goalRun) program(ctx context.Context, what string, argv, with []string, rounds int) error {
	environments := [][]string{with, base()}
	var wall, processor [2]stats.Sample
	for round := range g.Warm + rounds {
		g.progress(what, round, g.Warm+rounds)
		for i := range environments {
			which := (i + round) % 2
			took, used, err := timeProgram(ctx, argv, environments[which])
			if err != nil {
				return err
			}
			if round >= g.Warm {
				wall[which], processor[which] = append(wall[which], took), append(processor[which], used)
			}
		}
	}
	longer, err := stats.Ratios(wall[0], wall[1])
	if err != nil {
		return err
	}
	more, err := stats.Ratios(processor[0], processor[1])
	if err != nil {
		return err
	}
	for i := range longer {
		longer[i]--
		more[i]--
	}
	used := result.Interval(more)
	g.add(result.Goal{
		What: what, Limit: programsMore, AtMost: true, Unit: result.Percent, Measured: result.Interval(longer),
		Beside: fmt.Sprintf("%s without; processor time %s (%s to %s) more", result.Duration.Full(wall[1].Median()),
			result.Percent.Format(used.Value), result.Percent.Format(used.Low), result.Percent.Format(used.High)),
	})
	return nil
}

// timeProgram returns the duration of a program, and its processor time including the programs it
// starts, in seconds.
func timeProgram(ctx context.Context, argv, env []string) (wall, processor float64, err error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var said bytes.Buffer
	cmd.Env, cmd.Stderr = env, &said
	begin := time.Now()
	err = cmd.Run()
	wall = time.Since(begin).Seconds()
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w: %s", argv[0], err, lastLine(said.Bytes()))
	}
	return wall, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), nil
}

// manyFiles creates a directory tree for ls in dir.
func (g *goalRun) manyFiles(dir string) (argv []string, why string, err error) {
	directories, files := 500, 100
	if g.Quick {
		directories = 10
	}
	for d := range directories {
		sub := filepath.Join(dir, fmt.Sprintf("directory%d", d))
		if err := os.Mkdir(sub, 0o700); err != nil {
			return nil, "", err
		}
		for f := range files {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("file.%d", f)), nil, 0o600); err != nil {
				return nil, "", err
			}
		}
	}
	return []string{"ls", "-R", dir}, "", nil
}

// function is one function of the compiled source, with its number.
const function = `double f%[1]d(const double *a, int n)
{
	double s = %[1]d;
	for (int i = 0; i < n; i++)
		for (int j = i; j < n; j++)
			if (a[i] > a[j] + %[1]d)
				s += a[i] * a[j];
			else
				s -= a[j] / (s + %[1]d);
	return s;
}
`

// source creates a source file for the compiler in dir.
func (g *goalRun) source(dir string) (argv []string, why string, err error) {
	compiler, err := exec.LookPath("cc")
	if err != nil {
		return nil, "there is no cc in PATH", nil
	}
	functions := 120
	if g.Quick {
		functions = 10
	}
	var text bytes.Buffer
	text.WriteString("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n")
	for i := range functions {
		fmt.Fprintf(&text, function, i)
	}
	file := filepath.Join(dir, "source.c")
	return []string{compiler, "-c", "-o", filepath.Join(dir, "source.o"), file}, "", os.WriteFile(file, text.Bytes(), 0o600)
}
