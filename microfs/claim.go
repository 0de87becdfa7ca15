package microfs

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
)

// A claim is the record of ownership of a partition: it names the process that writes the
// partition. A mount for writing writes a claim before it reads the log. Unmount writes the claim
// again, as released. A claim has two slots of 4 KiB and is written like the state header: sequence
// n first to slot n mod 2, then to the other. Zeros mean that the partition was never claimed.
//
// A process that mounts the partition learns from the claim whether another process may still be
// writing. A process that has lost its connection learns from it whether the partition is still its
// own, before it continues. A claim does not stop a writer that does not read it. The reservation
// at the target does that (nvmf.Reserver).
const (
	clMagic    = "NVMECRCL"
	clVersion  = 1
	clUUID     = 16
	clSequence = 32
	clReleased = 40
	clPID      = 44
	clSince    = 48
	clRun      = 56
	clMachine  = 72
	clBoot     = 88
	clPIDSpace = 104
	clStart    = 112
	clHostLen  = 120
	clHost     = 124
	maxHost    = 64

	clLate = 2 // at clReleased
)

// A Holder is a process that writes a partition, as others see it.
type Holder struct {
	Run      uuid.UUID // the run it belongs to; Nil if it is not known
	Host     string    // its name, for messages; the first 64 bytes count
	Machine  uuid.UUID // /etc/machine-id; Nil if there is none
	Boot     uuid.UUID // random/boot_id
	PIDSpace uint64    // inode of its PID namespace
	PID      uint32
	Start    uint64 // of the process, in clock ticks since boot
}

// A Claim is the record of ownership of a partition.
type Claim struct {
	Holder
	Sequence uint64 // grows with each claim and release
	Released bool   // the holder has unmounted the file system
	Late     bool   // a deallocation of the released holder may still be executed
	Since    time.Time
}

// Late says which commands of the last holder of a partition the target may still execute.
type Late int

// The values of Late.
const (
	// LateNone: none. The holder is fenced, or its commands have completed.
	LateNone Late = iota
	// LateUnlikely: the holder has ended, and the target had time to finish its commands. A mount
	// does not write where the last commands went, as far as that costs little.
	LateUnlikely
	// LateAny: any command. In addition, a mount writes no state checkpoint for oplog.Quarantine.
	LateAny
)

// String names the holder for a message.
func (c *Claim) String() string {
	if c.PID == 0 {
		return "a process that is not known, since both copies of its claim are damaged"
	}
	who := fmt.Sprintf("process %d of host %s", c.PID, strings.Trim(strconv.Quote(c.Host), `"`))
	if c.Run != uuid.Nil {
		who += fmt.Sprintf(" (run %s)", c.Run)
	}
	return who + ", since " + c.Since.Format(time.DateTime)
}

func (c *Claim) encode(b []byte, fs uuid.UUID) {
	clear(b)
	copy(b, clMagic)
	le.PutUint32(b[8:], clVersion)
	copy(b[clUUID:], fs[:])
	le.PutUint64(b[clSequence:], c.Sequence)
	switch {
	case c.Released && c.Late:
		le.PutUint32(b[clReleased:], clLate)
	case c.Released:
		le.PutUint32(b[clReleased:], 1)
	}
	le.PutUint32(b[clPID:], c.PID)
	le.PutUint64(b[clSince:], uint64(c.Since.UnixNano()))
	copy(b[clRun:], c.Run[:])
	copy(b[clMachine:], c.Machine[:])
	copy(b[clBoot:], c.Boot[:])
	le.PutUint64(b[clPIDSpace:], c.PIDSpace)
	le.PutUint64(b[clStart:], c.Start)
	n := copy(b[clHost:clHost+maxHost], c.Host)
	le.PutUint32(b[clHostLen:], uint32(n))
	le.PutUint64(b[sbCRC:], checksum(b[:sbCRC]))
}

// decodeClaim decodes a slot. It returns nil for a slot that was never written.
func decodeClaim(b []byte, fs uuid.UUID) (*Claim, error) {
	if isZero(b) {
		return nil, nil
	}
	if string(b[:8]) != clMagic || checksum(b[:sbCRC]) != le.Uint64(b[sbCRC:]) {
		return nil, fmt.Errorf("claim is not intact: %w", ErrCorrupt)
	}
	if v := le.Uint32(b[8:]); v != clVersion {
		return nil, fmt.Errorf("claim has version %d, this program knows %d: %w", v, clVersion, ErrVersion)
	}
	if uuid.UUID(b[clUUID:clUUID+16]) != fs || le.Uint32(b[clHostLen:]) > maxHost || le.Uint64(b[clSequence:]) >= maxSequence {
		return nil, fmt.Errorf("claim of another file system, or with values that are not possible: %w", ErrCorrupt)
	}
	return &Claim{
		Holder: Holder{
			Run: uuid.UUID(b[clRun : clRun+16]), Machine: uuid.UUID(b[clMachine : clMachine+16]), Boot: uuid.UUID(b[clBoot : clBoot+16]),
			Host: string(b[clHost : clHost+le.Uint32(b[clHostLen:])]), PIDSpace: le.Uint64(b[clPIDSpace:]),
			PID: le.Uint32(b[clPID:]), Start: le.Uint64(b[clStart:]),
		},
		Sequence: le.Uint64(b[clSequence:]),
		Released: le.Uint32(b[clReleased:]) != 0,
		Late:     le.Uint32(b[clReleased:]) == clLate,
		Since:    time.Unix(0, int64(le.Uint64(b[clSince:]))),
	}, nil
}

// readClaim returns the newest intact claim, or nil if there is none. damaged reports that there is
// no intact claim and at least one slot is damaged.
func (fs *FS) readClaim() (newest *Claim, damaged bool, err error) {
	buf := make([]byte, blockSize)
	for slot := range 2 {
		if err := fs.readMarking(claimOffset+nvmf.Bytes(slot)*blockSize, buf); err != nil {
			return nil, false, err
		}
		c, err := decodeClaim(buf, fs.g.fs)
		if err != nil {
			damaged = true
		} else if c != nil && (newest == nil || c.Sequence > newest.Sequence) {
			newest = c
		}
	}
	return newest, damaged && newest == nil, nil
}

// takeClaim claims the partition for this process. If the last claim was not released,
// Options.Claimed decides whether this process may take the partition over.
func (fs *FS) takeClaim() error {
	last, damaged, err := fs.readClaim()
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	if damaged {
		last = &Claim{} // the process is not known
	}
	if last != nil && (!last.Released || last.Late) && fs.opts.Claimed != nil {
		if fs.late, err = fs.opts.Claimed(last); err != nil {
			return err
		}
	}
	fs.claim = Claim{Holder: fs.opts.Holder, Sequence: 1, Since: time.Now()}
	if last != nil {
		fs.claim.Sequence = last.Sequence + 1
	}
	fs.claim.Host = fs.claim.Host[:min(maxHost, len(fs.claim.Host))]
	return fs.writeClaim()
}

// releaseClaim writes that this process has stopped writing the partition, and whether a
// deallocation of it may still be executed.
func (fs *FS) releaseClaim() error {
	if fs.claim.Sequence == 0 || fs.claim.Released {
		return nil
	}
	fs.claim.Sequence++
	fs.claim.Released, fs.claim.Late = true, fs.dealloc.late()
	return fs.writeClaim()
}

// Vacate makes everything durable and releases the claim, as Unmount does, but leaves the file
// system mounted. It is for the moment before execve, after which a process cannot unmount. If
// execve fails, the next operation claims the partition again. Open files stay open.
func (fs *FS) Vacate() error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	if err := fs.flushAll(); err != nil || fs.broken != nil || fs.claim.Sequence == 0 {
		return err
	}
	return fs.changeClaim(true)
}

// resume claims the partition again after Vacate. It fails if another process has claimed it.
func (fs *FS) resume() error {
	err := fs.checkClaim()
	for lost(err) {
		if err = fs.reconnect(err); err == nil {
			err = fs.checkClaim()
		}
	}
	if err == nil {
		err = fs.changeClaim(false)
	}
	if err != nil && fs.broken == nil {
		err = fs.fail(err)
	}
	return err
}

// changeClaim writes the next claim, and reconnects if necessary.
func (fs *FS) changeClaim(released bool) error {
	fs.claim.Sequence++
	fs.claim.Released, fs.claim.Late = released, released && fs.dealloc.late()
	fs.claiming = true
	defer func() { fs.claiming = false }()
	for {
		err := fs.writeClaim()
		if !lost(err) {
			return err
		}
		if err := fs.reconnect(err); err != nil {
			return err
		}
	}
}

func (fs *FS) writeClaim() error {
	buf := make([]byte, blockSize)
	fs.claim.encode(buf, fs.g.fs)
	for i := range uint64(2) {
		at := claimOffset + nvmf.Bytes((fs.claim.Sequence+i)%2)*blockSize
		if err := fs.transfer(nvmf.Write, fs.g.lbaOf(at), buf, true); err != nil {
			return fmt.Errorf("claim of the partition: %w", err)
		}
	}
	return nil
}

// checkClaim fails with nvmf.ErrFenced if another process has claimed the
// partition meanwhile.
func (fs *FS) checkClaim() error {
	if fs.claim.Sequence == 0 || mutant.On(mutant.NoClaimCheck) {
		return nil
	}
	last, _, err := fs.readClaim()
	switch {
	case err != nil:
		return err
	case fs.claiming && last != nil && last.Sequence+1 == fs.claim.Sequence && last.Holder == fs.claim.Holder:
		return nil
	case last == nil || last.Sequence < fs.claim.Sequence:
		return fmt.Errorf("claim %d of this process is not there any more: %w", fs.claim.Sequence, nvmf.ErrNamespaceChanged)
	case last.Sequence > fs.claim.Sequence || last.Holder != fs.claim.Holder:
		return fmt.Errorf("the partition belongs to %v: %w", last, nvmf.ErrFenced)
	}
	return nil
}
