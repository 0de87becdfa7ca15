// Package posixshim is POSIX on top of microfs: open file descriptions with
// offsets and flags, directory streams, the errno of every failure. It is the
// Go half of the preloaded library; the C half (shim/) decides what is ours
// and calls a [Process] through cmd/libnvmecr. The calls between the two, and
// everything that is interposed, come from calls.txt.
//
// # The mount
//
// A process opens its partition when a path needs it: for reading, until the
// first call that changes something; then, or in MPI_Init, for writing. Files
// that are open move over to the new mount. A partition mounted for writing is
// given up when another process asks for it and nothing is open.
//
// # Other processes
//
// Forked children, programs that are executed, and other processes of the rank
// that find the partition in use send their calls here: server.go makes them,
// inherit.go says how long a file is open for them, message.go what is sent. What others have open of a process
// that ends, or executes a program, goes on in its successor: handover.go gives it, takeover.go takes it.
//
// # Concurrency
//
// All methods of Process may be called from any thread at any time. Calls that
// share an offset take turns; positional ones do not wait for anybody here.
//
// Lock order:
//
//	the shim's, of those who share what is open
//	  Process.taking
//	    server.mu
//	      openFile.mu
//	        Process.mu
//	          microfs's own
//	            locks.mu
//	              a Locker's own
//
// A handle is looked up without a lock: the slot of the table is an atomic
// pointer, and the handle carries the generation of the slot, so that one that
// was closed (by a thread that raced) is EBADF and never another file.
package posixshim

//go:generate go run ./internal/gen -root ..
