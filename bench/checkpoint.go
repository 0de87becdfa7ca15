package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/bench/workers"
	"nvmecr/nvmf"
)

// checkpoint compares the bandwidth of an application with the raw queues, the sockets
// baseline and the peers.
func checkpoint(ctx context.Context, e *Env) (res *result.Result, err error) {
	b, err := e.testbed(ctx, e.Size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	res = &result.Result{}
	w := work{size: e.Size, transfer: e.Transfer}
	a, err := b.application(ctx)
	if err != nil {
		return nil, err
	}
	sides, err := b.sides(ctx, a, res)
	if err != nil {
		return nil, err
	}
	took, err := e.inTurns(ctx, "checkpoints", w, true, sides...)
	if err != nil {
		return nil, err
	}
	n := sides[0].group.Size()
	total := float64(n) * float64(e.Size) / float64(nvmf.MiB)
	res.Tables = append(res.Tables, bandwidths(fmt.Sprintf("%s, %s each in pieces of %s, fsync and close included", rankCount(n), e.Size, e.Transfer), total, sides, took))
	ours := took[sides[0]]
	for _, s := range sides[1:] {
		if err := compare(res, n, total, e.Transfer, s.name, ours, took[s]); err != nil {
			return nil, err
		}
	}
	res.Finding = finding(res.Comparisons)
	if err := e.application(ctx, res, sides, took); err != nil {
		return nil, err
	}
	if err := b.besideIOR(ctx, res, a, sides); err != nil {
		return nil, err
	}
	if !e.Quick {
		// The sockets baseline is a ceiling for the raw queues, not storage.
		sides = slices.DeleteFunc(sides, func(s *side) bool { return s.name == socketsName })
		if err := e.sizes(ctx, res, sides); err != nil {
			return nil, err
		}
		if err := e.scaling(ctx, res, sides); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// finding returns the most important result.
func finding(all []result.Comparison) string {
	for _, c := range all {
		if c.Peer == rawName && !c.Void() {
			return fmt.Sprintf("The application has %.0f%% of the raw queues' bandwidth (%s).", 100*c.Ratio.Value, c.What)
		}
	}
	return ""
}

// sides starts all sides. The application is the first one.
func (b *testbed) sides(ctx context.Context, a *application, res *result.Result) ([]*side, error) {
	sides := []*side{a.side("nvmecr")}
	raw, err := b.rawSide(ctx)
	if err != nil {
		return nil, err
	}
	if raw == nil {
		res.NotMeasured("raw NVMe/TCP", "%s", b.why)
	} else {
		sides = append(sides, raw)
	}
	sockets, err := b.socketSide(ctx, b.env.Size)
	if err != nil {
		return nil, err
	}
	if sockets == nil {
		res.NotMeasured("sockets baseline", "both ends are processes that the benchmark starts on this host: leave --target and --launch out, and do not start it through mpirun or srun")
	} else {
		sides = append(sides, sockets)
	}
	if b.env.Quick && len(b.env.Peers) == 0 {
		return sides, nil // creating file systems would take longer than the measurement
	}
	peers, err := b.peers(ctx, a, res)
	if err != nil {
		return nil, err
	}
	unifyfs, err := b.unifyfs(ctx, res)
	return slices.Concat(sides, peers, unifyfs), err
}

// peers starts the file systems to compare with: those that the user names, otherwise
// those that this host supports.
func (b *testbed) peers(ctx context.Context, a *application, res *result.Result) ([]*side, error) {
	var sides []*side
	for _, p := range b.env.Peers {
		s, err := b.peerSide(ctx, a, p)
		if err != nil {
			return nil, err
		}
		sides = append(sides, s)
	}
	if len(sides) > 0 {
		return sides, nil
	}
	if dir, err := b.env.memoryDir(); err == nil && !b.env.remote() {
		s, err := b.peerSide(ctx, a, Peer{Name: "tmpfs", Dir: dir})
		if err != nil {
			return nil, err
		}
		sides = append(sides, s)
	}
	for _, kind := range []string{"xfs", "ext4"} {
		s, why, err := b.loopbackSide(ctx, a, kind)
		if err != nil {
			return nil, err
		}
		if s == nil {
			res.NotMeasured(kind+" on a loop device", "%s", why)
			continue
		}
		sides = append(sides, s)
	}
	for _, peer := range []struct {
		name string
		side func(context.Context, *application) (*side, string, error)
	}{{kernelHostName, b.kernelSide}, {glusterName, b.glusterSide}} {
		s, why, err := peer.side(ctx, a)
		if err != nil {
			return nil, err
		}
		if s == nil {
			res.NotMeasured(peer.name, "%s", why)
			continue
		}
		sides = append(sides, s)
	}
	return sides, nil
}

// bandwidths returns the table of the bandwidths of all sides.
func bandwidths(title string, total float64, sides []*side, took map[*side]*taken) result.Table {
	t := result.Table{Title: title, Rows: "side", Columns: []result.Column{
		{Name: "write", Unit: "MiB/s"}, {Name: "read", Unit: "MiB/s"},
		{Name: "median write", Unit: result.Duration}, {Name: "p99", Unit: result.Duration},
		{Name: "CPU of the ranks a GiB written", Unit: result.Duration}, {Name: "of that in the kernel", Unit: result.Percent},
	}}
	for _, s := range sides {
		w, r := took[s].write, took[s].read
		cpu, kernel := processor(w, total/1024)
		cells := []result.Cell{
			result.Number(result.Per(total, spans(w))), result.None(),
			result.Number(result.Middle(medians(w))), result.Count(worst(w)),
			result.Count(cpu), result.Count(kernel),
		}
		if len(r) > 0 {
			cells[1] = result.Number(result.Per(total, spans(r)))
		}
		t.Add(s.name, cells...)
	}
	return t
}

// worst returns the median over the rounds of the slowest rank's 99th percentile.
func worst(rounds []workers.Round) float64 {
	s := make(stats.Sample, len(rounds))
	for i, r := range rounds {
		s[i] = float64(r.Max("p99")) / 1e9
	}
	return s.Median()
}

// processor returns the processor time of a round per unit of its work, and the part that was spent
// in the kernel.
func processor(rounds []workers.Round, units float64) (seconds, kernel float64) {
	var user, system int64
	for _, r := range rounds {
		user += r.Sum("user")
		system += r.Sum("system")
	}
	if user+system == 0 {
		return 0, 0
	}
	return float64(user+system) / 1e9 / units / float64(len(rounds)), float64(system) / float64(user+system)
}

// compare adds the comparison with another side.
func compare(res *result.Result, ranks int, total float64, transfer nvmf.Bytes, peer string, ours, theirs *taken) error {
	for _, d := range []struct {
		name         string
		ours, theirs []workers.Round
	}{{"write", ours.write, theirs.write}, {"read", ours.read, theirs.read}} {
		if len(d.ours) == 0 || len(d.theirs) == 0 {
			continue
		}
		ratios, err := stats.Ratios(spans(d.theirs), spans(d.ours))
		if err != nil {
			return fmt.Errorf("%s beside %s: %w", d.name, peer, err)
		}
		res.Comparisons = append(res.Comparisons, result.Comparison{
			What: fmt.Sprintf("%s, %s, %s pieces", d.name, rankCount(ranks), transfer), Peer: peer,
			Ratio: result.Interval(ratios), Unit: "MiB/s",
			Ours: result.Per(total, spans(d.ours)), Theirs: result.Per(total, spans(d.theirs)),
			Why: reason(peer, d.name, theirs), Ceiling: peer == rawName || peer == socketsName,
		})
	}
	return nil
}

// Names of the raw side and of the sockets baseline.
const (
	rawName     = "raw NVMe/TCP"
	socketsName = "sockets baseline"
)

// reason returns the reason why a side is faster or slower than nvmecr.
func reason(peer, what string, theirs *taken) string {
	switch {
	case peer == rawName:
		return "it has no names, no log, no checksums: the difference is what the file system costs"
	case peer == socketsName:
		return "it carries no NVMe: payload and acknowledgement alone, into memory that is as cold"
	case peer == kernelHostName && what == "read":
		return "its page cache was dropped before, so that it reads over the same network and protocol, through the kernel"
	case peer == kernelHostName:
		return "it writes into the page cache, and fsync sends that over the same network and protocol; ours is durable when a write returns"
	case peer == unifyfsName && what == "read":
		return "it is one copy: a rank finds what it wrote itself in memory of its own host; a new process would ask the server, some 50 ms a call"
	case peer == unifyfsName:
		return "a write is one copy into memory of the rank's own host, without a network; fsync then tells the server, which first waits 50 ms for more to come"
	case peer == glusterName && what == "read":
		return "it goes through FUSE, a daemon and the network, with what the rank's host has kept dropped before"
	case peer == glusterName:
		return "it goes through FUSE, a daemon and the network into a file in memory; the daemon answers before the server has the data, and fsync waits for the server"
	case theirs.memory && what == "read":
		return "its files are memory of the rank's own host: a read is one copy, without a network"
	case theirs.memory:
		return "its files are memory of the rank's own host: a write is one copy into fresh pages, without a network, and fsync does nothing"
	case what == "read" && theirs.cached:
		return "what it reads it wrote just before: much or all comes out of the page cache of the rank's own host, which was not dropped (that takes root, and ranks on this host)"
	case what == "read":
		return "its page cache was dropped before, so that it reads from its device through the kernel"
	}
	return "it writes into the page cache, and fsync copies that to its device; ours crosses the network and is durable when a write returns"
}
