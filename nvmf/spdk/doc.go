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
//	         register.c long pieces of data -> memory regions of the RDMA device
//	Wait     wait.go    one call polls until the awaited is done, or for a moment
//	         queue.c    completions -> slots and a list of those that are done
//	         queue.go   commands with a transient status are sent again
//
// C never calls Go, and keeps no pointer to Go's memory beyond a command but
// those of its data, which nvmf.Command demands to stay as they are. Over TCP
// the data goes from and to the caller's memory, unless it has more pieces than
// a command takes. Over RDMA long pieces are registered with the device (below). All
// other data over RDMA, and all data over PCIe, is copied to a buffer of the slot, in
// memory that SPDK has registered.
//
// # Memory registration
//
// A program may unmap its memory, or map something else there, as soon as a call
// has returned, and the device would not notice. So the device has access to the
// memory for one command only (register.c). The pieces are registered with the RDMA
// device when the slot is filled, with the right to read or to write exactly them. They
// are deregistered before the command completes, also where the command ends with its
// connection. The kernel pins the pages meanwhile, so a program that unmaps them too
// early harms only itself. SPDK learns the keys through a memory domain (spdk/dma.h), a
// part of its interface since before 24.01. Copied are short pieces, since a copy costs
// less; memory that cannot be pinned; data for a device that needs more rights (iWARP);
// and all data on a kernel before 5.13, which does not say that pinned pages stay with
// the parent when it forks.
//
// Over PCIe nothing is registered. SPDK has no memory domains there; it looks every page
// up in a map of its own, and spdk_mem_register does not change that map reliably
// (lib/env_dpdk/memory.c, as of 26.09):
//
//   - It hides errors. _vfio_iommu_map_dma takes every error of VFIO_IOMMU_MAP_DMA,
//     for example too much locked memory, for a missing device, and since 25.09
//     spdk_mem_register returns 0 whatever the maps return. A drive does not notice
//     that the IOMMU drops its writes: a read would succeed without its data.
//   - Without an IOMMU there are physical addresses, which nothing pins: a page that
//     the program unmaps is another program's when the drive writes to it.
//   - Before 25.09 it takes whole pages of 2 MiB, which the kernel has to back.
//   - It registers a page once. Two commands with parts of one page would conflict.
//
// Memory from SPDK itself (spdk_dma_malloc, in huge pages) could be used over PCIe,
// but the buffers are the application's.
//
// # Authentication
//
// SPDK authenticates each queue that connects, with keys from a keyring (keys.c): ours,
// in memory, which exists as long as the controller. The reason of a failure is in
// SPDK's log messages (auth.go); the error has the same words as those of nvmf/tcp.
//
// # TLS
//
// SPDK uses OpenSSL for TLS, in the application's process and on its threads. tls.c
// keeps SIGPIPE and OpenSSL's error queue away from the application, and the errors of
// OpenSSL are the reason where a connection fails (tls.go). If the derived key begins
// with a zero byte SPDK connects without TLS, so the driver refuses such keys.
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
// Over a fabric no call waits for a target much longer than its context lasts. SPDK does
// not know contexts, so its operations are polled in steps (patiently in connect.go). A
// queue that is not connected in time is disconnected, which over RDMA takes a second or
// two. An association that does not answer an admin command in time is lost. SPDK cannot
// abandon the connection to a controller, and waits for some of its steps without limit:
// over TCP the driver shuts the socket down; over RDMA the next connect polls the
// abandoned ones as well.
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
