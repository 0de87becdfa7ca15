// Package crash enumerates what a device may hold after a crash.
//
// A [Disk], or a blocktest.Faulty, records the commands of a workload in the
// order of their submission and of their completion. A [History] follows such
// a trace over the content there was before, and at any event of it lists the
// contents that a crash at that moment may leave:
//
//	a command in flight          absent, whole, or torn at a byte; each of its
//	                             LBAs on its own, since no device promises an
//	                             order among the LBAs of one command
//	refused, or its connection   the same; until a later write to that LBA has
//	was lost                     completed, or (lost) for ever: it may be late
//	deallocated                  what it was, or zeros, until a later write to that
//	                             LBA has completed; in flight, as a write of zeros
//	an LBA written since the     any version it had since then, that of the
//	last flush (volatile cache)  flush included
//
// An LBA with more than one possible content is undetermined. Contents are
// told apart by their bytes: an LBA that was written with what it held before
// is not undetermined.
//
// # What is enumerated
//
// Of whole LBAs, every combination, where at most 16 LBAs are undetermined and
// they make no more than Options.MaxImages images. Beyond that every single LBA and
// every pair of them, against the oldest and against the newest content of all
// others, and random ones.
//
// Of torn LBAs, one at a time: with every combination of the other commands in
// flight absent or whole, what precedes it in its command written and what
// follows not; and with it two random others torn, too. Torn at a byte that
// does not differ is the same as torn at the next one, so the bytes to tear at
// are chosen among those that do: behind the first, before the last, in the
// middle, at the edges of the first and the last runs of differing bytes (in a
// log page: its version, its counts, its records, its checksum), and at every
// multiple of 512.
//
// Nothing here knows what the bytes mean.
package crash
