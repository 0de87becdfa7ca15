// Package nvmf is the block-device interface that everything above a
// namespace is written against, and the names namespaces go by.
//
// It holds no implementation. Those are packages below it, each of them a
// [Device]:
//
//	nvmf/memdev   memory of this process
//	nvmf/filedev  a local file or block device
//	nvmf/tcp      an NVMe/TCP initiator, in Go
//	nvmf/spdk     one over SPDK: TCP, RDMA, PCIe (in builds with the tag spdk)
//	nvmf/dial     picks one of them for a TransportID
//
// The other end of the wire is nvmf/target; nvmf/nvme and nvmf/pdu are the
// structures both ends share, nvmf/initiator what initiators make of them,
// nvmf/blocktest is what every Device passes and what the layers above are
// tested on, and nvmf/wiretest is a faulty wire.
//
// A Device is one NVMe namespace. It is safe for concurrent use, carries no
// I/O by itself, and hands out queues. A [Queue] is one submission and
// completion queue pair: it has exactly one owner at a time (one goroutine,
// or whoever holds the lock that guards it), and it runs to completion on the
// owner's thread: Submit starts commands, Wait polls until they are done. No
// other goroutine is involved and nothing is allocated per command.
//
// # Ordering and durability
//
// Commands of one queue may execute in any order and overlap. A command is
// ordered after another only if it was submitted after Wait had returned for
// that other one. No command is atomic: until it has completed, each byte it
// covers may be old or new. On a device whose Identity says
// VolatileWriteCache, a completed write is durable only after a later Flush
// (or if the write had FUA); on every other device it is durable when it
// completes.
//
// # Failure
//
// A command the device refused carries a [*StatusError]; one that it says may
// succeed a little later ([StatusError.Transient]) has been repeated by then,
// for as long as the command time-out. When the connection
// to the device is lost, or a command outlasts the command time-out, every
// command in flight completes with [ErrConnectionLost]: it may or may not
// have been executed, and it may still land later. The owner then calls
// Queue.Reset, which reconnects and compares the identity, and decides itself
// what to submit again, and where.
package nvmf
