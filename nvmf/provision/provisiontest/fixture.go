// Package provisiontest has Run, a conformance suite for provision.Provisioner, and
// Isolation, which attacks the namespace of another job.
package provisiontest

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/tcp"
)

// A Fixture is a target to provision, real or fake.
type Fixture interface {
	// Open returns a new provisioner, as in a new process of the administrator.
	Open(t *testing.T) provision.Provisioner
	// Connect opens a namespace as a host, with keys or without. If the host is not
	// allowed, it fails with nvmf.ErrHostRefused, ErrAuthentication or ErrNoSubsystem,
	// or with ErrUnreachable if no other namespace is served.
	Connect(id nvmf.TransportID, hostNQN string, keys dhchap.Keys) (Volume, error)
	// Interrupt makes the nth of the following steps fail, and all steps after it.
	// executed says whether the nth step is executed before it fails. fired reports
	// whether the step was reached.
	Interrupt(n int, executed bool) (fired func() bool)
	// Recover ends the effect of Interrupt: it restarts a target that has died.
	Recover(t *testing.T)
	// Restart stops the target and starts it again.
	Restart(t *testing.T)
	// Leftovers lists everything that exists of any job.
	Leftovers(t *testing.T) []string
	Traits() Traits
}

// Traits are the differences between kinds of target.
type Traits struct {
	Unit nvmf.Bytes // unit of sizes
	// Keyless says that the target does not support keys.
	Keyless bool
	// Limited says that the storage is so small that a test can use up all of it.
	Limited bool
	// Limits says that the target has rate limits.
	Limits bool
	// Paced says that the hosts are real, so that limits slow them down.
	Paced bool
	// Volatile says that nothing survives a restart. Forgetful says that only the data
	// survives, without the list of hosts.
	Volatile, Forgetful bool
}

// Volume is a namespace as a host sees it.
type Volume interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() nvmf.Bytes
}

// volume is a Volume over NVMe/TCP.
type volume struct {
	device nvmf.Device
	queue  nvmf.Queue
}

// Dial opens a namespace over NVMe/TCP.
func Dial(id nvmf.TransportID, hostNQN string, keys dhchap.Keys) (Volume, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	d, err := tcp.Open(ctx, id, tcp.Options{HostNQN: hostNQN, Keys: keys})
	if err != nil {
		return nil, err
	}
	q, err := d.OpenQueue(ctx, 8)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return &volume{d, q}, nil
}

func (v *volume) Size() nvmf.Bytes { return v.device.Identity().Capacity() }
func (v *volume) Close() error     { return errors.Join(v.queue.Close(), v.device.Close()) }

func (v *volume) ReadAt(p []byte, offset int64) (int, error)  { return v.move(nvmf.Read, p, offset) }
func (v *volume) WriteAt(p []byte, offset int64) (int, error) { return v.move(nvmf.Write, p, offset) }

func (v *volume) move(op nvmf.Opcode, p []byte, offset int64) (int, error) {
	id := v.device.Identity()
	done := 0
	for done < len(p) {
		n := min(len(p)-done, int(id.MaxTransfer))
		c := &nvmf.Command{Opcode: op, LBA: nvmf.LBA(offset+int64(done)) / nvmf.LBA(id.LBASize),
			Blocks: nvmf.LBA(n) / nvmf.LBA(id.LBASize), Data: [][]byte{p[done : done+n]}}
		v.queue.Submit([]*nvmf.Command{c})
		if err := v.queue.Wait([]*nvmf.Command{c}); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// bench combines a test with its fixture.
type bench struct {
	*testing.T
	Fixture
	p provision.Provisioner
}

func (b *bench) reopen() {
	if b.p != nil {
		assert.NoError(b, b.p.Close())
	}
	b.p = b.Open(b.T)
}

// find returns the namespace of a job.
func (b *bench) find(job string) (provision.Namespace, bool) {
	b.Helper()
	list, err := b.p.List(context.Background())
	require.NoError(b, err)
	for _, n := range list {
		if n.Job == job {
			return n, true
		}
	}
	return provision.Namespace{}, false
}

// connect connects a host without keys. It fails the test if the target refuses the
// host.
func (b *bench) connect(job, host string) Volume {
	b.Helper()
	return b.enter(job, host, dhchap.Keys{})
}

// enter connects a host with keys. It fails the test if the target refuses the host.
func (b *bench) enter(job, host string, keys dhchap.Keys) Volume {
	b.Helper()
	n, ok := b.find(job)
	require.True(b, ok && len(n.Targets) > 0, "%s is not served: %+v", job, n)
	v, err := b.Connect(n.Targets[0], host, keys)
	require.NoError(b, err)
	assert.Equal(b, n.Size, v.Size())
	return v
}

// refused checks that the target refuses a host without keys.
func (b *bench) refused(id nvmf.TransportID, host string) {
	b.Helper()
	b.stopped(id, host, dhchap.Keys{})
}

// stopped checks that the target refuses a host with keys.
func (b *bench) stopped(id nvmf.TransportID, host string, keys dhchap.Keys) {
	b.Helper()
	v, err := b.Connect(id, host, keys)
	if err == nil {
		_ = v.Close()
	}
	if !errors.Is(err, nvmf.ErrNoSubsystem) && !errors.Is(err, nvmf.ErrUnreachable) && !errors.Is(err, nvmf.ErrAuthentication) {
		require.ErrorIs(b, err, nvmf.ErrHostRefused)
	}
}

// fill connects as a host, and writes a pattern to every byte.
func (b *bench) fill(job, host string, pattern byte) {
	b.Helper()
	v := b.connect(job, host)
	data := make([]byte, v.Size())
	for i := range data {
		data[i] = pattern
	}
	_, err := v.WriteAt(data, 0)
	require.NoError(b, err)
	require.NoError(b, v.Close())
}

// holds connects as a host, and checks that every byte has the pattern.
func (b *bench) holds(job, host string, pattern byte) {
	b.Helper()
	v := b.connect(job, host)
	data := make([]byte, v.Size())
	_, err := v.ReadAt(data, 0)
	require.NoError(b, err)
	require.NoError(b, v.Close())
	for i, x := range data {
		if x != pattern {
			require.Failf(b, "wrong data", "%s: byte %d is %#x, not %#x", job, i, x, pattern)
		}
	}
}
