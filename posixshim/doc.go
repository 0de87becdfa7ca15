// Package posixshim is POSIX on top of microfs: open file descriptions with
// offsets and flags, directory streams, the errno of every failure. It is the
// Go half of the preloaded library. The C half (shim/) decides which paths and
// descriptors belong to the mount, and calls a [Process] through cmd/libnvmecr. calls.txt
// lists the calls between the two halves and all interposed functions.
//
// # The mount
//
// A process opens its partition at the first path that needs it: for reading, until the
// first call that changes something; from then on, or from MPI_Init on, for writing. Open files
// move to the new mount. A process yields a partition that is mounted for writing
// when another process asks for it and no file is open.
//
// # Other processes
//
// Forked children, executed programs, and other processes of the rank
// that find the partition in use send their calls to this process: server.go executes them,
// inherit.go says how long a file stays open for them, message.go is the protocol. When a process ends, or executes a
// program, its successor (nvmecr serve) takes over the open files that it shares: handover.go sends them, takeover.go receives them.
//
// # Concurrency
//
// All methods of Process may be called from any thread at any time. Calls that
// share an offset take turns; positional calls take no lock of this package.
//
// Lock order:
//
//	the shim's lock of open files that are shared
//	  Process.taking
//	    server.mu
//	      openFile.mu
//	        Process.mu
//	          those of microfs
//	            locks.mu
//	              those of a Locker
//
// A handle is looked up without a lock: the slot of the table is an atomic
// pointer, and the handle carries the generation of the slot, so that one that
// was closed by a racing thread is EBADF and never another file.
package posixshim

//go:generate go run ./internal/gen -root ..
