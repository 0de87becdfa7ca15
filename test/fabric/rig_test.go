package fabric

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/wiretest"
)

var all = flag.Bool("all", false, "try all moments, not a sample")

const (
	nqn     = "nqn.2014-08.org.example:fabric"
	size    = 16 * nvmf.MiB
	segment = 14 * nvmf.MiB
	// commandTimeout must be long enough for most commands on a busy machine; exceeding it causes a pause.
	commandTimeout = 400 * time.Millisecond
	// connectTimeout is the delay if a PDU is lost while a host connects.
	connectTimeout = 5 * time.Second
	// patience is how long an operation waits for a target that comes back.
	patience = 5 * time.Minute
)

// shape has the parameters of target, connection and file system.
type shape struct {
	name     string
	lba      nvmf.Bytes
	capsule  nvmf.Bytes // in-capsule data; the rest is transferred by R2T
	cache    bool       // the device has a volatile write cache, and data is copied
	header   bool       // PDU digests
	data     bool
	noCRC    bool
	length   nvmf.Bytes    // length of the segment; 0 is segment
	logPages int           // 0 is 64
	transfer nvmf.Bytes    // maximum transfer of a command; 0 is 64 KiB
	patient  time.Duration // time-out for a lost target; 0 is patience
	silent   time.Duration // time-out of a command; 0 is commandTimeout
}

var shapes = []shape{
	{name: "R2T", lba: 4096, capsule: 4096},
	{name: "in capsule, 512 byte blocks, volatile cache", lba: 512, capsule: 256 << 10, cache: true},
	{name: "digests", lba: 4096, capsule: 8192, header: true, data: true},
}

func (s shape) options() tcp.Options {
	return tcp.Options{
		HeaderDigest: s.header, DataDigest: s.data, KeepAlive: -1,
		CommandTimeout: cmp.Or(s.silent, commandTimeout), ConnectTimeout: connectTimeout, OptimalTransfer: cmp.Or(s.transfer, 64*nvmf.KiB),
	}
}

// backing returns storage of the shape.
func (s shape) backing(t testing.TB) target.Backing {
	if !s.cache {
		b, err := target.NewMemory(size, s.lba)
		require.NoError(t, err)
		return b
	}
	d, err := memdev.New(size, s.lba, memdev.Options{VolatileWriteCache: true})
	require.NoError(t, err)
	return target.NewDevice(d)
}

// serve starts a target over b.
func (s shape) serve(t testing.TB, b target.Backing) *target.Target {
	tgt, err := target.New(target.Config{InCapsule: s.capsule, Subsystems: []target.Subsystem{{
		NQN: nqn, Namespaces: []target.Namespace{{NSID: 1, Backing: b}},
	}}})
	require.NoError(t, err)
	_, err = tgt.Listen("127.0.0.1:0")
	require.NoError(t, err)
	return tgt
}

func shut(t testing.TB, tgt *target.Target) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, tgt.Close(ctx))
}

func idOf(a net.Addr) nvmf.TransportID {
	host, port, _ := net.SplitHostPort(a.String())
	return nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: host, Service: port, SubNQN: nqn, NSID: 1}
}

// rig is a formatted namespace behind a wire.
type rig struct {
	shape
	t    testing.TB
	tgt  *target.Target
	wire *wiretest.Proxy
	id   nvmf.TransportID // direct, without the wire
	what string           // for messages
	fs   *microfs.FS
	dev  nvmf.Device
}

func newRig(t testing.TB, s shape, what string) *rig {
	return newRigOn(t, s, what, s.serve(t, s.backing(t)))
}

func newRigOn(t testing.TB, s shape, what string, tgt *target.Target) *rig {
	r := &rig{shape: s, t: t, tgt: tgt, what: s.name + ", " + what}
	r.id = idOf(tgt.Addr())
	var err error
	r.wire, err = wiretest.New(tgt.Addr().String())
	require.NoError(t, err)
	o := r.options()
	o.CommandTimeout, o.ConnectTimeout = patience, patience
	dev, err := tcp.Open(t.Context(), r.id, o)
	require.NoError(t, err)
	require.NoError(t, microfs.Format(t.Context(), dev, r.segment(), microfs.FormatOptions{
		LogPages: cmp.Or(s.logPages, 64), NoDataCRC: s.noCRC, RootMode: 0o755,
	}))
	require.NoError(t, dev.Close())
	return r
}

func (r *rig) segment() microfs.Segment {
	return microfs.Segment{Start: nvmf.MiB, Length: cmp.Or(r.length, segment)}
}

// mount mounts over the wire, which may be slow. A mount fails if its connection is lost; the next attempt must work.
func (r *rig) mount() error {
	err := r.tryMount()
	for i := 0; errors.Is(err, nvmf.ErrConnectionLost) && i < 5; i++ {
		err = r.tryMount()
	}
	return err
}

// tryMount opens the namespace over the wire and mounts it for writing.
func (r *rig) tryMount() error {
	o := r.options()
	dev, err := tcp.Open(r.t.Context(), r.wire.Through(r.id), o)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	fs, err := microfs.Mount(r.t.Context(), dev, r.segment(), microfs.Options{Timeout: cmp.Or(r.patient, patience)})
	if err != nil {
		_ = dev.Close() // err is the cause
		return fmt.Errorf("mount: %w", err)
	}
	r.dev, r.fs = dev, fs
	return nil
}

// crash ends the mount like a kill of the process: nothing more is written.
func (r *rig) crash() {
	if r.fs == nil {
		return
	}
	require.NoError(r.t, r.dev.Close(), r.what)
	_ = r.fs.Unmount() // without the device it writes nothing
	r.fs, r.dev = nil, nil
}

// direct mounts without the wire, for writing, and calls f.
func (r *rig) direct(f func(fs *microfs.FS)) error {
	o := r.options()
	o.CommandTimeout, o.ConnectTimeout = patience, patience
	dev, err := tcp.Open(r.t.Context(), r.id, o)
	require.NoError(r.t, err, r.what)
	defer dev.Close()
	fs, err := microfs.Mount(r.t.Context(), dev, r.segment(), microfs.Options{})
	if err != nil {
		return err
	}
	f(fs)
	return fs.Unmount()
}

func (r *rig) close() {
	r.crash()
	r.wire.Close()
	shut(r.t, r.tgt)
}
