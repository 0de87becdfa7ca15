// Package hostile is for fuzz tests. It bounds the time and memory that a function may
// take for hostile input, and edits structures like an attacker who can compute their
// checksums.
package hostile

import (
	"encoding/binary"
	"fmt"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// idle is the factor on the time limit for a function that uses no processor time.
const idle = 15

// Bounded runs f and fails tb if it allocated more than memory bytes
// altogether. If f takes longer than limit the process ends with all stacks: a
// fuzzing engine has no other way to notice a hang. What counts is the time of
// the processors, which a busy machine has for others, too; one that sleeps has
// 15 times the limit.
//
// Nothing else may run or allocate meanwhile.
func Bounded(tb testing.TB, memory uint64, limit time.Duration, f func()) {
	tb.Helper()
	var done atomic.Bool
	begin, used := time.Now(), processorTime()
	var look func()
	look = func() {
		took := time.Since(begin)
		switch {
		case done.Load():
		case processorTime()-used < limit && took < idle*limit:
			time.AfterFunc(limit, look)
		default:
			debug.SetTraceback("all")
			panic(fmt.Sprintf("%s hangs: not done after %s", tb.Name(), took))
		}
	}
	timer := time.AfterFunc(limit, look)
	defer func() { done.Store(true); timer.Stop() }()
	before := allocated()
	f()
	if n := allocated() - before; n > memory {
		tb.Fatalf("%d bytes allocated, at most %d are allowed", n, memory)
	}
}

// processorTime returns how long this process has run on all processors.
func processorTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// allocated returns how many bytes this process ever allocated on the heap.
func allocated() uint64 {
	s := [1]metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s[:])
	return s[0].Value.Uint64()
}

// values are candidates for lengths, counts and offsets: extreme values, and values that overflow in additions or
// multiplications.
var values = [...]uint64{
	0, 1, 2, 3, 7, 255, 256, 4095, 4096, 65535, 65536, 1<<20 - 1, 1 << 24,
	1<<31 - 1, 1 << 31, 1<<32 - 2, 1<<32 - 1, 1 << 32, 1 << 40, 1<<52 - 1, 1 << 52,
	1<<60 - 1, 1 << 60, 1<<62 - 1, 1 << 62, 1<<63 - 1, 1 << 63, 1<<64 - 4096, 1<<64 - 2, 1<<64 - 1,
}

// editSize is the number of bytes of an edit in a script.
const editSize = 8

// Edit is one change to a place that script chooses, one of places:
//
//	0    which place         4-5  where in it, modulo its length
//	1    what to do          6-7  with what
//	2-3  reserved
//
// It changes 1, 2, 4 or 8 bytes: to a number from the script, to one from the
// ends of the range, by a small difference, or by a flipped bit.
func Edit(script []byte, places [][]byte) {
	place := places[int(script[0])%len(places)]
	if len(place) < 8 {
		return
	}
	at := int(binary.LittleEndian.Uint16(script[4:]))
	width := 1 << (script[1] & 3)
	at = at % (len(place) - 7) / width * width
	arg := uint64(binary.LittleEndian.Uint16(script[6:]))
	var b [8]byte
	p := place[at : at+width]
	copy(b[:], p)
	v := binary.LittleEndian.Uint64(b[:])
	switch script[1] >> 2 & 3 {
	case 0:
		v = arg
	case 1:
		v = values[arg%uint64(len(values))]
	case 2:
		v += uint64(int64(int16(arg)))
	case 3:
		v ^= 1 << (arg % 64)
	}
	binary.LittleEndian.PutUint64(b[:], v)
	copy(p, b[:width])
}

// Apply carries out all edits of a script, at most limit.
func Apply(script []byte, limit int, places [][]byte) {
	for n := 0; len(script) >= editSize && n < limit; n++ {
		Edit(script, places)
		script = script[editSize:]
	}
}
