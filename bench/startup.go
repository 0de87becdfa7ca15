package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"time"

	"nvmecr/bench/paper"
	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/bench/workers"
	"nvmecr/nvmf"
)

// startup measures how much the preload slows down a program that does nothing, and the
// memory of a rank that only mounts.
func startup(ctx context.Context, e *Env) (*result.Result, error) {
	res := &result.Result{}
	if err := e.startTrue(ctx, res); err != nil {
		return nil, err
	}
	return res, e.memory(ctx, res)
}

// startTrue compares /bin/true with and without the preload, in turns.
func (e *Env) startTrue(ctx context.Context, res *result.Result) error {
	with, err := e.Under(e.Config, base())
	if err != nil {
		return err
	}
	starts := 400
	if e.Quick {
		starts = 100
	}
	var plain, more stats.Sample
	for i := range starts {
		if err := ctx.Err(); err != nil {
			return err
		}
		e.progress("starts of /bin/true", i, starts)
		p, err := timeTrue(base())
		if err != nil {
			return err
		}
		q, err := timeTrue(with)
		if err != nil {
			return err
		}
		plain, more = append(plain, p), append(more, q-p)
	}
	res.Goals = append(res.Goals, result.Goal{
		What: "/bin/true under the preload takes longer by", Limit: 100e-6, AtMost: true, Unit: result.Duration,
		Measured: result.Interval(more), Beside: fmt.Sprintf("%.2f ms without", plain.Median()*1000),
	})
	return nil
}

// timeTrue returns the duration of /bin/true in seconds.
func timeTrue(env []string) (float64, error) {
	cmd := exec.Command("/bin/true")
	cmd.Env = env
	begin := time.Now()
	err := cmd.Run()
	return time.Since(begin).Seconds(), err
}

// memory compares the resident set of an idle rank with and without nvmecr.
func (e *Env) memory(ctx context.Context, res *result.Result) (err error) {
	b, err := e.testbed(ctx, 32*nvmf.MiB)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	plain, err := e.startGroup(ctx, base(), e.Rank)
	if err != nil {
		return err
	}
	without, err := resident(ctx, plain, "/nonexistent")
	if err = errors.Join(err, plain.Stop()); err != nil {
		return err
	}
	a, err := b.application(ctx)
	if err != nil {
		return err
	}
	with, err := resident(ctx, a.group, path.Join(a.cfg.Mount, "absent"))
	if err != nil {
		return err
	}
	res.Goals = append(res.Goals, result.Goal{
		What: "memory of an idle rank is larger by", Limit: 32 * float64(nvmf.MiB), AtMost: true, Unit: result.Size,
		Measured: result.Exactly(with - without), Beside: fmt.Sprintf("%.1f MiB without", without/float64(nvmf.MiB)),
	})
	res.Claims = append(res.Claims, paper.Memory.Beside("an idle rank's process grows by %.0f MB, %.0f%% of that", (with-without)/paper.MB, 100*(with-without)/paper.Memory.Value))
	return nil
}

// resident returns the resident bytes of the largest rank.
func resident(ctx context.Context, c *workers.Group, path string) (float64, error) {
	r, err := c.DoAll(ctx, "memory "+path)
	return float64(r.Max("resident")), err
}
