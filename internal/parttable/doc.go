// Package parttable reads and writes the partition table at the head of a
// namespace: the owner and name of the store that the namespace belongs to, and the
// partition of each rank on it. A store is what other systems call a pool or a
// container: the namespaces, and the partitions on them, of one job name.
//
// # Layout, versions 1 and 2
//
// All integers are little endian, all offsets in bytes. The first 2 MiB of the
// namespace are two slots with the same table:
//
//	0                slot 0    header, 4096 bytes; entries, 32 bytes each
//	1 MiB - 4096     run record, copy 0 (package runrecord)
//	1 MiB            slot 1    as slot 0
//	2 MiB - 4096     run record, copy 1
//	2 MiB            partitions
//
//	header
//	   0  16  magic "NVMECR-PARTTABLE"
//	  16   4  version, 1 or 2
//	  20   4  slot this copy belongs to, 0 or 1
//	  24   8  incompatible features: unknown bits refuse the table; bit 0: shards; bit 1: a copy area; bit 2: mirrored
//	  32   8  read-only compatible features: unknown bits refuse writing
//	  40   8  compatible features: unknown bits do not matter
//	  48   8  sequence: the copy with the higher one is the newer
//	  56   8  generation: random, not 0, made when the namespace is formatted
//	  64  16  UUID of the namespace when it was formatted
//	  80   4  user id of the owner
//	  84   4  job size: the number of ranks
//	  88   4  target: the index of this namespace among the store's
//	  92   4  targets: their number
//	  96   4  hugeblock size in bytes
//	 100   4  number of entries, at most 32512; up to 32640 in tables of
//	          earlier versions, which left no space for a run record
//	 104   8  time of formatting, ns since 1970 UTC
//	 112   8  time of this write, ns since 1970 UTC
//	 120   4  length of the name
//	 124  64  name of the store, padded with zeros
//	 188   4  0
//	 192   8  CRC-64/NVME of the entries
//	 200   8  start of the copy area, 0 without one
//	 208   8  its length
//	 216      zeros
//	4088   8  CRC-64/NVME of bytes 0 to 4088 of the header
//
//	entry, in ascending order of start
//	   0   4  rank; 0xffffffff: the singleton partition
//	   4   4  flags, 0
//	   8   8  start of the partition in the namespace
//	  16   8  length
//	  24   8  0
//
// The copy area lies behind all partitions. A microfs of its own is there, with copies of what other
// targets hold. A namespace may have a copy area and no partition: then the job size is 1.
//
// In version 1 entries are in ascending order of rank, too, all ranks are less
// than the job size, and there is no singleton partition. A table that version 1 can
// hold is written as version 1, which earlier programs read.
//
//	formatting mark, in place of the header of slot 0
//	   0  16  "NVMECR-NO-TABLE\x00"
//	  16      zeros to 4096
//
// # Order of writes
//
// No write is assumed to be atomic. The mark says that the namespace is ours but has no
// table. Begin writes the mark before anything else, so that after a crash the namespace
// is known to be half formatted, and does not look like foreign data.
// Then slot 1 is written, then slot 0, each made durable before the next. A
// table that exists is replaced slot by slot, the one that is not the newest
// valid copy first. So at every moment either a complete table or the mark can be read,
// and a damaged sector costs one copy only.
//
// The run in progress writes the run record, also while a rank formats. So no function of
// this package touches the record but Wipe.
//
// # What counts as blank
//
// Without a valid copy a namespace has never been formatted (ErrNoTable) if
// its first 2 MiB read as zeros, or as 0xff bytes, which is what some devices
// return for blocks that were never written; or if it has the mark. Those
// 2 MiB are what formatting overwrites first and where every common label,
// partition table and file system has something. Any other content is foreign
// (ErrForeign). So is a namespace where slot 0 has the signature of a known file
// system, even if slot 1 is still valid.
//
// # Concurrency
//
// The functions open a queue of their own and may be called concurrently for
// reading. Writing is for one process at a time: the one that formats.
package parttable
