package pdu

import "fmt"

// FES is a fatal error status (figures 16 and 18).
type FES uint16

// Fatal error statuses.
const (
	InvalidHeaderField   FES = 0x01
	SequenceError        FES = 0x02
	HeaderDigestError    FES = 0x03
	TransferOutOfRange   FES = 0x04
	LimitExceeded        FES = 0x05 // R2T limit, or data transfer limit
	UnsupportedParameter FES = 0x06
)

// String returns the name of the status in the specification.
func (f FES) String() string {
	switch f {
	case InvalidHeaderField:
		return "Invalid PDU Header Field"
	case SequenceError:
		return "PDU Sequence Error"
	case HeaderDigestError:
		return "Header Digest Error"
	case TransferOutOfRange:
		return "Data Transfer Out of Range"
	case LimitExceeded:
		return "R2T or Data Transfer Limit Exceeded"
	case UnsupportedParameter:
		return "Unsupported Parameter"
	}
	return fmt.Sprintf("fatal error status %#x", uint16(f))
}

// Error describes a violation of the protocol by the peer. It is fatal for the
// connection. PutTermReq reports it to the peer.
type Error struct {
	FES FES
	// FEI is the offset of the invalid field for InvalidHeaderField and
	// UnsupportedParameter. It is the received digest for HeaderDigestError.
	FEI  uint32
	Text string
}

// Error returns Text, and the name of the status in the specification.
func (e *Error) Error() string { return fmt.Sprintf("%s (%s)", e.Text, e.FES) }

// Violation returns an Error of the given status. It is for faults that only the owner
// of a connection can detect, such as an unknown command or data out of range.
func Violation(fes FES, fei uint32, format string, args ...any) *Error {
	return &Error{FES: fes, FEI: fei, Text: fmt.Sprintf(format, args...)}
}

func fieldError(at uint32, format string, args ...any) error {
	return Violation(InvalidHeaderField, at, format, args...)
}
