// Package drain keeps checkpoint sets in a second level: a directory of a parallel
// file system, which outlasts the namespaces of the job ([Open]); or a microfs of its own on
// one of them ([OpenArea]); or a bucket of an object store ([OpenBucket], package drain/s3).
//
// A set that has been drained is an ordinary directory. Any program can read its
// files, without nvmecr. A set appears as a whole or not at all. While it is written its directory
// has another name. The directory is renamed when all data is durable, and has been read
// back and compared with the checksums of the data read from the store. The set then
// counts as drained, with no further call.
//
// # Layout, version 1
//
// [Open] is given a directory DIR and the name of a store:
//
//	DIR/STORE/melt.400/                  a set
//	DIR/STORE/melt.400/melt.400.0        its files, at their paths under the mount
//	DIR/STORE/melt.400/.nvmecr-set       its manifest
//	DIR/STORE/.draining/melt.600/        a set that is being written
//	DIR/STORE/.draining/melt.600/.nvmecr-set          the manifest without checksums
//	DIR/STORE/.draining/melt.600/.nvmecr-journal-ID   segments that are durable
//	DIR/STORE/.draining/melt.600+ID/     the same, with processes of other hosts
//	DIR/STORE/.peers/RUN.ID              a process of another host of a run; empty
//	DIR/STORE/.removing/ID/              what is being removed
//	DIR/STORE/.run                       the run that uses the level, which renews the time of the file; see store.TakeDirectory
//
// If each rank has a tree of its own (--view=rank), the path of a file begins with rankN/. The name of
// a set's directory is for people; programs read the manifest. If
// another set has the same name, ~2 is appended, then ~3, and so on.
//
// A manifest is JSON: an object with the members "format" ("nvmecr-set"), "version" (1),
// "incompatible" (names of features; a reader that does not know one of them refuses the set), "crc64nvme"
// and "set". The checksum is the CRC-64/NVME, 16 hexadecimal digits, of the JSON of "set"
// without white space between tokens. "set" is a [Set]. A file is checked in segments of
// 64 MiB, the last one shorter; a hole counts as zeros.
//
// A compressed set has the member "compress", "zstd" or "lz4", and the feature of that name. Each file is a stream of that format and has the suffix
// .zst or .lz4. Sizes and checksums are those of the uncompressed data.
//
// Each line of a journal is JSON and describes a segment that is durable: the index of its file
// in the manifest, the index of the segment in the file, and its checksum. "verified" is added when the segment has been read back by one of several
// processes that write the set together ([Share]), and "shared" with the bytes that were cloned from the set before. A last line without a line feed is ignored.
//
// The manifest of a set that peers copy, too, has the member "call" until the set is complete: "peers" are names in .peers, "limit" is the most bytes that each
// process copies in a second, and "background" says that the processes run with a low priority. An empty line of a journal says that its writer is alive.
//
// A copy area ([Copies]) has only a part of a set's files. In the manifest "rest" lists the other files, and "parts" the targets that have
// parts of the set. "division" is a CRC-64/NVME of which parts have which files: parts of one division belong together.
//
// # Shards
//
// With the feature "shards" a copy area has one shard of each file of the set, at the path of the file. "code" describes the erasure code: the numbers of
// "data" and "parity" shards, and "unit", the bytes of one shard in a row. "shard" is the number of the shard in this area (absent: 0). "parts" lists the targets of
// all shards, by number of the shard. A file's "size" and "crc64nvme" are those of the shard; "whole" has those of the file.
//
//	file     | 0 | 1 | 2 | 3 |4|5|    in units, for "data" 2 and "parity" 1
//	shard 0  | 0 | 2 |4|
//	shard 1  | 1 | 3 |5|              with zeros behind the end of the file
//	shard 2  | p | p |p|
//
// The unit of the last row is the number of remaining bytes, divided by "data" and rounded up. The code is Reed-Solomon over GF(2^8) with the polynomial 0x11D, byte by byte.
// The matrix is a Vandermonde matrix, whose element in row r and column c is r to the power of c, times the inverse of its first "data" rows.
//
// # Interruption
//
// The process or the host may die at any time: a set that is partly drained has no directory with its name. The next [Level.Put] of the same set
// continues where the last one ended. It does not write again the segments that the journal
// lists, and verifies all segments at the end. If the files of the set in the store have been replaced, it starts
// over. The next removal finishes one that was interrupted.
//
// # Incremental sets
//
// With [Options.Incremental] units of a file that are equal in the same file of the newest set of the series are cloned from there. The layout
// does not depend on it: the file system counts the references to shared blocks, so any set can be removed.
//
// # In a bucket
//
// Files are objects with the same paths. There is no .draining and no .removing. The name of a set's directory ends with ~ and 16 hexadecimal digits,
// the CRC-64/NVME of its files' paths, sizes and times. Since an object store cannot rename, the manifest is written last: a set without a manifest does
// not count. Put continues where the last one ended, object by object.
//
// # Concurrency
//
// All methods of an [Archive] are safe for concurrent use, also by several hosts. Two processes that put
// the same set write the same bytes, and one of them renames the directory. The slower process may still write to the complete set after that: the same bytes,
// unless the job has changed the file in the store meanwhile. So hosts that divide the work have a [Share] each, and no host takes over the share of another one
// that may still be alive.
//
// # Peers
//
// While a job runs, one process on the first host decides which sets are copied ([Options.Peers]). Processes on the other hosts, its peers, copy shares of these sets
// ([Level.Join]). The processes communicate through the directory only. A peer creates its file in .peers, and looks at .draining every two seconds, or every ten while there is nothing to copy for minutes. A Put creates a
// directory whose manifest has a share for each peer, and copies the first share itself. It waits until the journals contain all shares, and then completes the set.
//
// A peer that fails, or whose job ends, removes its file. A peer whose host has died adds no line to its journal for a minute. In both cases the Put creates
// another directory, moves the complete files there, and copies the rest alone. A dead process and a late one look the same. So a directory is used for one call only: a late process writes
// to a directory that is being removed, and it has finished the files that were moved. If the calling process dies, the next Put of the set does the same.
package drain
