// Package tcp is an NVMe/TCP initiator: a [Device] is one namespace of an NVMe
// subsystem, reached over TCP, and implements nvmf.Device.
//
// A Device holds one association with the subsystem's controller: an admin
// connection with a keep-alive (one goroutine, asleep but for every third of
// the keep-alive time-out), and one connection for each [Queue]. A lost
// association is replaced by the first Queue that is Reset; the others of the
// Device then share the new one.
//
// # The data path
//
// Everything about a Queue happens on its owner's thread, in raw system calls
// on a non-blocking socket that the Go network poller does not know:
//
//	Submit   send.go     commands -> slots -> capsules -> one sendmsg
//	Wait     poll.go     spin on send and receive; block in ppoll if that does not help
//	         receive.go  responses and R2Ts -> small buffer; read data -> the caller's memory
//	         send.go     R2Ts -> H2CData, all that are known in one sendmsg
//	         retry.go    commands with a transient status are sent again
//
// A command id is the index of its slot. Nothing is allocated per command.
// Both directions always make progress: a full socket never stops receiving.
//
// # Fencing
//
// Reserve makes this host the only one that can write (reserve.go), by NVMe
// reservations, on a queue of its own. What that is worth depends on the
// target: nvmecr's waits for commands of others that are being executed
// whenever the reservation changes hands, others only for those of the hosts
// that are preempted, or, where they do not know Preempt and Abort, not at all.
//
// # Concurrency
//
// Device is safe for concurrent use, a Queue has one owner. Locks, outermost
// first: Device.mu (the current association), controller.admin (held over an
// admin command), controller.mu (its connections), conn.mu (the life of a file
// descriptor). No lock is taken on the data path.
//
// # A hostile target
//
// Whatever a target sends is checked against the command it belongs to before
// it is used: unknown command ids, data or R2Ts outside the command's data,
// completions of commands that were never sent, lengths that do not add up.
// Such a target gets a TermReq, and the connection ends with an error that
// says which rule was broken.
package tcp
