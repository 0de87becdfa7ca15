// Package posixshim implements POSIX file calls on mounts (internal/vfs): open file descriptions with offsets and flags, directory
// streams, locks, mappings, and the errno of every failure. It is the Go half of the preloaded library. The C half (shim/) decides
// which paths and descriptors belong to a mount, and calls a [Process] through cmd/libnvmecr. calls.txt lists the calls between
// the two halves and all interposed functions.
//
// # The mount
//
// A process opens its partition for reading when the first path is used. It opens it for writing in MPI_Init, or when a call
// changes something. Open files are then opened again in the new mount. A process closes a mount for writing when another process
// asks for the partition, unless a file is open for writing or MPI_Init has opened the mount ([Process.Yield]).
//
// # Other processes
//
// Forked children, executed programs, and other processes of the rank that find the partition in use send their calls to this
// process, their server. message.go has the protocol, server.go makes the calls, inherit.go keeps the files open that other
// processes have. When a process ends, or executes a program, its successor (nvmecr serve) takes over the open files that it
// shares: handover.go sends them, takeover.go receives them.
//
// # Concurrency
//
// All methods of Process may be called from any thread at any time. Calls that
// share an offset take turns; positional calls take no lock of this package.
//
// Lock order:
//
//	the mutex sharing of shim/files/inherit.c
//	  Process.takeoverMu
//	    server.mu
//	      openFile.mu
//	        Process.mu
//	          locks of microfs
//	            locks.mu
//	              locks of a vfs.Locker
//
// A handle is looked up without a lock. The slot of the table is an atomic pointer, and the handle has the generation of the
// slot. So a handle that another thread has closed fails with EBADF and never names another file.
package posixshim

//go:generate go run ./internal/gen -root ..
