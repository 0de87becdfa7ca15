package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"nvmecr/bench/workers"
	"nvmecr/internal/store"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
)

// RawRank runs a rank that writes and reads its part of a namespace through one queue,
// without a file system. It executes the commands write and read of the coordinator. It
// submits the NVMe commands of a piece together and waits for them, like the write of
// an application. If the path in a command is a number, each piece is one NVMe command,
// and the number is that of commands in flight. Unless core is negative, RawRank stays
// on that core. It returns when the coordinator says quit.
func RawRank(ctx context.Context, target nvmf.TransportID, driver dial.Driver, addresses string, core int) error {
	// The queue polls on this thread, as in an application.
	runtime.LockOSThread()
	if err := napAsRanksDo(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, usualSlack, 0, 0, 0); err != nil { // as the application's thread has it
		return err
	}
	if core >= 0 {
		var set unix.CPUSet
		set.Set(core)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("core %d: %w", core, err)
		}
	}
	place, err := store.ProcFromEnv(os.Getenv)
	if err != nil {
		return err
	}
	dev, err := dial.Open(ctx, target, dial.Options{Driver: driver})
	if err != nil {
		return err
	}
	defer dev.Close()
	q, err := newRawQueue(ctx, dev, place.Rank, place.Size)
	if err != nil {
		return err
	}
	defer q.queue.Close()
	return workers.Serve(ctx, addresses, q.prepare)
}

// nap is the timer slack in nanoseconds that the preload library sets for the Go
// runtime's threads (posixshim/shim/runtime/threads.c).
const nap = 2_000_000

// usualSlack is the default timer slack of threads.
const usualSlack = 50_000

// napAsRanksDo sets the timer slack of all threads of this process to that of a rank.
// Threads inherit it from the thread that started them, so the program executes itself
// again.
func napAsRanksDo() error {
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil || slack == nap {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, nap, 0, 0, 0); err != nil {
		return err
	}
	if slack, err = unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || slack != nap {
		return err // the system does not allow it
	}
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
}

// rawQueue is a queue and its part of the namespace, which it writes repeatedly from
// beginning to end. The memory that it writes to is then as cold as that of a file
// system's log.
type rawQueue struct {
	queue        nvmf.Queue
	id           *nvmf.Identity
	first, count nvmf.LBA // the rank's part of the namespace
	next, last   nvmf.LBA // start of the next write, and of the last one
	pieces       map[nvmf.Bytes]*batch
	times        []int64
}

// A batch is a piece of data and the commands that transfer it.
type batch struct {
	data     []byte
	blocks   nvmf.LBA
	commands []*nvmf.Command
}

func newRawQueue(ctx context.Context, dev nvmf.Device, slot, slots int) (*rawQueue, error) {
	queue, err := dev.OpenQueue(ctx, 128)
	if err != nil {
		return nil, err
	}
	id := dev.Identity()
	const align = nvmf.MiB
	q := &rawQueue{queue: queue, id: id, pieces: make(map[nvmf.Bytes]*batch)}
	q.count = nvmf.LBA((id.Capacity() / nvmf.Bytes(slots)).AlignDown(align) / id.LBASize)
	q.first = q.count * nvmf.LBA(slot)
	return q, nil
}

// batch returns the commands for a piece of n bytes.
func (q *rawQueue) batch(n nvmf.Bytes) (*batch, error) {
	if b := q.pieces[n]; b != nil {
		return b, nil
	}
	blocks := nvmf.LBA(n / q.id.LBASize)
	if n == 0 || n%q.id.LBASize != 0 || blocks > q.count {
		return nil, fmt.Errorf("pieces of %s do not fit a part of %d blocks of %s", n, q.count, q.id.LBASize)
	}
	b := &batch{data: make([]byte, n), blocks: blocks}
	for i := range b.data {
		b.data[i] = byte(i * 31)
	}
	for off := nvmf.Bytes(0); off < n; off += q.id.OptimalTransfer {
		part := b.data[off:min(off+q.id.OptimalTransfer, n)]
		b.commands = append(b.commands, &nvmf.Command{Blocks: nvmf.LBA(nvmf.Bytes(len(part)) / q.id.LBASize), Data: [][]byte{part}})
	}
	q.pieces[n] = b
	return b, nil
}

// aim sets the LBAs of the commands for a piece at lba.
func (b *batch) aim(op nvmf.Opcode, lba nvmf.LBA) {
	for _, c := range b.commands {
		c.Opcode, c.LBA = op, lba
		lba += c.Blocks
	}
}

// move writes or reads one piece.
func (q *rawQueue) move(op nvmf.Opcode, b *batch, lba nvmf.LBA) error {
	b.aim(op, lba)
	q.queue.Submit(b.commands)
	return q.queue.Wait(b.commands)
}

// stretch is the distance between the stamps of the rank in C.
const stretch = 32 << 10

// stamp changes the data, at the same cost as in the rank program in C.
func (b *batch) stamp(v uint64) {
	for i := 0; i+8 <= len(b.data); i += stretch {
		binary.LittleEndian.PutUint64(b.data[i:], v+uint64(i))
	}
}

// prepare prepares a command of the coordinator.
func (q *rawQueue) prepare(command string) (workers.Work, error) {
	var word, path string
	var size, transfer nvmf.Bytes
	var stamp uint64
	var flag int
	if _, err := fmt.Sscanf(command, "%s %d %d %d %d %s", &word, &size, &transfer, &stamp, &flag, &path); err != nil {
		return nil, fmt.Errorf("no such command for a raw rank: %s", command)
	}
	op, pieces := nvmf.Read, int(size/transfer)
	if word == "write" {
		op = nvmf.Write
	}
	if depth, err := strconv.Atoi(path); err == nil {
		return q.prepareStream(op, transfer, depth, pieces)
	}
	b, err := q.batch(transfer)
	if err != nil {
		return nil, err
	}
	q.times = slices.Grow(q.times[:0], pieces)[:0]
	at := q.last
	if op == nvmf.Write {
		at, q.last = q.next, q.next
	}
	return func() (map[string]int64, error) {
		var before, after unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
			return nil, err
		}
		end, err := q.pass(op, b, pieces, at, stamp)
		if err != nil {
			return nil, err
		}
		if op == nvmf.Write {
			q.next = end
		}
		if err := q.flush(op, flag); err != nil {
			return nil, err
		}
		if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
			return nil, err
		}
		took := q.summary()
		took["user"], took["system"] = after.Utime.Nano()-before.Utime.Nano(), after.Stime.Nano()-before.Stime.Nano()
		return took, nil
	}, nil
}

// flush executes a Flush, as fsync does, if the device needs it.
func (q *rawQueue) flush(op nvmf.Opcode, sync int) error {
	if op != nvmf.Write || sync == 0 || !q.id.VolatileWriteCache {
		return nil
	}
	c := []*nvmf.Command{{Opcode: nvmf.Flush}}
	q.queue.Submit(c)
	return q.queue.Wait(c)
}

// pass transfers pieces from LBA at on, and returns the LBA after them.
func (q *rawQueue) pass(op nvmf.Opcode, b *batch, pieces int, at nvmf.LBA, stamp uint64) (nvmf.LBA, error) {
	for i := range pieces {
		if at+b.blocks > q.count {
			at = 0
		}
		if op == nvmf.Write {
			b.stamp(stamp + uint64(i))
		}
		begin := workers.Now()
		if err := q.move(op, b, q.first+at); err != nil {
			return at, err
		}
		q.times = append(q.times, workers.Now()-begin)
		at += b.blocks
	}
	return at, nil
}

func (q *rawQueue) summary() map[string]int64 {
	n := len(q.times)
	if n == 0 {
		return make(map[string]int64)
	}
	slices.Sort(q.times)
	return map[string]int64{"calls": int64(n), "p50": q.times[n/2], "p99": q.times[n-1-n/100], "max": q.times[n-1]}
}
