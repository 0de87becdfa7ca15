package runrecord

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"nvmecr/internal/crc64"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// The package comment describes the layout. These values must not change within version 1.
const (
	size nvmf.Bytes = parttable.RunRecordSize

	version = 1
	magic   = "NVMECR-RUNRECORD"

	stateInProgress = 1
	stateEnded      = 2

	offVersion      = 16
	offCopy         = 20
	offIncompatible = 24
	offRun          = 40
	offBeat         = 56
	offInterval     = 64
	offSince        = 72
	offWritten      = 80
	offState        = 88
	offUID          = 92
	offMachine      = 96
	offBoot         = 112
	offPIDSpace     = 128
	offStart        = 136
	offPID          = 144
	offHostLength   = 148
	offHost         = 152
	offStoreLength  = 216
	offStore        = 220
	offJobLength    = 1024
	offJob          = 1028
	offOpen         = 1092
	offIndexLength  = 1096
	offIndex        = 1100
	offSecret       = 1356
	offTree         = 1388
	offDegraded     = 1392
	offCRC          = 4088

	maxHost  = 64
	maxIndex = 256
)

// Reasons why a copy has no valid record.
var (
	// ErrVersion means an unknown version, or unknown features.
	ErrVersion = errors.New("run record of an unknown version")
	// ErrDamaged means that the magic is present, and the rest is invalid.
	ErrDamaged = errors.New("damaged run record")

	errNone = errors.New("no run record")
)

// A Record describes a run.
type Record struct {
	microfs.Holder               // the process that renews the record, and its run
	Store          string        // name of the store; the first 64 bytes count
	UID            uint32        // user of the process
	Ended          bool          // the run has ended by itself
	Beat           uint64        // increases with each renewal
	Interval       time.Duration // between renewals
	Since          time.Time     // start of the run
	Written        time.Time     // when this was written, by the writer's clock
	Job            Job           // the job that other runs may join
	Degraded       time.Time     // since when a mirrored store goes on without a target; zero: it has all
}

// MaxJob is the maximum length of the id of a job.
const MaxJob = 64

// A Job is the information that other runs of a job need to join the run that has the store.
type Job struct {
	ID     string // at most MaxJob bytes; "": no run may join
	Open   bool   // other runs may join now
	Tree   bool   // the job has one tree for all ranks
	Index  string // addresses of the index of the job's tree, as many as fit into 256 bytes; "": reachable on its own host only
	Secret [32]byte
}

// String names the run for a message.
func (r *Record) String() string {
	return fmt.Sprintf("process %d of host %s, user %d (run %s), since %s", r.PID, strings.Trim(strconv.Quote(r.Host), `"`),
		r.UID, r.Run, r.Since.Local().Format(time.DateTime))
}

// After reports whether r is newer than other, which may be nil.
func (r *Record) After(other *Record) bool {
	if other == nil {
		return true
	}
	if c := bytes.Compare(r.Run[:], other.Run[:]); c != 0 {
		return c > 0
	}
	return r.Beat > other.Beat
}

// encode returns the image of a copy.
func encode(r *Record, copyNumber int) []byte {
	le := binary.LittleEndian
	b := make([]byte, size)
	copy(b, magic)
	le.PutUint32(b[offVersion:], version)
	le.PutUint32(b[offCopy:], uint32(copyNumber))
	copy(b[offRun:], r.Run[:])
	le.PutUint64(b[offBeat:], r.Beat)
	le.PutUint64(b[offInterval:], uint64(r.Interval))
	le.PutUint64(b[offSince:], uint64(r.Since.UnixNano()))
	le.PutUint64(b[offWritten:], uint64(r.Written.UnixNano()))
	state := uint32(stateInProgress)
	if r.Ended {
		state = stateEnded
	}
	le.PutUint32(b[offState:], state)
	if !r.Degraded.IsZero() {
		le.PutUint64(b[offDegraded:], uint64(r.Degraded.UnixNano()))
	}
	le.PutUint32(b[offUID:], r.UID)
	copy(b[offMachine:], r.Machine[:])
	copy(b[offBoot:], r.Boot[:])
	le.PutUint64(b[offPIDSpace:], r.PIDSpace)
	le.PutUint64(b[offStart:], r.Start)
	le.PutUint32(b[offPID:], r.PID)
	le.PutUint32(b[offHostLength:], uint32(copy(b[offHost:offHost+maxHost], r.Host)))
	le.PutUint32(b[offStoreLength:], uint32(copy(b[offStore:offStore+parttable.MaxName], r.Store)))
	le.PutUint32(b[offJobLength:], uint32(copy(b[offJob:offJob+MaxJob], r.Job.ID)))
	if r.Job.Open {
		le.PutUint32(b[offOpen:], 1)
	}
	if r.Job.Tree {
		le.PutUint32(b[offTree:], 1)
	}
	index := r.Job.Index
	for len(index) > maxIndex {
		index = index[:max(strings.LastIndexByte(index, ','), 0)]
	}
	le.PutUint32(b[offIndexLength:], uint32(copy(b[offIndex:offIndex+maxIndex], index)))
	copy(b[offSecret:], r.Job.Secret[:])
	le.PutUint64(b[offCRC:], crc64.Checksum(b[:offCRC]))
	return b
}

// decode returns the record of a copy, or errNone, ErrVersion, ErrDamaged.
func decode(b []byte, copyNumber int) (*Record, error) {
	le := binary.LittleEndian
	switch {
	case string(b[:len(magic)]) != magic:
		return nil, errNone
	case le.Uint32(b[offVersion:]) == 0:
		return nil, fmt.Errorf("%w: version 0", ErrDamaged)
	case le.Uint32(b[offVersion:]) != version:
		return nil, fmt.Errorf("%w (%d)", ErrVersion, le.Uint32(b[offVersion:]))
	case le.Uint64(b[offCRC:]) != crc64.Checksum(b[:offCRC]):
		return nil, fmt.Errorf("%w: checksum", ErrDamaged)
	case le.Uint32(b[offCopy:]) != uint32(copyNumber):
		return nil, fmt.Errorf("%w: copy %d", ErrDamaged, le.Uint32(b[offCopy:]))
	case le.Uint64(b[offIncompatible:]) != 0:
		return nil, fmt.Errorf("%w: features %#x", ErrVersion, le.Uint64(b[offIncompatible:]))
	}
	host, store, state := le.Uint32(b[offHostLength:]), le.Uint32(b[offStoreLength:]), le.Uint32(b[offState:])
	if host > maxHost || store > parttable.MaxName || state != stateInProgress && state != stateEnded {
		return nil, fmt.Errorf("%w: names of %d and %d bytes, state %d", ErrDamaged, host, store, state)
	}
	job, index := le.Uint32(b[offJobLength:]), le.Uint32(b[offIndexLength:])
	if job > MaxJob || index > maxIndex {
		return nil, fmt.Errorf("%w: id of a job of %d bytes, addresses of %d", ErrDamaged, job, index)
	}
	r := &Record{
		Holder: microfs.Holder{
			Run:      uuid.UUID(b[offRun : offRun+16]),
			Host:     string(b[offHost : offHost+host]),
			Machine:  uuid.UUID(b[offMachine : offMachine+16]),
			Boot:     uuid.UUID(b[offBoot : offBoot+16]),
			PIDSpace: le.Uint64(b[offPIDSpace:]),
			PID:      le.Uint32(b[offPID:]),
			Start:    le.Uint64(b[offStart:]),
		},
		Store:    string(b[offStore : offStore+store]),
		UID:      le.Uint32(b[offUID:]),
		Ended:    state == stateEnded,
		Beat:     le.Uint64(b[offBeat:]),
		Interval: time.Duration(le.Uint64(b[offInterval:])),
		Since:    time.Unix(0, int64(le.Uint64(b[offSince:]))).UTC(),
		Written:  time.Unix(0, int64(le.Uint64(b[offWritten:]))).UTC(),
		Job: Job{
			ID:     string(b[offJob : offJob+job]),
			Open:   le.Uint32(b[offOpen:]) == 1,
			Tree:   le.Uint32(b[offTree:]) == 1,
			Index:  string(b[offIndex : offIndex+index]),
			Secret: [32]byte(b[offSecret:]),
		},
	}
	if ns := le.Uint64(b[offDegraded:]); ns != 0 {
		r.Degraded = time.Unix(0, int64(ns)).UTC()
	}
	return r, nil
}
