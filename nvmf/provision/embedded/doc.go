// Package embedded provisions namespaces of nvmecr's own target: Target is
// what a process does that is one, Serve lets administrators call it through a
// unix socket, and Client is how they do.
//
//	target.go    the methods, on a target and a pool
//	pool.go      where namespaces come from: what a pool promises
//	filepool.go  files in a directory
//	mempool.go   memory
//	admin.go     the socket
//	client.go    and who calls it
//
// # Files
//
// The namespace of a job is a directory DIR/JOB with the file namespace.img,
// which is sparse and as long as the namespace, and job.json, which says who
// it is exposed to and its limit. The directory is made under the name
// .new:JOB and renamed when all of it is on the disk, and it is renamed to
// .freed:JOB before anything of it is removed: what has the name of a job is
// whole. A target that starts removes what has one of the other names, and
// serves the rest as it was. What it cannot serve, because its record or its
// file is damaged, it leaves alone and lists.
//
// A new namespace is a new file, so it reads as zeros by what file systems
// promise. What the disk below held is not overwritten when one is deleted.
//
// # Memory
//
// It is fresh from the system, which hands out zeroed pages. It ends with the
// target.
package embedded
