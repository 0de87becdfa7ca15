package nvmf

import "fmt"

// Opcode is an NVM command set opcode (NVM Command Set 1.0, figure 16).
type Opcode uint8

// The commands of a Queue, with the values of the specification.
const (
	Flush      Opcode = 0x00
	Write      Opcode = 0x01
	Read       Opcode = 0x02
	Deallocate Opcode = 0x09 // Dataset Management with the AD attribute
)

// String returns the specification's name of the opcode.
func (o Opcode) String() string {
	switch o {
	case Flush:
		return "Flush"
	case Write:
		return "Write"
	case Read:
		return "Read"
	case Deallocate:
		return "Dataset Management (deallocate)"
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}

// A Command is one I/O and its result. The caller owns the Command, and may reuse it
// when it is done. While the command is in flight the caller must not change the
// Command or the memory of Data. The zero value is done.
type Command struct {
	Opcode Opcode
	// FUA makes a write durable before it completes. Other commands ignore it.
	FUA bool
	// LBA is the first logical block.
	LBA LBA
	// Blocks is the number of logical blocks, 0 for Flush. Reads and writes
	// never exceed Identity.MaxTransfer.
	Blocks LBA
	// Data is the memory to write from or read into, in order. Its lengths
	// add up to Blocks logical blocks; the pieces may have any length.
	// Implementations do not modify the slices.
	Data [][]byte

	// Err is the result, valid when Done.
	Err error

	// The following fields belong to the queue while the command is in flight.

	// Next links commands that wait inside a queue.
	Next *Command
	// Tag is for the queue's own bookkeeping.
	Tag uint32

	inFlight bool
}

// Done reports whether the command has completed (or was never submitted).
// Only the queue's owner may call it.
func (c *Command) Done() bool { return !c.inFlight }

// Begin marks the command as in flight. Queues call it in Submit.
func (c *Command) Begin() { c.inFlight, c.Err, c.Next = true, nil, nil }

// Finish completes the command. Queues call it exactly once after Begin.
func (c *Command) Finish(err error) { c.inFlight, c.Err, c.Next = false, err, nil }

// Length returns the number of bytes in Data.
func (c *Command) Length() Bytes {
	var n Bytes
	for _, d := range c.Data {
		n += Bytes(len(d))
	}
	return n
}

// Check returns an error if the command is invalid for the namespace: its range is
// beyond the end, its data is not of Blocks blocks, or it exceeds MaxTransfer. Queues
// call it in Submit.
func (c *Command) Check(id *Identity) error {
	if c.Opcode == Flush {
		return nil
	}
	if c.Blocks == 0 || c.LBA >= id.Blocks || c.Blocks > id.Blocks-c.LBA {
		return fmt.Errorf("%s of %d blocks at LBA %d of a namespace of %d blocks: %w",
			c.Opcode, c.Blocks, c.LBA, id.Blocks, ErrOutOfRange)
	}
	if c.Opcode == Deallocate {
		return nil
	}
	n := Bytes(c.Blocks) * id.LBASize
	if c.Length() != n || n > id.MaxTransfer {
		return fmt.Errorf("%s of %d blocks with %d bytes of data, at most %d a command: %w",
			c.Opcode, c.Blocks, c.Length(), id.MaxTransfer, ErrBadLength)
	}
	return nil
}

// FirstError returns the first error among commands that are done.
func FirstError(cmds []*Command) error {
	for _, c := range cmds {
		if c.Err != nil {
			return c.Err
		}
	}
	return nil
}
