// Package mirror is an nvmf.Device that keeps its bytes on two devices, as RAID 1
// does. If one device is lost, no data is lost, and the mirror continues with the other device alone.
//
// # Layout
//
// A namespace of a mirrored store has two halves, both multiples of 1 MiB, and four
// blocks of state at its end:
//
//	0                        the namespace's own bytes: the home side of a mirror
//	Half                     bytes of another namespace: the partner side of the mirror of that namespace
//	capacity - 16 KiB        state of the home side, two slots of 4 KiB
//	capacity -  8 KiB        state of the partner side, two slots
//
// A state, little endian:
//
//	   0  16  magic "NVMECR-MIRROR", padded with zeros
//	  16   4  version, 1
//	  20   4  slot, 0 or 1
//	  24   8  incompatible features: a state with an unknown bit is refused
//	  32   4  side: 0 home, 1 partner
//	  36   4  mode: 1 both, 2 alone, 3 stale
//	  40   8  generation, from 1 on
//	  48  16  UUID of the mirror, the same on both sides
//	  64   8  length of the mirror in bytes
//	  72      zeros
//	4088   8  CRC-64/NVME of bytes 0 to 4087
//
// A state of generation n is in slot n mod 2. The valid state of the later generation counts, so after a torn write the
// state of the previous generation is still there. Two processes that write the same generation write the same bytes.
//
// # Rules
//
//  1. A write, deallocation or flush is complete when both sides have completed it. A read uses
//     one side. It uses the other side if the first one reports a media error.
//  2. When one side is lost, a state of mode *alone*, with a new generation, is written durably to the
//     remaining side before the mirror acknowledges anything that only this side has.
//  3. A side of mode *alone* has all data. A side of mode *both* has all data if the other side is
//     of mode *both* in the same generation, or is another device now. Otherwise the other side
//     may have newer data, and neither side is used (ErrAway).
//  4. An outdated side is of mode *stale* from the first byte that Resync writes to it until the
//     side has all bytes in use. Then both sides become *both*, in a new generation, the copy first.
//  5. With each Wait for reads, a reader checks whether the side that it does not read is used
//     alone.
//  6. After a crash the two sides may differ where writes were in flight. None of those writes was acknowledged, so the data
//     of either side is correct. But data that was read once must not change. So a mount reads with Heal, which
//     writes the data that it has read from one side to the other one. Recovery depends only on the data that it reads, so
//     it has the same result on either side from then on. The same is done for data that is read after a lost
//     connection.
//
// # Concurrency
//
// A Device is safe for concurrent use. A Queue has one owner, as every nvmf.Queue, and
// runs the queues of both sides on the owner's thread.
package mirror
