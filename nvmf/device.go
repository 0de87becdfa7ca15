package nvmf

import (
	"context"

	"github.com/google/uuid"
)

// Identity has the properties of a namespace, as reported by Identify Controller,
// Identify Namespace and the Namespace Identification Descriptor list (NVM Express
// Base Specification 2.0, figures 275 and 277; NVM Command Set 1.0, figure 97).
type Identity struct {
	// UUID is the permanent name of the namespace. If the device reports no UUID,
	// it is derived from the NGUID or EUI-64, or else from the subsystem NQN and
	// the namespace id.
	UUID uuid.UUID
	// LBASize is the size of a logical block in bytes, a power of two from
	// 512 to 4096 (devices with other formats are refused when opened).
	LBASize Bytes
	// Blocks is the capacity in logical blocks (NSZE).
	Blocks LBA
	// MaxTransfer is the largest number of bytes that one command may transfer
	// (MDTS), a multiple of LBASize. It is never 0.
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
	// DeallocateUnit is the alignment for both ends of a Deallocate (NPDG, NPDA).
	// The device does not free partial units. It is a multiple of LBASize, or 0 if
	// the device does not report it.
	DeallocateUnit Bytes
	// Reservations says that Reserver works: the target can keep other hosts from
	// writing (ONCS bit 5, RESCAP bit 1).
	Reservations bool
	// Private says that only this process can see the namespace (memdev).
	Private bool
}

// Capacity returns the size of the namespace in bytes.
func (id *Identity) Capacity() Bytes { return Bytes(id.Blocks) * id.LBASize }

// Same reports whether other describes the same namespace. UUID, block size and
// capacity have to be equal.
func (id *Identity) Same(other *Identity) bool {
	return id.UUID == other.UUID && id.LBASize == other.LBASize && id.Blocks == other.Blocks
}

// A Device is one namespace. All methods are safe for concurrent use.
type Device interface {
	// Identity returns the identity that the device had when it was opened. It does
	// not change while the device is open. If the identity of the namespace has
	// changed, Queue.Reset fails.
	Identity() *Identity

	// OpenQueue creates a queue with up to depth commands in flight, or fewer if the
	// device allows fewer. ctx limits only the opening.
	OpenQueue(ctx context.Context, depth int) (Queue, error)

	// Close releases the device. Its queues must be closed first.
	Close() error
}

// A Queue is a submission and completion queue pair with one owner.
type Queue interface {
	// Submit starts commands, which belong to the queue until they are done.
	// Commands beyond the queue's depth wait inside it, in order. Submit does not
	// wait for completions. The commands of one call are sent with as few system
	// calls as possible, so callers should submit commands in batches.
	//
	// A command that cannot be sent (bad range, too long, connection lost)
	// is completed at once with its error; Submit itself cannot fail.
	Submit(cmds []*Command)

	// Wait runs the queue on the calling thread until every one of cmds is
	// done, then returns the first error among them in the order of cmds.
	// The commands must have been submitted to this queue, or be done.
	Wait(cmds []*Command) error

	// Reset restores the queue after ErrConnectionLost. It tries to reconnect until
	// ctx ends, and identifies the namespace again. It fails with
	// ErrNamespaceChanged if that is another namespace. No command may be in
	// flight. On a healthy queue Reset does nothing.
	Reset(ctx context.Context) error

	// Close ends the queue. Commands still in flight complete with
	// ErrConnectionLost.
	Close() error
}

// A MirroredQueue is a Queue of a device that stores two copies of every block.
type MirroredQueue interface {
	Queue
	// ReadOther executes a Read on the copy that submitted reads do not use, and waits for it. It fails with
	// ErrUnsupported if there is only one copy at present.
	ReadOther(cmd *Command) error
}
