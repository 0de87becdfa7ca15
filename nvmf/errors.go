package nvmf

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Errors of opening a device.
var (
	// ErrUnreachable means that there is no connection to the target's address.
	ErrUnreachable = errors.New("target cannot be reached")
	// ErrNoSubsystem means that the target has no subsystem with that NQN.
	ErrNoSubsystem = errors.New("target has no such subsystem")
	// ErrHostRefused means that the subsystem does not admit this host NQN.
	ErrHostRefused = errors.New("target does not allow this host NQN")
	// ErrAuthentication means that the host or the target did not prove its identity.
	ErrAuthentication = errors.New("authentication failed")
	// ErrNoNamespace means that the subsystem has no active namespace with that id.
	ErrNoNamespace = errors.New("subsystem has no such namespace")
	// ErrUnsupported means that the device lacks a feature that is needed.
	ErrUnsupported = errors.New("device is not supported")
)

// Errors of commands and queues.
var (
	// ErrConnectionLost means that the result of the command is not known. The
	// target may still execute the command later.
	ErrConnectionLost = errors.New("connection to the target was lost")
	// ErrNamespaceChanged means that a reconnection has found another namespace.
	ErrNamespaceChanged = errors.New("namespace is not the one it was before the connection was lost")
	// ErrOutOfRange means that the range of a command is not within the namespace.
	ErrOutOfRange = errors.New("outside the namespace")
	// ErrBadLength means that the length of the data does not match the command.
	ErrBadLength = errors.New("data does not fit the command")
	// ErrClosed means that the queue or the device was closed.
	ErrClosed = errors.New("queue is closed")
)

// TimeoutError is the cause of an ErrConnectionLost when a target has not answered.
type TimeoutError struct {
	After time.Duration // time without an answer
	Busy  int           // commands in flight
}

// Error tells the time without an answer.
func (e *TimeoutError) Error() string {
	return fmt.Sprintf("no command was answered for %s, %d in flight", e.After, e.Busy)
}

// Unwrap returns ErrConnectionLost and ETIMEDOUT.
func (e *TimeoutError) Unwrap() []error { return []error{ErrConnectionLost, syscall.ETIMEDOUT} }

// StatusError is an error status with which a device has completed a command: status
// code type, status code and Do Not Retry (Base Specification 2.0, figures 93 to 97).
type StatusError struct {
	Opcode Opcode
	LBA    LBA
	SCT    uint8 // status code type
	SC     uint8 // status code
	DNR    bool  // do not retry
	// Name is the name of an admin or Fabrics command. Opcode and LBA are only for
	// I/O commands.
	Name string
}

// Error returns the command, its address, and the specification's name of the status.
func (e *StatusError) Error() string {
	if e.Name != "" {
		return fmt.Sprintf("%s: %s (status type %#x code %#02x)", e.Name, e.text(), e.SCT, e.SC)
	}
	return fmt.Sprintf("%s at LBA %d: %s (status type %#x code %#02x)", e.Opcode, e.LBA, e.text(), e.SCT, e.SC)
}

// Unwrap returns the errno for the status, so that errors.Is(err, syscall.ENOSPC)
// works and errors.As finds a syscall.Errno.
func (e *StatusError) Unwrap() error { return e.row().errno }

// Transient reports whether the same command may succeed a little later: Do Not
// Retry is clear, and the reason is a temporary state of the transport, the path or
// the namespace. Media errors are not transient. Internal errors are not transient
// either, since a Flush that is repeated after one may succeed although data is lost.
func (e *StatusError) Transient() bool {
	if e.DNR {
		return false
	}
	switch uint16(e.SCT)<<8 | uint16(e.SC) {
	case 0x005, 0x007, 0x008, 0x021, // aborted, interrupted
		0x01d, 0x082, 0x084, // sanitize, not ready, format
		0x022,                                    // transport
		0x300, 0x302, 0x303, 0x360, 0x370, 0x371: // path
		return true
	}
	return false
}

// Busy reports whether a Connect was refused because the controller or the target
// has no space at the moment. A later attempt may succeed.
func (e *StatusError) Busy() bool { return e.SCT == 1 && e.SC == 0x81 && !e.DNR }

func (e *StatusError) text() string { return e.row().text }

type statusRow struct {
	sct, sc uint8
	errno   syscall.Errno
	text    string
}

// statusTable has the names and errnos of the statuses of I/O commands and Connect.
// Statuses that are not listed are EIO.
var statusTable = []statusRow{
	{0x0, 0x01, syscall.EOPNOTSUPP, "Invalid Command Opcode"},
	{0x0, 0x02, syscall.EINVAL, "Invalid Field in Command"},
	{0x0, 0x04, syscall.EIO, "Data Transfer Error"},
	{0x0, 0x05, syscall.EIO, "Aborted due to Power Loss Notification"},
	{0x0, 0x06, syscall.EIO, "Internal Error"},
	{0x0, 0x07, syscall.EIO, "Command Abort Requested"},
	{0x0, 0x08, syscall.EIO, "Command Aborted due to SQ Deletion"},
	{0x0, 0x0b, syscall.ENODEV, "Invalid Namespace or Format"},
	{0x0, 0x0c, syscall.EIO, "Command Sequence Error"},
	{0x0, 0x14, syscall.EIO, "Commands Aborted due to Preempt and Abort"},
	{0x0, 0x15, syscall.EPERM, "Operation Denied"},
	{0x0, 0x18, syscall.EINVAL, "Host Identifier Inconsistent Format"},
	{0x0, 0x1c, syscall.EIO, "Sanitize Failed"},
	{0x0, 0x1d, syscall.EBUSY, "Sanitize In Progress"},
	{0x0, 0x20, syscall.EROFS, "Namespace is Write Protected"},
	{0x0, 0x21, syscall.EIO, "Command Interrupted"},
	{0x0, 0x22, syscall.EIO, "Transient Transport Error"},
	{0x0, 0x80, syscall.ENOSPC, "LBA Out of Range"},
	{0x0, 0x81, syscall.ENOSPC, "Capacity Exceeded"},
	{0x0, 0x82, syscall.EIO, "Namespace Not Ready"},
	{0x0, 0x83, syscall.EBUSY, "Reservation Conflict"},
	{0x0, 0x84, syscall.EBUSY, "Format In Progress"},
	{0x1, 0x01, syscall.EBUSY, "Invalid Queue Identifier"},
	{0x1, 0x02, syscall.EINVAL, "Invalid Queue Size"},
	{0x1, 0x80, syscall.EINVAL, "Connect Incompatible Format"},
	{0x1, 0x81, syscall.EBUSY, "Connect Controller Busy"},
	{0x1, 0x82, syscall.ENOENT, "Connect Invalid Parameters"},
	{0x1, 0x83, syscall.EIO, "Connect Restart Discovery"},
	{0x1, 0x84, syscall.EACCES, "Connect Invalid Host"},
	{0x1, 0x90, syscall.EIO, "Discovery Restart"},
	{0x1, 0x91, syscall.EACCES, "Authentication Required"},
	{0x2, 0x80, syscall.EIO, "Write Fault"},
	{0x2, 0x81, syscall.EIO, "Unrecovered Read Error"},
	{0x2, 0x82, syscall.EIO, "End-to-end Guard Check Error"},
	{0x2, 0x83, syscall.EIO, "End-to-end Application Tag Check Error"},
	{0x2, 0x84, syscall.EIO, "End-to-end Reference Tag Check Error"},
	{0x2, 0x85, syscall.EIO, "Compare Failure"},
	{0x2, 0x86, syscall.EACCES, "Access Denied"},
	{0x2, 0x87, syscall.EIO, "Deallocated or Unwritten Logical Block"},
	{0x3, 0x00, syscall.EIO, "Internal Path Error"},
	{0x3, 0x01, syscall.EIO, "Asymmetric Access Persistent Loss"},
	{0x3, 0x02, syscall.EIO, "Asymmetric Access Inaccessible"},
	{0x3, 0x03, syscall.EIO, "Asymmetric Access Transition"},
	{0x3, 0x60, syscall.EIO, "Controller Pathing Error"},
	{0x3, 0x70, syscall.EIO, "Host Pathing Error"},
	{0x3, 0x71, syscall.EIO, "Command Aborted By Host"},
}

func (e *StatusError) row() statusRow {
	for _, r := range statusTable {
		if r.sct == e.SCT && r.sc == e.SC {
			return r
		}
	}
	return statusRow{errno: syscall.EIO, text: "unknown status"}
}

// A NoQueueError means that a queue was not opened: no command was sent on it. It has the text of its cause.
type NoQueueError struct{ Cause error }

func (e *NoQueueError) Error() string { return e.Cause.Error() }
func (e *NoQueueError) Unwrap() error { return e.Cause }
