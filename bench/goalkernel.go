package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"nvmecr/bench/result"
	"nvmecr/nvmf"
)

// beyondXFS is the goal for the bandwidth as a multiple of the bandwidth of XFS, if
// both are on a file in memory.
const beyondXFS = 1.5

// kernel compares checkpoints with those on kernel file systems, all on media in
// memory. The namespace of nvmecr is a file, like the image of a loop device. Another
// row has the same comparison with nvmecr over NVMe/TCP, a network that the kernel file
// systems do not use.
func (g *goalRun) kernel(ctx context.Context) (err error) {
	b, err := g.testbed(ctx, g.Size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	near, err := g.localStore(ctx)
	if err != nil {
		return err
	}
	b.closers = append(b.closers, near)
	far, err := b.application(ctx)
	if err != nil {
		return err
	}
	ours := []*side{near.side("nvmecr on a file"), far.side("nvmecr over NVMe/TCP")}
	sides := slices.Clone(ours)
	for _, kind := range []string{"xfs", "ext4"} {
		s, why, err := b.loopbackSide(ctx, near, kind)
		switch {
		case err != nil:
			return err
		case s != nil:
			sides = append(sides, s)
		case kind == "xfs":
			g.absent(result.Goal{What: kernelGoal(ours[0].name, kind), Limit: beyondXFS, Unit: result.Times}, why)
		default:
			g.res.NotMeasured(kind+" on a loop device", "%s", why)
		}
	}
	if len(sides) == len(ours) {
		return nil
	}
	took, err := g.inTurns(ctx, "checkpoints beside kernel file systems", work{size: g.Size, transfer: g.Transfer}, false, sides...)
	if err != nil {
		return err
	}
	return g.besideKernel(ours, sides[len(ours):], took)
}

func kernelGoal(ours, kind string) string {
	return fmt.Sprintf("checkpoint with fsync, %s, beside %s on a loop device, both in memory", ours, kind)
}

// besideKernel adds the goal, and the other comparisons.
func (g *goalRun) besideKernel(ours, theirs []*side, took map[*side]*taken) error {
	total := float64(g.Ranks) * float64(g.Size) / float64(nvmf.MiB)
	for i, k := range theirs {
		kind, _, _ := strings.Cut(k.name, " ")
		for j, o := range ours {
			limit := 0.0
			if i == 0 && j == 0 && kind == "xfs" {
				limit = beyondXFS
			}
			if err := g.ratio(kernelGoal(o.name, kind), limit, spans(took[o].write), spans(took[k].write), total, "MiB/s"); err != nil {
				return err
			}
			last := &g.res.Goals[len(g.res.Goals)-1]
			last.Unit, last.Aside = result.Times, limit == 0
		}
	}
	return nil
}
