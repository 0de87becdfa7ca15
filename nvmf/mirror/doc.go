// Package mirror is an nvmf.Device that keeps its bytes on two devices, as RAID 1
// does: a loss of either one costs nothing, and the one that is left goes on alone.
//
// # What is where
//
// A namespace of a mirrored store has two halves, both multiples of 1 MiB, and four
// blocks of state at its end:
//
//	0                        its own bytes: the home side of a mirror
//	Half                     another namespace's bytes: the partner side of that one's mirror
//	capacity - 16 KiB        state of the home side, two slots of 4 KiB
//	capacity -  8 KiB        state of the partner side, two slots
//
// A state, little endian:
//
//	   0  16  magic "NVMECR-MIRROR", padded with zeros
//	  16   4  version, 1
//	  20   4  slot, 0 or 1
//	  24   8  incompatible features: an unknown bit refuses the state
//	  32   4  side: 0 home, 1 partner
//	  36   4  mode: 1 both, 2 alone, 3 stale
//	  40   8  generation, from 1 on
//	  48  16  UUID of the mirror, the same on both sides
//	  64   8  length of the mirror in bytes
//	  72      zeros
//	4088   8  CRC-64/NVME of bytes 0 to 4087
//
// A state of generation n is in slot n mod 2, the newer one counts, so a torn write leaves one. Two processes
// that write the same generation write the same bytes.
//
// # Rules
//
//  1. A write, deallocation or flush is complete when it is on both sides. A read is of
//     one side, and of the other one where the device says that its data is damaged.
//  2. Where one side is lost and the other is not, the one that is left says *alone*, in a
//     new generation, durably, before anything is acknowledged that only it has.
//  3. A side that says *alone* has everything. One that says *both* has, if the other one
//     says so in the same generation, or is another device now. Otherwise the other one
//     may be ahead, and neither is used (ErrAway).
//  4. A side that is behind is *stale* from the first byte that Resync writes to it until
//     all bytes in use are there. Then both say *both*, in a new generation, the copy first.
//  5. A reader looks, with each Wait, whether the side that it does not read has gone on
//     alone.
//  6. After a crash the two sides may differ in what was in flight. Nothing of that was acknowledged, so either is
//     right, but what has been read once must stay: a mount reads with Heal, which
//     writes to the other side what it has read from the one. As recovery is a function of what it reads,
//     it finds the same on either side from then on. The same goes for what is read after a lost
//     connection.
//
// # Concurrency
//
// A Device is safe for concurrent use. A Queue has one owner, as every nvmf.Queue, and
// runs the queues of both sides on the owner's thread.
package mirror
