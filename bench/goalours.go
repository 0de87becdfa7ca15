package bench

import (
	"context"
	"errors"
	"fmt"
	"path"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/nvmf"
)

// ourCall is a call on a file of nvmecr. It is made count times on a file or directory
// of the given name.
type ourCall struct {
	what  string
	call  string // command of the rank
	name  string
	count int
	size  nvmf.Bytes
	limit float64 // limit in seconds; 0 means that there is no goal
}

// manyNames is the number of names in the directory that is read.
const manyNames = 100_000

// Sizes of two namespaces in memory. The first one is so small that all of it is
// written before anything is timed, so that its pages exist. The second one is so large
// that its metadata has space for manyNames. Little of it is used.
const (
	oursSize  = 256 * nvmf.MiB
	namesSize = 4 * nvmf.GiB
)

// callsOnOurs measures calls on a namespace in the rank's own memory, where only
// nvmecr's software takes time. It compares them with calls of the same process on
// tmpfs. It also compares stdio streams with plain calls.
func (g *goalRun) callsOnOurs(ctx context.Context) (err error) {
	dir, err := g.memoryDir()
	if err != nil {
		g.res.NotMeasured("single calls on files of ours", "%s", err)
		return nil
	}
	if dir, err = g.claims.in(dir); err != nil {
		return err
	}
	if err := g.callsOnData(ctx, dir); err != nil {
		return err
	}
	return g.callsOnNames(ctx, dir)
}

// callsOnData measures calls on the data of a file.
func (g *goalRun) callsOnData(ctx context.Context, dir string) (err error) {
	a, err := g.with(1).startApplication(ctx, memoryOf(oursSize))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	fill := a.side("nvmecr")
	for k := range 2 {
		if _, err := fill.write(ctx, work{size: oursSize / 8 * 3, transfer: nvmf.MiB}, k); err != nil {
			return err
		}
	}
	for k := range 2 {
		if _, err := a.group.DoAll(ctx, "unlink "+fill.path(0, k)); err != nil {
			return err
		}
	}
	for _, c := range []ourCall{
		{"a write of 4 KiB behind the end", "write", "data", 4096, 4 * nvmf.KiB, 3e-6},
		{"a pwrite of 4 KiB behind the end", "pwrite", "data", 4096, 4 * nvmf.KiB, 3e-6},
		{"a pwrite of 4 KiB over what is there", "overwrite", "data", 4096, 4 * nvmf.KiB, 0},
		{"a stat", "stat", "data", 20_000, 0, 0.5e-6},
		{"an open and close", "open", "data", 10_000, 0, 2e-6},
	} {
		if err := g.ourCall(ctx, a, dir, c); err != nil {
			return err
		}
	}
	return g.streams(ctx, a)
}

// callsOnNames measures reading a large directory.
func (g *goalRun) callsOnNames(ctx context.Context, dir string) (err error) {
	names := manyNames
	if g.Quick {
		names = 1000
	}
	a, err := g.with(1).startApplication(ctx, memoryOf(namesSize))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	for _, at := range []string{a.cfg.Mount, dir} {
		at = path.Join(at, "names")
		if _, err := a.group.DoAll(ctx, "mkdir "+at); err != nil {
			return err
		}
		if _, err := a.group.DoAll(ctx, fmt.Sprintf("create %d %s", names, path.Join(at, "of.a.file."))); err != nil {
			return err
		}
	}
	return g.ourCall(ctx, a, dir, ourCall{fmt.Sprintf("a readdir of %d names", names), "readdir", "names", 1, nvmf.Bytes(names), 60e-3})
}

// pairInTurns returns the times of two sides, which take turns in being first.
func (g *goalRun) pairInTurns(rounds int, do func(which int) (float64, error)) (took [2]stats.Sample, err error) {
	for round := range g.Warm + rounds {
		for i := range took {
			which := (i + round) % 2
			s, err := do(which)
			if err != nil {
				return took, err
			}
			if round >= g.Warm {
				took[which] = append(took[which], s)
			}
		}
	}
	return took, nil
}

// ourCall measures one call.
func (g *goalRun) ourCall(ctx context.Context, a *application, dir string, c ourCall) error {
	g.progress("calls on files of ours: "+c.what, 0, 1)
	sides := []string{path.Join(a.cfg.Mount, c.name), path.Join(dir, c.name)}
	took, err := g.pairInTurns(2*g.Rounds+1, func(which int) (float64, error) {
		return call(ctx, a.group, c.call, c.count, c.size, sides[which])
	})
	if err != nil {
		return err
	}
	ratios, err := stats.Ratios(took[0], took[1])
	if err != nil {
		return err
	}
	times := result.Interval(ratios)
	g.add(result.Goal{
		What: c.what + ", through the preload, in memory", Limit: c.limit, AtMost: true, Aside: c.limit == 0, Unit: result.Duration,
		Measured: result.Interval(took[0]),
		Beside: fmt.Sprintf("%s on tmpfs: %s (%s to %s) times that", result.Duration.Full(took[1].Median()),
			result.Plain.Format(times.Value), result.Plain.Format(times.Low), result.Plain.Format(times.High)),
	})
	return nil
}

// streams compares fwrite and fread of 1 MiB with write and read.
func (g *goalRun) streams(ctx context.Context, a *application) error {
	const pieces = 64
	file := path.Join(a.cfg.Mount, "data")
	for _, pair := range [][2]string{{"fwrite", "write"}, {"fread", "read"}} {
		g.progress(pair[0]+" beside "+pair[1], 0, 1)
		took, err := g.pairInTurns(4*g.Rounds+1, func(which int) (float64, error) {
			return call(ctx, a.group, pair[which], pieces, nvmf.MiB, file)
		})
		if err != nil {
			return err
		}
		ratios, err := stats.Ratios(took[0], took[1])
		if err != nil {
			return err
		}
		for i := range ratios {
			ratios[i]--
		}
		g.add(result.Goal{
			What: fmt.Sprintf("%s of 1 MiB takes longer than %s by", pair[0], pair[1]), Limit: 0.05, AtMost: true, Unit: result.Percent,
			Measured: result.Interval(ratios), Beside: fmt.Sprintf("%s and %s", result.Duration.Full(took[0].Median()), result.Duration.Full(took[1].Median())),
		})
	}
	return nil
}
