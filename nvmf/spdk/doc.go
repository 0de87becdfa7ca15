// Package spdk is an initiator based on SPDK. A [Device] is a namespace of an NVMe
// controller, reached over TCP, RDMA or PCIe. It implements nvmf.Device.
//
// The package is built with the tag spdk, and pkg-config must find SPDK. Without the
// tag, Open fails. SPDK is not part of this module: see its installation guide,
// https://spdk.io/doc/getting_started.html.
//
// # The data path
//
// A [Queue] is an I/O queue pair of SPDK, which is polled on the thread of its owner:
//
//	Submit   queue.go   commands -> slots, in memory shared with C; one call a batch
//	         register.c long pieces of data -> memory regions of the RDMA device
//	Wait     wait.go    one call polls until a command is done, for a limited time
//	         queue.c    completions -> slots, and a list of completed slots
//	         queue.go   commands with a transient status are sent again
//
// C never calls Go. C keeps pointers to Go memory after a call only for the data of a
// command, and nvmf.Command requires that this memory stays in place. Over TCP, data is
// transferred from and to the caller's memory, unless it has more pieces than a command
// supports. Over RDMA, long pieces are registered with the device (see below). All
// other data over RDMA, and all data over PCIe, is copied to a buffer of the slot, in
// memory that SPDK has registered.
//
// # Memory registration
//
// A program may unmap its memory, or map other memory at the same address, as soon as a
// call has returned. The device would not notice. So register.c gives the device access
// to the memory for one command only. When a slot is filled, its pieces are registered
// with the RDMA device, with the right to read or to write exactly these bytes. They
// are deregistered before the command completes, even if the command ends with its
// connection. Meanwhile the kernel pins the pages, so a program that unmaps them too
// early harms only itself. SPDK gets the keys of the pieces through a memory domain
// (spdk/dma.h), which is part of its interface in all supported versions (25.05 and
// later).
//
// The following data is copied instead: short pieces, since a copy costs less; memory
// that cannot be pinned; data for a device that needs more rights (iWARP); and all data
// on kernels before 5.13, which do not report that pinned pages stay with the parent
// process after a fork.
//
// Over PCIe nothing is registered. SPDK has no memory domains for PCIe. It looks up
// every page in its own map, and spdk_mem_register does not change that map reliably
// (lib/env_dpdk/memory.c, as of 26.09):
//
//   - It hides errors. _vfio_iommu_map_dma treats every error of
//     VFIO_IOMMU_MAP_DMA, for example too much locked memory, as a missing
//     device. Since 25.09 spdk_mem_register returns 0 whatever the maps return. A
//     drive does not notice that the IOMMU drops its writes, so a read would
//     succeed without its data.
//   - Without an IOMMU it uses physical addresses, which nothing pins. When the
//     drive writes to a page that the program has unmapped, the page may belong
//     to another program.
//   - Before 25.09 it accepts only whole pages of 2 MiB, which must be backed by
//     the kernel.
//   - It registers a page only once. Two commands with parts of one page would
//     conflict.
//
// Memory from SPDK itself (spdk_dma_malloc, in huge pages) could be used over PCIe, but
// the buffers belong to the application.
//
// # Authentication
//
// SPDK authenticates each queue that connects. It gets the keys from a keyring in
// memory (keys.c), which holds them as long as the controller exists. The reason of a
// failure is taken from SPDK's log messages (auth.go), and reported in the same words
// as by nvmf/tcp.
//
// # TLS
//
// SPDK uses OpenSSL for TLS, in the application's process and on its threads. tls.c
// keeps SIGPIPE and OpenSSL's error queue away from the application. OpenSSL's errors
// are the reason of a failed connection (tls.go). If the derived key begins with a zero
// byte, SPDK connects without TLS, so the driver refuses such keys.
//
// # The environment
//
// The first Open of a process initializes SPDK. For RDMA and PCIe it does so with huge
// pages and with access to local devices; for TCP without either, and without
// privileges. SPDK cannot be initialized twice, so a process that opens a namespace
// over TCP first can use only TCP. A forked child of a process that has initialized
// SPDK cannot use it ([ErrUnusable]).
//
// # Targets that do not answer
//
// Over a fabric, no call waits for a target much longer than its context allows. SPDK
// has no contexts, so its operations are polled in steps (patiently in connect.go). A
// queue that is not connected in time is disconnected, which takes a second or two over
// RDMA. An association that does not answer an admin command in time is lost. SPDK
// cannot abandon the connection to a controller, and waits for some of its steps
// without limit. Over TCP the driver then shuts the socket down. Over RDMA the next
// connect polls the abandoned connections as well.
//
// # Concurrency
//
// A Device is safe for concurrent use. A Queue has one owner. A Device has one
// association with the controller, which devices of one local drive share. One
// goroutine for each association polls its admin queue about once a second. If an
// association is lost, the first Queue that is Reset replaces it, which ends the queue
// pairs of the other queues.
//
// Locks, outermost first: link.mu (the association), association.admin (the admin
// queue), Queue.mu (the queue pair), deviceTable.mu (a step of a connection that may
// open descriptors of devices).
package spdk
