// Package spdk is an initiator over SPDK: a [Device] is one namespace of an NVMe
// controller, reached over TCP, RDMA or PCIe, and implements nvmf.Device.
//
// It is built with the tag spdk, and finds SPDK by pkg-config; without the tag
// Open fails. SPDK itself is not part of this module: see its installation guide,
// https://spdk.io/doc/getting_started.html.
//
// # The data path
//
// A [Queue] is an I/O queue pair of SPDK, polled on its owner's thread:
//
//	Submit   queue.go   commands -> slots, in memory that C sees; one call for the batch
//	Wait     wait.go    one call polls until the awaited is done, or for a moment
//	         queue.c    completions -> slots and a list of those that are done
//	         queue.go   commands with a transient status are sent again
//
// C never calls Go, and keeps no pointer to Go's memory beyond a command but
// those of its data, which nvmf.Command demands to stay as they are. Over TCP
// the data goes from and to the caller's memory, unless it has more pieces than
// a command takes. Over RDMA and PCIe the device needs memory that SPDK has
// registered, so each slot in use has such a buffer, and data is copied.
//
// # Authentication
//
// SPDK does it, for each queue that connects, with keys that it takes from a
// keyring (keys.c): ours, in memory, for as long as the controller is there. Why
// one has failed is known from what SPDK says (auth.go), and put as nvmf/tcp puts it.
//
// # The environment
//
// The first Open of a process initializes SPDK: with huge pages, and access to
// local devices, for RDMA and PCIe; without either, and without privileges, for
// TCP. It cannot be done twice, so a process that opens TCP first opens nothing
// else. A forked child of a process that has done it cannot use SPDK
// ([ErrUnusable]).
//
// # Concurrency
//
// Device is safe for concurrent use, a Queue has one owner. A Device has one
// association with the controller (devices of a local drive share theirs), and
// there is one goroutine that looks after its admin queue about once a second.
// A lost association is replaced by the first Queue that is Reset, which takes
// their queue pairs from the others. Locks, outermost first: link.mu (the
// association), association.admin (the admin queue), Queue.mu (the queue pair).
package spdk
