package nvme

// CQE is a completion queue entry:
//
//	 0- 7  command specific result
//	 8- 9  SQ head pointer
//	10-11  SQ identifier, reserved over fabrics
//	12-13  command identifier
//	14-15  status (15:1), phase tag (0), reserved over fabrics
type CQE [CQESize]byte

// Set writes the whole entry.
func (c *CQE) Set(cid, sqhd uint16, status Status, result uint64) {
	le.PutUint64(c[0:], result)
	le.PutUint16(c[8:], sqhd)
	le.PutUint16(c[10:], 0)
	le.PutUint16(c[12:], cid)
	le.PutUint16(c[14:], uint16(status)<<1)
}

// Result returns dwords 0 and 1.
func (c *CQE) Result() uint64 { return le.Uint64(c[0:]) }

// SQHD returns the SQ head pointer.
func (c *CQE) SQHD() uint16 { return le.Uint16(c[8:]) }

// CID returns the command identifier.
func (c *CQE) CID() uint16 { return le.Uint16(c[12:]) }

// Status returns the status field without the phase tag.
func (c *CQE) Status() Status { return Status(le.Uint16(c[14:]) >> 1) }

// Status is the status field of a completion, shifted so that the status
// code is in the low byte (figure 92):
//
//	 7-0   status code (SC)
//	10-8   status code type (SCT)
//	12-11  command retry delay
//	13     more
//	14     do not retry (DNR)
type Status uint16

// DNR (do not retry) is set if a repeated command would fail with the same status.
const DNR Status = 0x4000

// SC returns the status code.
func (s Status) SC() uint8 { return uint8(s) }

// SCT returns the status code type.
func (s Status) SCT() uint8 { return uint8(s>>8) & 7 }

// DNR reports whether DNR is set.
func (s Status) DNR() bool { return s&DNR != 0 }

// Code returns only status code type and status code, for comparison with the constants
// below.
func (s Status) Code() Status { return s & 0x7ff }

// Status values: status code type in bits 10:8, status code in bits 7:0.
const (
	StatusSuccess            Status = 0x000
	StatusInvalidOpcode      Status = 0x001
	StatusInvalidField       Status = 0x002
	StatusCIDConflict        Status = 0x003
	StatusDataTransferError  Status = 0x004
	StatusPowerLoss          Status = 0x005
	StatusInternalError      Status = 0x006
	StatusAbortRequested     Status = 0x007
	StatusSQDeletion         Status = 0x008
	StatusInvalidNamespace   Status = 0x00b
	StatusCommandSequence    Status = 0x00c
	StatusInvalidSGLCount    Status = 0x00e
	StatusSGLLengthInvalid   Status = 0x00f
	StatusSGLTypeInvalid     Status = 0x011
	StatusPreemptAbort       Status = 0x014
	StatusOperationDenied    Status = 0x015
	StatusSGLOffsetInvalid   Status = 0x016
	StatusHostIDInconsistent Status = 0x018
	StatusKeepAliveExpired   Status = 0x019
	StatusKeepAliveInvalid   Status = 0x01a
	StatusWriteProtected     Status = 0x020
	StatusTransientTransport Status = 0x022
	StatusLBARange           Status = 0x080
	StatusCapacityExceeded   Status = 0x081
	StatusNamespaceNotReady  Status = 0x082
	StatusReservation        Status = 0x083

	StatusInvalidQueueID      Status = 0x101
	StatusInvalidQueueSize    Status = 0x102
	StatusAsyncEventLimit     Status = 0x105
	StatusInvalidLogPage      Status = 0x109
	StatusFeatureNotSaveable  Status = 0x10d
	StatusFeatureNotChangable Status = 0x10e

	StatusConnectFormat            Status = 0x180
	StatusConnectControllerBusy    Status = 0x181
	StatusConnectInvalidParameters Status = 0x182
	StatusConnectRestartDiscovery  Status = 0x183
	StatusConnectInvalidHost       Status = 0x184
	StatusDiscoveryRestart         Status = 0x190
	StatusAuthRequired             Status = 0x191

	StatusWriteFault   Status = 0x280
	StatusReadError    Status = 0x281
	StatusCompare      Status = 0x285
	StatusAccessDenied Status = 0x286
)
