package nvmf

import (
	"context"

	"github.com/google/uuid"
)

// Identity is what a namespace says of itself: Identify Controller, Identify
// Namespace and the Namespace Identification Descriptor list (NVM Express
// Base Specification 2.0, figures 275 and 277; NVM Command Set 1.0, figure 97).
type Identity struct {
	// UUID names the namespace for all time. Where the device reports only
	// an NGUID or EUI-64 it is derived from that, else from the subsystem
	// NQN and the namespace id.
	UUID uuid.UUID
	// LBASize is the size of a logical block in bytes, a power of two from
	// 512 to 4096 (devices with other formats are refused when opened).
	LBASize Bytes
	// Blocks is the capacity in logical blocks (NSZE).
	Blocks LBA
	// MaxTransfer is the most bytes one command may move (MDTS), a multiple
	// of LBASize. It is never 0.
	MaxTransfer Bytes
	// OptimalTransfer is the size of command that gives the best bandwidth
	// when many are in flight. LBASize <= OptimalTransfer <= MaxTransfer.
	OptimalTransfer Bytes
	// VolatileWriteCache says that completed writes need a Flush to be
	// durable (VWC).
	VolatileWriteCache bool
	// CanDeallocate says that Deallocate is supported (ONCS bit 2). What
	// deallocated blocks read as is not defined.
	CanDeallocate bool
	// DeallocateUnit is what a Deallocate should begin and end on a multiple of
	// (NPDG, NPDA): the device keeps the rest. A multiple of LBASize, 0 where the
	// device says nothing.
	DeallocateUnit Bytes
	// Reservations says that the target can keep other hosts from writing
	// (ONCS bit 5, RESCAP bit 1): Reserver works.
	Reservations bool
	// Private says that only this process can see the namespace (memdev).
	Private bool
}

// Capacity returns the size of the namespace in bytes.
func (id *Identity) Capacity() Bytes { return Bytes(id.Blocks) * id.LBASize }

// Same reports whether other describes the same namespace: same UUID, block
// size and capacity.
func (id *Identity) Same(other *Identity) bool {
	return id.UUID == other.UUID && id.LBASize == other.LBASize && id.Blocks == other.Blocks
}

// A Device is one namespace. All methods are safe for concurrent use.
type Device interface {
	// Identity returns what the device said when it was opened. It does not
	// change while the device is open; a namespace that changes its identity
	// makes Queue.Reset fail.
	Identity() *Identity

	// OpenQueue creates a queue that keeps up to depth commands in flight
	// (fewer where the device allows fewer). ctx bounds the opening only.
	OpenQueue(ctx context.Context, depth int) (Queue, error)

	// Close releases the device. Its queues must be closed first.
	Close() error
}

// A Queue is a submission and completion queue pair with one owner.
type Queue interface {
	// Submit hands commands to the queue, which takes them over until they
	// are done. Commands beyond the queue's depth wait inside it, in order.
	// Submit does not wait for completions. A batch given in one call
	// reaches the wire in as few system calls as possible, so callers pass
	// together what belongs together.
	//
	// A command that cannot be sent (bad range, too long, connection lost)
	// is completed at once with its error; Submit itself cannot fail.
	Submit(cmds []*Command)

	// Wait runs the queue on the calling thread until every one of cmds is
	// done, then returns the first error among them in the order of cmds.
	// The commands must have been submitted to this queue, or be done.
	Wait(cmds []*Command) error

	// Reset brings the queue back after ErrConnectionLost: it reconnects,
	// trying until ctx ends, identifies the namespace again, and fails with
	// ErrNamespaceChanged if it is another one. No command may be in
	// flight. On a queue that is healthy it does nothing.
	Reset(ctx context.Context) error

	// Close ends the queue. Commands still in flight complete with
	// ErrConnectionLost.
	Close() error
}

// A MirroredQueue is a Queue of a device that has every block twice.
type MirroredQueue interface {
	Queue
	// ReadOther executes a Read where the submitted ones are not served from, and waits for it. ErrUnsupported: there is
	// no second copy at present.
	ReadOther(cmd *Command) error
}
