// Package nvme has the data structures of NVM Express that travel between a
// host and a controller over fabrics: submission and completion queue
// entries, identify pages, controller properties, Connect data, log pages.
// Figures and names are those of the Base Specification 2.0, the NVM Command
// Set Specification 1.0 and, where said, the older Fabrics specification.
//
// Every structure is an array of exactly the bytes on the wire, with an
// accessor for each field used here; a slice becomes one without a copy:
//
//	sqe := (*nvme.SQE)(capsule[8:72])
//
// All fields are little-endian. Nothing is validated here but what is needed
// not to panic: a structure holds whatever the other end put there. The
// package does no I/O, keeps no state, and allocates only to return strings
// and lists.
package nvme

import (
	"bytes"
	"encoding/binary"
)

var le = binary.LittleEndian

// Sizes of the structures in bytes.
const (
	SQESize         = 64
	CQESize         = 16
	IdentifySize    = 4096
	ConnectDataSize = 1024
	DSMRangeSize    = 16
	// DiscoveryHeaderSize is what precedes the entries of a discovery log
	// page, DiscoveryEntrySize is each of them.
	DiscoveryHeaderSize = 1024
	DiscoveryEntrySize  = 1024
)

// NQN rules (Base Specification 2.0, section 4.5).
const (
	// MaxNQN is the longest NQN in bytes; fields hold it and a zero byte.
	MaxNQN = 223
	// DiscoveryNQN names the discovery subsystem of every target.
	DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"
	// UUIDPrefix begins an NQN made of a UUID.
	UUIDPrefix = "nqn.2014-08.org.nvmexpress:uuid:"
)

// text reads a field that is padded with spaces or ended by a zero byte.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(bytes.TrimRight(b, " "))
}

// putZero stores s, cut to the field if it must be, followed by zeros.
func putZero(b []byte, s string) { clear(b[copy(b, s):]) }

// putSpace stores s, cut to the field if it must be, followed by spaces.
func putSpace(b []byte, s string) {
	for i := copy(b, s); i < len(b); i++ {
		b[i] = ' '
	}
}
