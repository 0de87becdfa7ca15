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
//	         lend.c     long pieces of data -> keys for the RDMA device
//	Wait     wait.go    one call polls until the awaited is done, or for a moment
//	         queue.c    completions -> slots and a list of those that are done
//	         queue.go   commands with a transient status are sent again
//
// C never calls Go, and keeps no pointer to Go's memory beyond a command but
// those of its data, which nvmf.Command demands to stay as they are. Over TCP
// the data goes from and to the caller's memory, unless it has more pieces than
// a command takes. Over RDMA long pieces are lent to the device (below). All else
// over RDMA, and all over PCIe, is copied: the device needs memory that SPDK has
// registered, so each slot that needs it has such a buffer.
//
// # Memory of the program
//
// A program may unmap its memory, or map something else there, as soon as a call
// has returned, and nobody would tell the device. So it has the memory for one
// command, and no longer (lend.c): the pieces are registered with the RDMA device when
// the command is filled in, with the right to read or to write them and nothing
// beside them, and are no more when the command is noted as done, also where it
// ends with its connection. The kernel pins them meanwhile, so that a program which
// unmaps them too early hurts itself alone. SPDK is told the keys through a memory
// domain (spdk/dma.h), a part of its interface since before 24.01. All else is copied:
// short pieces, since that costs less; memory that cannot be pinned; for a device
// that wants more rights (iWARP); and on a kernel before 5.13, which does not say that
// pinned pages stay with the parent when it forks.
//
// Over PCIe nothing is lent. SPDK has no domains there but looks every page up in
// a map of its own, and what spdk_mem_register does to that cannot be relied on
// (lib/env_dpdk/memory.c, as of 26.09):
//
//   - It says nothing of what was refused. _vfio_iommu_map_dma takes every error of
//     VFIO_IOMMU_MAP_DMA, too much locked memory for one, for a missing device, and since
//     25.09 spdk_mem_register returns 0 whatever the maps say. A drive whose writes
//     the IOMMU drops does not learn of it: a read would succeed without its data.
//   - Without an IOMMU there are physical addresses, which nothing pins: a page that
//     the program unmaps is another program's when the drive writes to it.
//   - Before 25.09 it takes whole pages of 2 MiB, which the kernel has to back.
//   - It takes a page once. Two commands with parts of one would get in each other's way.
//
// Memory that comes from SPDK itself (spdk_dma_malloc, in huge pages) could be used
// over PCIe; but programs bring their own.
//
// # Authentication
//
// SPDK does it, for each queue that connects, with keys that it takes from a
// keyring (keys.c): ours, in memory, for as long as the controller is there. Why
// one has failed is known from what SPDK says (auth.go), and put as nvmf/tcp puts it.
//
// # TLS
//
// OpenSSL does it for SPDK, in the application's process and on its threads: tls.c
// keeps the signals and errors of the one from the other, and what OpenSSL says is the
// reason where a connection fails (tls.go). SPDK connects without TLS by a key that
// has a zero in front when it is derived, so such keys are refused before.
//
// # The environment
//
// The first Open of a process initializes SPDK: with huge pages, and access to
// local devices, for RDMA and PCIe; without either, and without privileges, for
// TCP. It cannot be done twice, so a process that opens TCP first opens nothing
// else. A forked child of a process that has done it cannot use SPDK
// ([ErrUnusable]).
//
// # Targets that do not answer
//
// Over a fabric no call waits for one much longer than its context lasts. SPDK does not
// know contexts, so what it does is polled in steps (patiently in connect.go). A queue
// that is not connected in time is disconnected, which over RDMA takes it a second or two.
// An association that does not answer a command of its admin queue in time is lost. A
// connection to a controller SPDK does not give up, and there are steps of it that it
// waits for without end: over TCP its socket is cut, and over RDMA it is looked after when
// there is another one to connect.
//
// # Concurrency
//
// Device is safe for concurrent use, a Queue has one owner. A Device has one
// association with the controller (devices of a local drive share theirs), and
// there is one goroutine that looks after its admin queue about once a second.
// A lost association is replaced by the first Queue that is Reset, which takes
// their queue pairs from the others. Locks, outermost first: link.mu (the
// association), association.admin (the admin queue), Queue.mu (the queue pair),
// deviceTable.mu (a step of a connection that may open descriptors of devices).
package spdk
