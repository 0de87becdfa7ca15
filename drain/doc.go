// Package drain keeps checkpoint sets in a second level: a directory of a parallel
// file system, which outlasts the namespaces of the job ([Open]); or a microfs of its own on
// one of them ([OpenArea]); or a bucket of an object store ([OpenBucket], package drain/s3).
//
// A set that has been drained is an ordinary directory. Any program can read its
// files, without nvmecr. It is there as a whole or not at all: the directory gets
// its name when every byte has been written, has been made durable, and has been read
// back and compared with the checksums of what was read from the store. From then on the
// set counts, with no further call.
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
//	DIR/STORE/.removing/ID/              a set that is being removed
//
// Where each rank has a tree of its own, the path of a file has rankN/ in front. The name of
// a set's directory is for people; the manifest says what the set is. Where
// another set has the name already, ~2 is appended, and so on.
//
// A manifest is JSON: an object with the members "format" ("nvmecr-set"), "version" (1),
// "incompatible" (names of features; who does not know one refuses the set), "crc64nvme"
// and "set". The checksum is the CRC-64/NVME, 16 hexadecimal digits, of the JSON of "set"
// without white space between tokens. "set" is a [Set]. A file is checked in segments of
// 64 MiB, the last one shorter; a hole counts as zeros.
//
// A set with "compress" has the feature "compress" as well: it is "zstd" or "lz4", each file has .zst or .lz4 behind its name and is a stream of that format, and sizes and
// checksums are those of what was compressed.
//
// Each line of a journal is JSON, a segment whose bytes are durable: the index of its file
// in the manifest, its own index, and its checksum. A last line without a line feed is ignored.
//
// In a copy area ([Copies]) a set has a part of its files; the manifest says in "rest" which others there are, and in "parts" which
// targets have parts.
//
// # Interruption
//
// A set that is half drained has no directory of its own, whenever the
// process or the host dies. [Level.Put] of the same set goes on where the last
// one ended: it takes the journal's word that a segment has been written, and
// compares all of them in the end. If the files of the set in the store have been replaced, it starts
// over. What a removal leaves, the next one removes.
//
// # In a bucket
//
// The layout is the same, of objects, but for .draining and .removing, and a set's directory has ~ and 16 hexadecimal digits behind
// its name: the CRC-64/NVME of its files' paths, sizes and times. As an object store cannot rename, the manifest is written last: a set without one does
// not count. A Put goes on where the last one ended, object by object.
//
// # Concurrency
//
// All methods of an [Archive] are safe for concurrent use, also by several hosts: two that put
// the same set write the same bytes, and one of them gives the directory its name.
package drain
