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
// A Queue runs on its owner's thread alone. It uses raw system calls on a
// non-blocking socket that is not registered with Go's network poller:
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
// reservations, on a queue of its own. The guarantee depends on the target.
// nvmecr's target waits for commands of other hosts that are being executed
// whenever the holder of the reservation changes. Other targets wait only for
// those of preempted hosts. Targets without Preempt and Abort do not wait.
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
// Each PDU of a target is checked against its command before it is used. Unknown
// command ids, data or R2Ts outside the command's data, completions of commands
// that were never sent, and inconsistent lengths are violations. After a violation
// the host sends a TermReq, and ends the connection with an error that names the
// violation.
package tcp
