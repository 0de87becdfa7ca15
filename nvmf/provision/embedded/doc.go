// Package embedded provisions namespaces of nvmecr's own target. Target is the part in
// the target's process, Serve answers administrators through a unix socket, and Client
// is the administrators' end.
//
//	target.go    the methods, on a target and a pool
//	pool.go      the interface of a pool of storage
//	filepool.go  files in a directory
//	mempool.go   memory
//	admin.go     the socket
//	client.go    the client
//
// # Files
//
// The namespace of a job is a directory DIR/JOB with two files: namespace.img, a sparse
// file as long as the namespace, and job.json, with the hosts it is exposed to and its
// limit. The directory is made as .new:JOB, and renamed once all of it is on the disk; it
// is renamed to .freed:JOB before anything of it is removed. So a directory with the name
// of a job is complete. At its start a target removes directories of the other names, and
// serves the rest as before. A namespace whose record or file is damaged is listed, and
// neither served nor removed.
//
// A new namespace is a new file, so it reads as zeros, as file systems guarantee. Deleting
// a namespace does not overwrite its blocks on the disk.
//
// # Memory
//
// A namespace in memory is anonymous memory, which the kernel zeroes. It ends with the
// target.
package embedded
