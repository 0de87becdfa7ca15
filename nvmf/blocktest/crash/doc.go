// Package crash enumerates the contents that a device may have after a crash.
//
// A [Disk], or a blocktest.Faulty, records the commands of a workload in the order of
// their submission and completion. A [History] follows such a trace, given the contents
// of the device at its start. At any event it enumerates the contents that a crash at
// that moment may leave:
//
//	a command in flight          absent, whole, or torn at a byte; each LBA by
//	                             itself, since no device guarantees an order among
//	                             the LBAs of a command
//	a failed command             the same, until a later write to that LBA has
//	                             completed
//	a lost connection            the same for the commands in flight, for ever:
//	                             they may be executed late
//	a deallocated LBA            the old contents or zeros, until a later write to
//	                             that LBA has completed; in flight, as a write of
//	                             zeros
//	an LBA written since the     the durable version of the last flush, or any
//	last flush (volatile cache)  later one
//
// An LBA with more than one possible content is undetermined. Contents are compared by
// their bytes: an LBA that was overwritten with the same bytes is not undetermined.
//
// # What is enumerated
//
// For whole LBAs, all combinations are enumerated, if at most 16 LBAs are undetermined
// and there are at most Options.MaxImages combinations. Otherwise each single LBA and
// each pair of LBAs is varied, against the oldest and against the newest contents of
// all others, and random combinations follow.
//
// Torn LBAs are enumerated one at a time. The LBAs before it in its command are
// written, and those after it are not. The other commands in flight are absent or
// whole, in all combinations. Random images with two torn LBAs follow. Tearing at a
// byte that does not differ gives the same contents as tearing at the next one, so only
// differing bytes are torn at: after the first and before the last one, in the middle,
// at the edges of the first and the last runs of differing bytes, and at every multiple
// of 512. In a log page these places are in its version, its counts, its records and
// its checksum.
//
// The package does not interpret the bytes.
package crash
