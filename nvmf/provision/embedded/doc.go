// Package embedded provisions namespaces of nvmecr's own target. Target is the part in
// the target's process. Serve answers calls at a unix socket, the admin socket. Client
// is the other end of that socket.
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
// The namespace of a job is a directory DIR/JOB with two files. namespace.img is a
// sparse file of the namespace's size. job.json has the hosts that the namespace is
// exposed to, and its limit. The directory is created as .new:JOB, and renamed when all
// of it is durable. It is renamed to .freed:JOB before anything in it is removed. So a
// directory with the name of a job is complete. When a target starts, it removes
// directories with the other names, and serves the rest as before. A namespace whose
// record or file is damaged is listed, but neither served nor removed.
//
// A new namespace is a new file, so the file system guarantees that it reads as zeros.
// Deleting a namespace does not overwrite its blocks on the disk.
//
// # Memory
//
// A namespace in memory is anonymous memory, which the kernel zeroes. It ends with the
// target.
package embedded
