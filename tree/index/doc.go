// Package index is the index of a job's tree: the metadata server of the job. It alone changes names, and it maps
// each range of each file to the partition that has the data. docs/dev/tree.md is its design.
//
// The index is a microfs with ranges, and this package answers calls of clients on it (package wire): ranks, which
// publish what they have written to their own partitions, and processes that are no rank.
//
// # Promises
//
//   - A call that was answered is in the log of the file system, and survives a crash of the index.
//   - A file that a client has open stays, with or without a name, until it is closed or the client's connection ends.
//   - Space that a client has reserved for an append is reserved for no other client while the client has the file open for writing.
//     If the client dies before it publishes the append, zeros are left, or nothing if no other append lies behind.
//   - A shard is released when no client has its file open and no range refers to it, and then only if the file is
//     removed or of a later cut. If no client takes the release, the next Shards request of that partition finds the shard.
//   - Data that a client had not published when its connection ended without Goodbye is adopted (Options.Adopt). Calls on
//     files that the client had open for writing wait for the adoption.
//   - A lock of a client excludes all other clients until the client unlocks, closes the file, or ends. No request waits for a lock.
//   - No client can make the index panic or take memory without bound.
//
// # Concurrency
//
// Serve is called on a goroutine of the caller's for each connection, and answers its requests there. One mutex, Index.mu,
// guards all state and is held during a request: the file system serialises its calls anyway. Lock order: Index.syncing, Index.mu,
// then the lock of the file system. Index.syncing is held during a sync on behalf of several requests (sync.go). Index.mu is not held while a request waits for an
// adoption or for its connection, nor while Options.Adopt and Options.Grow run.
//
// # Files
//
//	index.go  New, Serve    client.go   a connection     calls.go    one type for each operation
//	open.go   open files    bytes.go    their bytes      release.go  shards that nobody needs
//	adopt.go  data of clients that have died          locks.go  locks of fcntl and flock
//	sync.go   syncs that several answers share
//	check.go  for nvmecr fsck        successor.go  clients of an index that was killed
package index
