// Package owner makes one process of this host at a time the owner of a partition. Other
// processes ask the owner to yield, or wait for its end.
//
// Each key has two files in /tmp/nvmecr-UID-GROUP, a directory of mode 0700. A group is
// a run: its name follows from the run's id, which is random, so that no other user can
// make the directory first.
//
//	KEY.lock   the owner holds a POSIX record lock (fcntl F_SETLK) on it; its content
//	           is the owner's note, which says how other processes reach the owner
//	KEY.sock   the owner listens here while it holds the lock
//
// and a run has four more:
//
//	run        says that the run is in progress, and whether the partition was used
//	serve.sock nvmecr serve listens here for what processes hand over (ListenForHandovers)
//	tree.sock  the index of the job's tree listens here, and shares memory with each process that connects (ListenForIndex)
//	relay/     has a socket of each process that relays data from sockets to files (Relays)
//
// Why a record lock: it belongs to the process. The kernel drops it when the
// process ends, however it ends, and a forked child does not have it; a lock
// of flock(2), or an open file description lock, would live on in every child
// that outlives the owner. Its price is that the process loses it by closing
// any descriptor of the file, so this package opens a lock file once per
// process (the held table) and other code may not. The application it runs in is
// kept from it by package ownfd. A vfork child that closes
// descriptors does no harm: the lock belongs to the parent's descriptor table.
//
// Why /tmp and not XDG_RUNTIME_DIR: that one is set in some sessions of a host
// and not in others, and is removed with the last login session while batch
// jobs go on; two processes could hold "the" lock. The files have the sticky
// bit, which keeps cleaners of /tmp off them. An owner removes them when it
// gives up, so a lock counts only if the name still leads to the file that was
// locked; what killed owners leave is removed after a day by the next process that uses the directory, and with
// the directory of their run, by the next one on the host, when all of its processes have ended.
//
// # The protocol
//
// One request and one reply per connection, each a header, little endian:
//
//	 0  4  magic   "NVCO"
//	 4  2  version 1
//	 6  2  verb in a request, status in a reply
//	 8  4  length of what follows
//	12  4  pid of the sender
//
// Verbs: 1 yield; 2 divide, followed by the number of ranks (4 bytes) among which the
// owner is to divide the store of the partition, and the text of their mapping. Statuses: 0 ok, 1 busy, 2 unknown verb or
// version, 3 refused, followed by the reason, up to 1024 bytes of text. Only
// processes of the same user are answered. An owner that is busy may serve
// others in another way, which its note tells.
//
// # Concurrency
//
// Acquire and Release are safe for concurrent use. onYield runs on a goroutine
// of the package, never two at a time for one lock, and no lock of this
// package is held meanwhile.
package owner
