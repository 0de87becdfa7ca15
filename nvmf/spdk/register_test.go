//go:build spdk

package spdk_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/spdk"
)

const (
	registerAll  nvmf.Bytes = 1
	registerNone nvmf.Bytes = 1 << 40
)

// rdmaPeer returns the peer if it uses RDMA, the transport for which memory is registered.
func rdmaPeer(tb testing.TB) nvmf.TransportID {
	id := peer(tb)
	if id.Transport != nvmf.RDMA {
		tb.Skip("only RDMA registers memory")
	}
	return id
}

// TestPeerRegistrationConformance runs the block device tests with as much data registered as
// possible, and with none.
func TestPeerRegistrationConformance(t *testing.T) {
	id := rdmaPeer(t)
	for name, register := range map[string]nvmf.Bytes{"all": registerAll, "none": registerNone} {
		t.Run(name, func(t *testing.T) {
			blocktest.Run(t, func(t *testing.T) nvmf.Device { return openDevice(t, id, spdk.Options{RegisterFrom: register}) })
		})
	}
}

// registration opens a device that registers all data, and opens queues of the device.
func registration(t *testing.T, id nvmf.TransportID, queues int) (d nvmf.Reserver, qs []nvmf.Queue) {
	d = openDevice(t, id, spdk.Options{RegisterFrom: registerAll})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	for range queues {
		qs = append(qs, openQueue(t, d, 8))
	}
	return d, qs
}

// noise returns memory with random content.
func noise(r *rand.Rand, size nvmf.Bytes) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// random returns a source of random numbers, and logs its seed.
func random(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// TestPeerRegistration checks that data of at least RegisterFrom bytes is registered, and that
// memory that cannot be registered is copied.
func TestPeerRegistration(t *testing.T) {
	id := rdmaPeer(t)
	const size = 128 * nvmf.KiB
	for _, c := range []struct {
		name     string
		register nvmf.Bytes
		want     int
	}{{"all", registerAll, 2}, {"as long as it is", size, 2}, {"longer", size + 1, 0}} {
		t.Run(c.name, func(t *testing.T) {
			d := openDevice(t, id, spdk.Options{RegisterFrom: c.register})
			defer func() { assert.NoError(t, d.Close()) }()
			q := openQueue(t, d, 1)
			want, got := noise(random(t), size), make([]byte, size)
			require.NoError(t, do(q, transfer(nvmf.Write, d, 0, want)))
			require.NoError(t, do(q, transfer(nvmf.Read, d, 0, got)))
			assert.True(t, bytes.Equal(want, got))
			assert.Equal(t, c.want, spdk.Registrations(q))
		})
	}
	t.Run("read-only memory", func(t *testing.T) {
		d, qs := registration(t, id, 1)
		b := mapped(t, size)
		want := noise(random(t), size)
		copy(b, want)
		require.NoError(t, unix.Mprotect(b, unix.PROT_READ))
		require.NoError(t, do(qs[0], transfer(nvmf.Write, d, 0, b)))
		got := make([]byte, size)
		require.NoError(t, do(qs[0], transfer(nvmf.Read, d, 0, got)))
		assert.True(t, bytes.Equal(want, got))
		require.NoError(t, unix.Munmap(b))
	})
	t.Run("memory that the kernel cannot register", func(t *testing.T) {
		d, qs := registration(t, id, 1)
		require.NoError(t, do(qs[0], transfer(nvmf.Write, d, 0, kernels(t))))
		assert.Zero(t, spdk.Registrations(qs[0]))
	})
}

// kernels returns a page of the kernel that processes can read: the data of the vDSO.
func kernels(t *testing.T) []byte {
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	m := regexp.MustCompile(`(?m)^([0-9a-f]+)-.*\[vvar\]$`).FindSubmatch(maps)
	require.NotNil(t, m)
	address, err := strconv.ParseUint(string(m[1]), 16, 64)
	require.NoError(t, err)
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), os.Getpagesize())
}

// mapped returns anonymous memory from mmap.
func mapped(t *testing.T, size nvmf.Bytes) []byte {
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	return b
}

// TestPeerRegistrationShared checks concurrent commands with the same memory, or with parts of
// memory that share pages.
func TestPeerRegistrationShared(t *testing.T) {
	id := rdmaPeer(t)
	d, qs := registration(t, id, 2)
	r := random(t)
	const size = 64 * nvmf.KiB
	blocks := nvmf.LBA(size / d.Identity().LBASize)
	block := d.Identity().LBASize

	t.Run("one buffer in two commands of one queue", func(t *testing.T) {
		want := noise(r, size)
		cmds := []*nvmf.Command{transfer(nvmf.Write, d, 0, want), transfer(nvmf.Write, d, blocks, want)}
		qs[0].Submit(cmds)
		require.NoError(t, qs[0].Wait(cmds))
		got := make([]byte, 2*size)
		require.NoError(t, do(qs[0], transfer(nvmf.Read, d, 0, got)))
		assert.True(t, bytes.Equal(slices.Concat(want, want), got))
	})
	t.Run("one piece twice in a command", func(t *testing.T) {
		want := noise(r, size)
		cmd := transfer(nvmf.Write, d, 0, want)
		cmd.Blocks, cmd.Data = 2*blocks, [][]byte{want, want}
		require.NoError(t, do(qs[0], cmd))
		got := make([]byte, 2*size)
		require.NoError(t, do(qs[0], transfer(nvmf.Read, d, 0, got)))
		assert.True(t, bytes.Equal(slices.Concat(want, want), got))
	})
	t.Run("two queues, overlapping", func(t *testing.T) {
		// The queues write from overlapping memory, and read into halves that share a page.
		memory := noise(r, size+block)
		into := make([]byte, 2*size+1)
		var group sync.WaitGroup
		for n, q := range qs {
			group.Go(func() {
				from := memory[nvmf.Bytes(n)*block:][:size]
				at := nvmf.LBA(n) * blocks
				to := into[1+nvmf.Bytes(n)*size:][:size]
				for range 20 {
					clear(to)
					if !assert.NoError(t, do(q, transfer(nvmf.Write, d, at, from))) || !assert.NoError(t, do(q, transfer(nvmf.Read, d, at, to))) {
						return
					}
					assert.True(t, bytes.Equal(from, to))
				}
			})
		}
		group.Wait()
	})
	for _, q := range qs {
		assert.NotZero(t, spdk.Registrations(q))
	}
}

// TestPeerRegistrationUnmapped checks that a program can unmap its memory as soon as the command
// has ended, and that later memory at the same address is registered anew.
func TestPeerRegistrationUnmapped(t *testing.T) {
	id := rdmaPeer(t)
	d, qs := registration(t, id, 1)
	q, r := qs[0], random(t)
	const size = 128 * nvmf.KiB
	for range 20 {
		want := noise(r, size)
		for _, op := range []nvmf.Opcode{nvmf.Write, nvmf.Read} {
			b := mapped(t, size)
			if op == nvmf.Write {
				copy(b, want)
			}
			require.NoError(t, do(q, transfer(op, d, 0, b)))
			if op == nvmf.Read {
				require.True(t, bytes.Equal(want, b))
			}
			require.NoError(t, unix.Munmap(b))
		}
	}
	assert.Equal(t, 40, spdk.Registrations(q))
}

// BenchmarkRegistration compares the time for registering memory with that for copying it,
// alternately. It reports medians, without the time of the commands.
func BenchmarkRegistration(b *testing.B) {
	id := rdmaPeer(b)
	var queues [2]nvmf.Queue
	for i, register := range []nvmf.Bytes{registerNone, registerAll} {
		d := openDevice(b, id, spdk.Options{RegisterFrom: register})
		defer d.Close()
		queues[i] = openQueue(b, d, 1)
	}
	for _, size := range []nvmf.Bytes{32 * nvmf.KiB, 64 * nvmf.KiB, 128 * nvmf.KiB, 256 * nvmf.KiB, 512 * nvmf.KiB, nvmf.MiB} {
		for _, op := range []nvmf.Opcode{nvmf.Write, nvmf.Read} {
			b.Run(fmt.Sprintf("%s/size=%d", op, size/nvmf.KiB), func(b *testing.B) {
				cmd := &nvmf.Command{Opcode: op, Data: [][]byte{make([]byte, size)}}
				var took [2][]time.Duration
				for b.Loop() {
					for i, q := range queues {
						began := time.Now()
						spdk.Handle(q, cmd)
						took[i] = append(took[i], time.Since(began))
					}
				}
				var median [2]time.Duration
				for i := range took {
					slices.Sort(took[i])
					median[i] = took[i][len(took[i])/2]
				}
				b.ReportMetric(float64(median[0].Microseconds()), "copied-µs")
				b.ReportMetric(float64(median[1].Microseconds()), "lent-µs")
				b.ReportMetric(float64(median[1])/float64(median[0]), "lent/copied")
			})
		}
	}
}
