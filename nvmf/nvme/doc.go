// Package nvme encodes and decodes the NVM Express data structures that a host and a
// controller exchange over fabrics: submission and completion queue entries, Identify
// pages, controller properties, Connect data, log pages. Figures and names are those of
// the Base Specification 2.0 and the NVM Command Set Specification 1.0. Where a comment
// says so, they are those of the older Fabrics specification.
//
// Every structure is an array of the bytes on the wire, with an accessor for each field
// that is used. A slice converts to a structure without a copy:
//
//	sqe := (*nvme.SQE)(capsule[8:72])
//
// All fields are little-endian. The package validates only what is necessary to avoid
// panics. A structure contains whatever the peer has sent. The package does no I/O, has
// no state, and allocates memory only for strings and lists.
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
	// A discovery log page has a header of DiscoveryHeaderSize bytes, and entries of
	// DiscoveryEntrySize bytes each.
	DiscoveryHeaderSize = 1024
	DiscoveryEntrySize  = 1024
)

// NQN rules (Base Specification 2.0, section 4.5).
const (
	// MaxNQN is the maximum length of an NQN in bytes, without the zero byte that ends
	// it.
	MaxNQN = 223
	// DiscoveryNQN is the NQN of the discovery subsystem of every target.
	DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"
	// UUIDPrefix is the beginning of an NQN that contains a UUID.
	UUIDPrefix = "nqn.2014-08.org.nvmexpress:uuid:"
)

// text returns the text of a field that is padded with spaces, or ended by a zero byte.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(bytes.TrimRight(b, " "))
}

// putZero stores s, truncated to the length of the field and padded with zeros.
func putZero(b []byte, s string) { clear(b[copy(b, s):]) }

// putSpace stores s, truncated to the length of the field and padded with spaces.
func putSpace(b []byte, s string) {
	for i := copy(b, s); i < len(b); i++ {
		b[i] = ' '
	}
}
