package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"nvmecr/bench/result"
	"nvmecr/bench/stats"
	"nvmecr/internal/installed"
	"nvmecr/nvmf"
)

// The programs of SPDK that are used if they are installed.
const (
	spdkPerf   = "spdk_nvme_perf"
	spdkTarget = "nvmf_tgt"
)

// cubicLibrary sets the congestion control of SPDK's programs to that of nvmecr's
// sockets.
const cubicLibrary = "libnvmecr-bench-cubic.so"

// findSPDK returns the path of a program of SPDK.
func (e *Env) findSPDK(name string) (string, error) {
	if e.SPDK == "" {
		return exec.LookPath(name)
	}
	return exec.LookPath(filepath.Join(e.SPDK, name))
}

// underCubic returns the environment of SPDK's programs.
func (e *Env) underCubic() []string {
	library, err := installed.Find(cubicLibrary)
	if err != nil {
		return base()
	}
	return append(base(), "LD_PRELOAD="+library)
}

// An spdkNamespace is a namespace of SPDK's target on its malloc device. The target may
// have more namespaces.
type spdkNamespace struct {
	id       nvmf.TransportID
	more     []nvmf.TransportID
	cmd      *exec.Cmd // nil: the user has started the target
	lifeline io.Closer // the target ends when this is closed, even if this process dies
	pid      int       // of the target
}

// spdkScript runs the target until its standard input ends, and prints the target's
// pid.
const spdkScript = `"$@" </dev/null >&2 &
echo $!
cat >/dev/null
kill -CONT $! 2>/dev/null # unless it has ended
kill $! 2>/dev/null
wait $!
`

// pause stops or continues the target. A running target polls all the time, and would
// use a core while other sides are measured.
func (s *spdkNamespace) pause(yes bool) {
	sig := syscall.SIGCONT
	if yes {
		sig = syscall.SIGSTOP
	}
	if s.pid > 0 {
		_ = syscall.Kill(s.pid, sig) // if the target has ended, the next run reports it
	}
}

// Close ends the target.
func (s *spdkNamespace) Close() error {
	if s.cmd == nil {
		return nil
	}
	s.lifeline.Close()
	kill := time.AfterFunc(targetEnd, func() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
	defer kill.Stop()
	_ = s.cmd.Wait() // the exit status is irrelevant
	return nil
}

// startSPDK starts SPDK's target on the first core, with count namespaces, or uses the target that
// the user names.
func (e *Env) startSPDK(ctx context.Context, size nvmf.Bytes, count int) (*spdkNamespace, error) {
	if e.SPDKTarget != "" {
		id, err := nvmf.ParseTransportID(e.SPDKTarget)
		return &spdkNamespace{id: id}, err
	}
	program, err := e.findSPDK(spdkTarget)
	if err != nil {
		return nil, fmt.Errorf("%s is not in PATH, and no --spdk-target is given", spdkTarget)
	}
	// The name of a socket has at most 107 bytes, and TMPDIR alone may be longer.
	dir, err := e.claims.in("/tmp")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "spdk.sock")
	_ = os.Remove(socket) // of an earlier run
	var said bytes.Buffer
	memory := uint64(count)*uint64(size/nvmf.MiB) + 1024
	s := &spdkNamespace{cmd: exec.Command("sh", "-c", spdkScript, "sh", program, "--no-huge", "-s", strconv.FormatUint(memory, 10),
		"--iova-mode=va", "-m", "0x1", "--no-pci", "--disable-cpumask-locks", "-r", socket)}
	s.cmd.Env, s.cmd.Stderr = e.underCubic(), &said
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.lifeline, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	if _, err = fmt.Fscanln(stdout, &s.pid); err == nil {
		s.id, s.more, err = setUpSPDK(ctx, socket, size, count)
	}
	if err != nil {
		_ = s.Close() // err is the cause
		return nil, fmt.Errorf("%s: %w: %s", spdkTarget, err, lastLine(said.Bytes()))
	}
	return s, nil
}

// setUpSPDK creates namespaces, and makes the target listen.
func setUpSPDK(ctx context.Context, socket string, size nvmf.Bytes, count int) (id nvmf.TransportID, more []nvmf.TransportID, err error) {
	const nqn = "nqn.2014-08.org.nvmecr:bench-spdk"
	id = nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: "127.0.0.1", SubNQN: nqn, NSID: 1}
	port, err := freePort()
	if err != nil {
		return id, nil, err
	}
	id.Service = strconv.Itoa(port)
	conn, err := dialWhenThere(ctx, socket)
	if err != nil {
		return id, nil, err
	}
	defer conn.Close()
	type args = map[string]any
	type call struct {
		method string
		params args
	}
	calls := []call{
		{"nvmf_create_transport", args{"trtype": "TCP", "max_io_size": 1 << 20}},
		{"nvmf_create_subsystem", args{"nqn": nqn, "serial_number": "NVMECRBENCH", "allow_any_host": true, "max_namespaces": count}},
	}
	for i := range count {
		name := fmt.Sprintf("bench%d", i)
		calls = append(calls, call{"bdev_malloc_create", args{"name": name, "num_blocks": uint64(size / 4096), "block_size": 4096}},
			call{"nvmf_subsystem_add_ns", args{"nqn": nqn, "namespace": args{"bdev_name": name, "nsid": i + 1}}})
		if other := id; i > 0 {
			other.NSID = uint32(i + 1)
			more = append(more, other)
		}
	}
	calls = append(calls, call{"nvmf_subsystem_add_listener", args{"nqn": nqn, "listen_address": args{
		"trtype": "TCP", "adrfam": "IPv4", "traddr": id.Address, "trsvcid": id.Service}}})
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	for i, c := range calls {
		if err := out.Encode(args{"jsonrpc": "2.0", "id": i + 1, "method": c.method, "params": c.params}); err != nil {
			return id, nil, err
		}
		var answer struct {
			Error *struct{ Message string }
		}
		if err := in.Decode(&answer); err != nil {
			return id, nil, fmt.Errorf("%s: %w", c.method, err)
		}
		if answer.Error != nil {
			return id, nil, fmt.Errorf("%s: %s", c.method, answer.Error.Message)
		}
	}
	return id, more, nil
}

// freePort returns a port that currently has no listener, since SPDK cannot let the
// system choose one.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func dialWhenThere(ctx context.Context, socket string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, targetStart)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			return conn, conn.SetDeadline(time.Now().Add(targetStart))
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// A load is the work of an initiator.
type load struct {
	read     bool
	transfer nvmf.Bytes // of each operation
	count    int        // total number of operations
}

// perfRate runs SPDK's tool on the last core, with depth operations in flight, and returns its
// MiB/s.
func (e *Env) perfRate(ctx context.Context, program string, id nvmf.TransportID, l load, depth int, more ...string) (float64, error) {
	out, err := e.perf(ctx, program, id, l, cores()-1, append(more, "-q", strconv.Itoa(depth), "-t", "20", "-d", strconv.Itoa(l.count))...)
	if err != nil {
		return 0, err
	}
	return parsePerf(out)
}

// perf runs SPDK's tool on a core and returns its output.
func (e *Env) perf(ctx context.Context, program string, id nvmf.TransportID, l load, core int, args ...string) ([]byte, error) {
	pattern := "write"
	if l.read {
		pattern = "read"
	}
	where := fmt.Sprintf("trtype:TCP adrfam:%s traddr:%s trsvcid:%s subnqn:%s ns:%d", id.Family, id.Address, id.Service, id.SubNQN, id.NSID)
	args = append([]string{"--no-huge", "-s", "256", "-c", fmt.Sprintf("[%d]", core),
		"-o", strconv.FormatUint(uint64(l.transfer), 10), "-w", pattern, "-r", where}, args...)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = e.underCubic()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", spdkPerf, err, lastLine(out))
	}
	return out, nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// parsePerf returns the MiB/s of "Total : IOPS MiB/s average min max".
func parsePerf(out []byte) (float64, error) {
	for _, line := range strings.Split(string(out), "\n") {
		rest, ok := strings.CutPrefix(line, "Total ")
		if !ok {
			continue
		}
		fields := strings.Fields(strings.TrimLeft(rest, " :"))
		if len(fields) < 2 {
			continue
		}
		if rate, err := strconv.ParseFloat(fields[1], 64); err == nil && rate > 0 {
			return rate, nil
		}
	}
	return 0, fmt.Errorf("%s printed no result: %s", spdkPerf, lastLine(out))
}

// The loads to compare, with their goals.
var spdkLoads = []struct {
	name string
	load
	both float64 // goal for nvmecr's initiator and target as a multiple of SPDK's rate; 0 means none
}{
	{"write 1 MiB", load{false, nvmf.MiB, 800}, 1.5},
	{"write 32 KiB", load{false, 32 * nvmf.KiB, 8000}, 1.6},
	{"write 4 KiB", load{false, 4 * nvmf.KiB, 16000}, 0},
	{"read 1 MiB", load{true, nvmf.MiB, 800}, 1.25},
	{"read 32 KiB", load{true, 32 * nvmf.KiB, 8000}, 1.15},
	{"read 4 KiB", load{true, 4 * nvmf.KiB, 16000}, 0},
}

// spdkPairs is the number of pairs of measurements of each comparison.
const spdkPairs = 20

// spdk compares nvmecr's initiator with SPDK's tool, on SPDK's target and on nvmecr's.
func (g *goalRun) spdk(ctx context.Context) (err error) {
	t, why, err := g.besideSPDK(ctx)
	if t == nil {
		for _, l := range spdkLoads {
			g.absent(result.Goal{What: l.name + ": our initiator beside SPDK's, on SPDK's target", Limit: 1, Unit: result.Ratio}, why)
			if l.both > 0 {
				g.absent(result.Goal{What: l.name + ": our initiator and target beside SPDK's", Limit: l.both, Unit: result.Times}, why)
			}
		}
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if err := t.startSides(ctx); err != nil {
		return err
	}
	for _, l := range spdkLoads {
		if err := t.run(ctx, g, l.name, l.load, l.both); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	g.res.Note("SPDK's programs have the congestion control that ours have; its target polls a core of its own and is stopped while ours is measured. One operation is in flight at a time. Ours of 1 MiB is 8 commands of 128 KiB that are started together; SPDK's is as many as its library makes of it. Our target receives straight into the namespace's memory, SPDK's malloc device copies once more.")
	return nil
}

// An spdkTrial has SPDK's tool, and the targets of SPDK and of nvmecr, both with memory
// that was used before. It has three sides of one rank: SPDK's tool on SPDK's target,
// nvmecr's initiator on SPDK's target, and nvmecr's initiator on nvmecr's target.
type spdkTrial struct {
	*Env
	tool    string
	theirs  *spdkNamespace
	target  nvmf.TransportID // the namespace of nvmecr's target
	mixed   *side
	ours    *side
	closers []io.Closer
}

// spdkSize is the size of a namespace.
const spdkSize = 512 * nvmf.MiB

// besideSPDK starts both targets. Without SPDK it returns nil and the reason.
func (g *goalRun) besideSPDK(ctx context.Context) (t *spdkTrial, why string, err error) {
	tool, err := g.findSPDK(spdkPerf)
	if err != nil {
		return nil, spdkPerf + " is not in PATH; name its directory with --spdk", nil
	}
	theirs, err := g.startSPDK(ctx, spdkSize, 1)
	if err != nil {
		return nil, err.Error(), ctx.Err()
	}
	t = &spdkTrial{Env: g.with(1), tool: tool, theirs: theirs, closers: []io.Closer{theirs}}
	if err := t.startOurs(ctx); err != nil {
		return nil, "", errors.Join(err, t.Close())
	}
	return t, "", nil
}

func (t *spdkTrial) startOurs(ctx context.Context) error {
	target, err := t.startTarget(ctx, fmt.Sprintf("mem:%d", uint64(spdkSize)))
	if err != nil {
		return err
	}
	t.closers, t.target = append(t.closers, target), target.ids[0]
	return errors.Join(touch(ctx, t.theirs.id), touch(ctx, t.target))
}

// Close ends everything that the trial has started.
func (t *spdkTrial) Close() error { return closeAll(t.closers) }

// startSides starts nvmecr's initiators, on the core that SPDK's tool uses.
func (t *spdkTrial) startSides(ctx context.Context) error {
	last := strconv.Itoa(cores() - 1)
	for _, s := range []struct {
		to   **side
		id   nvmf.TransportID
		name string
	}{{&t.mixed, t.theirs.id, "ours on SPDK's target"}, {&t.ours, t.target, "ours"}} {
		c, err := t.startGroup(ctx, base(), t.Bench, "rank-raw", "--driver", string(t.Config.Driver), "--core", last, "--namespace", s.id.String())
		if err != nil {
			return err
		}
		r := &raw{c}
		t.closers = append(t.closers, r)
		*s.to = r.side(s.name)
	}
	return nil
}

// run measures one load in turns and adds its goals.
func (t *spdkTrial) run(ctx context.Context, g *goalRun, name string, l load, both float64) error {
	total := float64(l.count) * float64(l.transfer) / float64(nvmf.MiB)
	w := work{size: nvmf.Bytes(l.count) * l.transfer, transfer: l.transfer}
	own := func(s *side) (float64, error) {
		r := s.write
		if l.read {
			r = s.read
		}
		round, err := r(ctx, w, 0)
		return total / round.Span().Seconds(), err
	}
	sides := []func() (float64, error){
		func() (float64, error) { return t.perfRate(ctx, t.tool, t.theirs.id, l, 1) },
		func() (float64, error) { return own(t.mixed) },
		func() (float64, error) {
			t.theirs.pause(true)
			defer t.theirs.pause(false)
			return own(t.ours)
		},
	}
	pairs := spdkPairs
	if g.Quick {
		pairs = 2
	}
	rates, err := ratesInTurns(pairs, sides, func(pair int) { t.progress(name+" beside SPDK", pair, pairs+1) })
	if err != nil {
		return err
	}
	add := func(what string, limit float64, unit result.Unit, rate stats.Sample) error {
		ratios, err := stats.Ratios(rate, rates[0])
		if err != nil {
			return err
		}
		g.add(result.Goal{What: name + ": " + what, Limit: limit, Unit: unit, Measured: result.Interval(ratios),
			Beside: fmt.Sprintf("%.0f of %.0f MiB/s, %d pairs", rate.Median(), rates[0].Median(), len(ratios))})
		return nil
	}
	if err := add("our initiator beside SPDK's, on SPDK's target", 1, result.Ratio, rates[1]); err != nil || both == 0 {
		return err
	}
	return add("our initiator and target beside SPDK's", both, result.Times, rates[2])
}
