// Package nvmf is the block-device interface between the file system and an NVMe
// namespace, and the transport ids that name namespaces.
//
// It holds no implementation. Each of these packages implements [Device]:
//
//	nvmf/memdev   memory of this process
//	nvmf/filedev  a local file or block device
//	nvmf/tcp      an NVMe/TCP initiator, in Go
//	nvmf/spdk     one over SPDK: TCP, RDMA, PCIe (in builds with the tag spdk)
//	nvmf/dial     picks one of them for a TransportID
//
// nvmf/target is the target. nvmf/nvme and nvmf/pdu are the structures that both ends
// share, nvmf/initiator is the part that all initiators share. For tests there are
// nvmf/blocktest, the conformance suite of every Device with devices that fail, and
// nvmf/wiretest, a network that fails.
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
// A command that the device refuses completes with a [*StatusError]. If the status
// is transient ([StatusError.Transient]), the queue first retries the command until
// the command time-out. When the connection to the device is lost, or no command
// completes within the command time-out, every command in flight completes with
// [ErrConnectionLost]: it may or may not have been executed, and the device may
// still execute it later. The owner then calls Queue.Reset, which reconnects and
// compares the identity. The owner decides which commands to submit again, and where.
package nvmf
