// Package oplog is the operation log of one micro file system, a logical redo
// log: records of operations, coalesced, in pages of 4 KiB. The log survives a
// crash at any instruction. Of the commands in flight any subset may have
// completed, in any order, torn at any byte.
//
// The package does no I/O while it logs. It builds page images and the commands
// that write them; the file system submits these commands together with the data
// that the records describe. So an application write costs one round trip. Only
// [Recover], [Log.Survived], [Log.Unchanged], [Log.Inspect] and [Survey] read,
// through functions of the caller.
//
// A Log has one owner at a time and no lock; microfs calls it under its own.
//
// # Terms
//
// A page is 4 KiB of log and has two slots on the media. An image is the
// content of a whole page. A group is what one image adds: the records of one
// operation, or of a part of it (rule 10), and the data they describe. An image is
// settled when all commands of its group have completed, those of the data and that of
// the image. On a device without a volatile write cache settled means durable.
//
// # Use
//
//	Recover, [Suspect,] Seal, Commit: the start
//	Begin, [More,] Append for each record, Commit: a group
//	Defer: a record that the next group writes in front of its own
//	Mirror, Mark, Finish: a group that writes the records of the tail once more, into the other slot
//	    of its page
//	    Mirror    unchanged (fsync; with a volatile cache before the Flush)
//	    Mark      with its own page as the last durable one (volatile cache)
//	    Finish    as the end of its operation (rule 10)
//	    If one of them returns no commands although its image is needed, Begin(0) and Commit
//	    (CommitMark instead of Mark) start a page that has the same effect.
//	InDoubt: a failed group may be on the media; Begin(0) and Supersede overwrite it
//	Prior, then Release: a state checkpoint
//
// The caller submits the commands of a group, waits until all have completed, and calls
// Settled, Failed or Lost.
//
// # Ring
//
// Pages are numbered from 1 and never renumbered. Page n lives at
//
//	slot s of page n = start of the ring + ((n mod Pages)*2 + s) * 4096
//
// # Rules
//
//  1. Data goes only to blocks that are free in the last settled state, or
//     past the covered end of a unit (microfs).
//  2. One image is in flight. Image v goes to the slot that does not hold the
//     last settled image of its page; the first image of a page goes to slot 0.
//  3. Image v+1 is submitted only when v has settled, or has failed for good.
//  4. An image lists the units whose data had not completed when it was
//     submitted (pending).
//  5. A full page keeps its final image. The first image of the next page is
//     submitted together with a copy of that image for the page's other slot. Sync puts
//     the newest records in both slots, so that one bad sector is repaired. After
//     an image that a state header names, its page gets no other one.
//  6. Coalescing grows a record in the tail page only: the newest Write record of its
//     inode, and only while all records after it are Write records.
//  7. After a lost connection the next image starts a new page: the pages that
//     had a command in flight are not written again for [Quarantine].
//  8. With a volatile write cache a flush closes the page: the next record
//     starts a new one, and every image names the last durable page. Sync
//     flushes, then writes an image (FUA) into the other slot that names its
//     own page as durable. Where no record since the last flush has data, Sync
//     puts the newest records in both slots instead, then flushes: there is no
//     data to verify, and a bad sector destroys only one of two copies.
//  9. Recovery takes the newest image whose pending data verifies, or the one
//     before it; anything further back is damage. With a volatile cache it
//     verifies all data after the last durable page and goes back to exactly
//     that page if any is missing. Then the log is sealed, before anything
//     else is written: an image of a higher version and a new generation overwrites
//     what was rejected. Where the target may still execute commands of a dead
//     writer (Suspect), this image goes to a page behind all that these can write.
//  10. An operation of several groups says so in all its images but the last
//     (More). Recovery holds such records back until it has seen the end of
//     the operation. If the end is missing, the image that seals the log says that
//     they are void.
//
// # Page image
//
//	  0  magic "NVLP"           48  previous page
//	  4  format version (u16)   56  its final image: version
//	  6  flags (u16)            64  its final image: CRC
//	  8  file system UUID       72  last durable page
//	 24  generation             80  bytes of records (u16)
//	 32  page                   82  pending entries (u16)
//	 40  version                84  whole records (u16), zero
//	 96  records, then pending entries, then zeros
//	4088 CRC-64/NVME of bytes 0 to 4087
//
// All numbers are little-endian and 8 bytes unless noted. A pending entry is
// the offset of a Write record in the page (u16), the first of its CRCs that
// is pending (u16), how many are (u16), and a zero (u16). Records are drawn at
// [Type].
package oplog
