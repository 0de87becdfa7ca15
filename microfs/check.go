package microfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// Severity says how bad a finding is for the content of the file system.
type Severity int

// The severities.
const (
	// Note: no damage. A crash may leave the file system like this, and the next mount for writing
	// corrects it.
	Note Severity = iota
	// Repairable: damage without loss; Repair repairs it.
	Repairable
	// Loss: something that was acknowledged is gone.
	Loss
)

// String returns the severity in a word or two.
func (s Severity) String() string { return [...]string{"note", "repairable", "data loss"}[s] }

// MarshalText uses the same words in JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// FindingKind is the subject of a finding.
type FindingKind string

// The kinds of findings.
const (
	FoundSegment        FindingKind = "segment"         // the partition does not fit the namespace
	FoundSuperblock     FindingKind = "superblock"      // neither copy is good
	FoundSuperblockCopy FindingKind = "superblock-copy" // one copy is damaged
	FoundGeneration     FindingKind = "generation"      // belongs to another partition table
	FoundHeader         FindingKind = "header"          // neither state header is good
	FoundHeaderCopy     FindingKind = "header-copy"     // one header is damaged
	FoundClaim          FindingKind = "claim"           // a claim is not intact
	FoundState          FindingKind = "state"           // the state checkpoint cannot be read
	FoundStateBlock     FindingKind = "state-block"     // a block of the state checkpoint is damaged, and can be rebuilt
	FoundLog            FindingKind = "log"             // the log cannot be replayed
	FoundLogSlot        FindingKind = "log-slot"        // a slot of a log page is damaged
	FoundInode          FindingKind = "inode"           // an inode is not valid
	FoundName           FindingKind = "name"            // a name is not valid or has no inode
	FoundDirectory      FindingKind = "directory"       // a directory is in no or several places
	FoundCount          FindingKind = "count"           // a count of links or names is wrong
	FoundUnreachable    FindingKind = "unreachable"     // no path leads to an inode
	FoundExtent         FindingKind = "extent"          // a mapping is not valid
	FoundRange          FindingKind = "range"           // a range of bytes in another partition is not valid
	FoundShared         FindingKind = "shared"          // two mappings have the same hugeblock
	FoundPool           FindingKind = "pool"            // used and free do not add up
	FoundUnlinked       FindingKind = "unlinked"        // a file was open when its last name was removed
	FoundBusy           FindingKind = "busy"            // a writer changed the file system all the time, so it could not be checked
)

// A Finding is one thing that Check noticed.
type Finding struct {
	Kind     FindingKind `json:"kind"`
	Severity Severity    `json:"severity"`
	// Where names the structure: "log page 12, slot 1", "inode 17".
	Where string `json:"where"`
	// Offset is the position in the partition, -1 if there is no single one.
	Offset int64  `json:"offset"`
	Ino    Ino    `json:"inode,omitempty"`
	Path   string `json:"path,omitempty"` // of the file, if one is known
	What   string `json:"what"`
	Remedy string `json:"remedy,omitempty"`
}

// String returns the finding in one line.
func (f *Finding) String() string {
	s := f.Where
	if f.Path != "" {
		s += fmt.Sprintf(" (%s)", f.Path)
	}
	if f.Offset >= 0 {
		s += fmt.Sprintf(" at byte %d", f.Offset)
	}
	s = fmt.Sprintf("%s: %s: %s", f.Severity, s, f.What)
	if f.Remedy != "" {
		s += "; " + f.Remedy
	}
	return s
}

// CheckOptions are the options of Check.
type CheckOptions struct {
	Generation uint64 // of the partition table
	// Looks is the number of times that Check reads a file system that a writer keeps changing
	// before Check gives up. 0 is 50.
	Looks int
	// Timeout is how long Check waits for a target that does not answer. 0 is
	// 60 s.
	Timeout time.Duration
}

// A CheckReport is what Check found.
type CheckReport struct {
	// Unformatted: the partition was never formatted; nothing else is set.
	Unformatted bool `json:"unformatted,omitempty"`
	// InUse: a process wrote to the file system meanwhile. Findings has only what all readings found.
	InUse bool `json:"in_use,omitempty"`
	// Holder is the process that mounted the file system for writing and has not unmounted it. This
	// process is running or was killed.
	Holder string `json:"holder,omitempty"`
	// Findings are in the order of the structures, at most maxFindings.
	Findings []Finding `json:"findings"`
	// More is the number of further findings.
	More int `json:"more,omitempty"`

	Files       int        `json:"files"`
	Directories int        `json:"directories"` // without the root
	Links       int        `json:"links"`       // symbolic ones
	Mapped      nvmf.Bytes `json:"mapped"`      // hugeblocks of files
	Extents     int        `json:"extents"`
	Covered     nvmf.Bytes `json:"covered"` // bytes under checksums
	Ranges      int        `json:"ranges,omitempty"`
	Placed      nvmf.Bytes `json:"placed,omitempty"` // bytes in other partitions
	LogUsed     uint64     `json:"log_used"`
	LogPages    uint64     `json:"log_pages"`
	Generation  uint64     `json:"generation"` // mounts for writing since format
}

// Worst returns the severity of the worst finding.
func (r *CheckReport) Worst() Severity {
	worst := Note
	for i := range r.Findings {
		worst = max(worst, r.Findings[i].Severity)
	}
	return worst
}

// Clean reports whether there is nothing but notes.
func (r *CheckReport) Clean() bool { return r.Worst() == Note }

const (
	// maxFindings limits the memory for findings of hostile media.
	maxFindings = 1000
	checkLooks  = 50
	// checkSame is the number of readings in a row that must find the same damage before Check
	// reports it: while a writer changes the media, readings find different damage.
	checkSame  = 3
	checkPause = 5 * time.Millisecond
)

// reconnectQueue reconnects q after the error cause. It gives up at the deadline *until. The first
// attempt after a successful reading sets *until to timeout from now.
func reconnectQueue(ctx context.Context, q nvmf.Queue, until *time.Time, timeout time.Duration, cause error) error {
	if until.IsZero() {
		*until = time.Now().Add(timeout)
	} else if time.Now().After(*until) {
		return cause
	}
	ctx, cancel := context.WithDeadline(ctx, *until)
	defer cancel()
	return q.Reset(ctx)
}

// Check examines the file system on seg and writes nothing. It examines the copies of the
// superblock and of the state header, the state checkpoint, every log page since, and the resulting
// tree, but not the data of files. After damage it continues as far as it can. While another
// process writes, Check reads again until what it has read is consistent. It fails only with the
// error of the device or of ctx.
func Check(ctx context.Context, dev nvmf.Device, seg Segment, o CheckOptions) (*CheckReport, error) {
	q, err := dev.OpenQueue(ctx, defaultQueueDepth)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	if o.Looks == 0 {
		o.Looks = checkLooks
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	var r *CheckReport
	var lasting []Finding
	var until time.Time // deadline of waiting for a target that does not answer
	for i, same := 0, 0; same < checkSame; i++ {
		last := r
		if r, err = look(q, dev, seg, o); !lost(err) {
			until = time.Time{}
		} else if err = reconnectQueue(ctx, q, &until, o.Timeout, err); err == nil {
			r = last
			continue
		}
		if err != nil {
			return nil, err // an incomplete reading proves nothing
		}
		if r.Clean() {
			r.InUse = r.InUse || last != nil
			break
		}
		switch now := problems(r); {
		case last == nil:
			lasting, same = now, 1
		case slices.Equal(now, problems(last)):
			same++
		default:
			r.InUse, same = true, 1
			lasting = slices.DeleteFunc(lasting, func(f Finding) bool { return !slices.Contains(now, f) })
		}
		if last != nil {
			r.InUse = r.InUse || last.InUse
		}
		if same < checkSame && i >= o.Looks {
			r.busy(lasting)
			break
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(checkPause):
		}
	}
	return r, nil
}

// A ClaimReader reads claims on the file systems of a device, all through one queue. Its methods may
// not be called concurrently.
type ClaimReader struct {
	dev nvmf.Device
	q   nvmf.Queue
}

// NewClaimReader opens a queue of the device for a ClaimReader. The caller calls Close at the end.
func NewClaimReader(ctx context.Context, dev nvmf.Device) (*ClaimReader, error) {
	q, err := dev.OpenQueue(ctx, defaultQueueDepth)
	if err != nil {
		return nil, err
	}
	return &ClaimReader{dev, q}, nil
}

// Last returns the newest intact claim on the file system on seg. It returns nil
// if the file system was never mounted for writing, and the zero Claim if both copies
// are damaged, so that the holder is not known.
func (r *ClaimReader) Last(seg Segment) (*Claim, error) {
	fs := &FS{dev: r.dev, q: r.q}
	if err := fs.readSuperblock(seg); err != nil {
		return nil, err
	}
	claim, damaged, err := fs.readClaim()
	if err == nil && damaged {
		claim = &Claim{}
	}
	return claim, err
}

// Close closes the queue. The device stays open.
func (r *ClaimReader) Close() error { return r.q.Close() }

// LastClaim returns the claim on one file system, as ClaimReader.Last does.
func LastClaim(ctx context.Context, dev nvmf.Device, seg Segment) (*Claim, error) {
	r, err := NewClaimReader(ctx, dev)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.Last(seg)
}

// problems returns the findings that are worse than notes.
func problems(r *CheckReport) (list []Finding) {
	for _, f := range r.Findings {
		if f.Severity > Note {
			list = append(list, f)
		}
	}
	return list
}

// busy replaces the findings by lasting, those of all readings, and adds a finding of kind FoundBusy.
func (r *CheckReport) busy(lasting []Finding) {
	r.InUse, r.Findings, r.More = true, lasting, 0
	r.add(Finding{
		Kind: FoundBusy, Severity: Repairable, Where: "partition", Offset: -1,
		What:   "it is being written to without a pause, and could not be checked",
		Remedy: "check it again when the job is quiet, or has ended",
	})
}

func (r *CheckReport) add(f Finding) {
	if len(r.Findings) >= maxFindings {
		r.More++
		return
	}
	r.Findings = append(r.Findings, f)
}

// checker is one reading of a file system.
type checker struct {
	*FS
	seg Segment
	r   *CheckReport
}

// look reads and examines the file system once. It fails only with an error of the device or of the
// connection that says nothing about the content of the media.
func look(q nvmf.Queue, dev nvmf.Device, seg Segment, o CheckOptions) (*CheckReport, error) {
	c := &checker{
		FS:  &FS{dev: dev, q: q, opts: Options{Generation: o.Generation, ReadOnly: true}},
		seg: seg, r: &CheckReport{Findings: []Finding{}},
	}
	err := c.look()
	if err == nil && c.log != nil {
		moved := c.checkTail()
		if errors.Is(moved, nvmf.ErrNamespaceChanged) || errors.Is(moved, errPowerLost) {
			c.r.InUse = true
		} else {
			err = fatal(moved)
		}
	}
	return c.r, err
}

// fatal returns err, except if the device reports damaged data: that is a finding, not a failure.
func fatal(err error) error {
	if unreadable(err) {
		return nil
	}
	return err
}

func (c *checker) look() error {
	if ok, err := c.superblocks(); !ok {
		return err
	}
	c.r.LogPages = c.g.logPages
	if err := c.claims(); err != nil {
		return err
	}
	ok, err := c.stateHeaders()
	if !ok {
		return err
	}
	if ok, err = c.state(); !ok {
		return errors.Join(err, c.survey())
	}
	if ok, err = c.replay(); !ok {
		return err
	}
	c.unlinked()
	c.checkTree()
	return nil
}

// superblocks checks both copies; ok reports that at least one is good.
func (c *checker) superblocks() (ok bool, err error) {
	id := c.dev.Identity()
	s := c.seg
	if s.Start%blockSize != 0 || s.Length%blockSize != 0 || s.Length < 4*blockSize || s.Start+s.Length > id.Capacity() || s.Start+s.Length < s.Start {
		c.found(FoundSegment, Loss, "partition", -1, fmt.Sprintf("%v at %v do not fit a namespace of %v", s.Length, s.Start, id.Capacity()), "")
		return false, nil
	}
	var errs [2]error
	var copies [2]string
	for i, at := range s.superblocks() {
		buf := make([]byte, blockSize)
		errs[i] = c.readBlocks(nvmf.LBA((s.Start+at)/id.LBASize), buf)
		if err := fatal(errs[i]); err != nil {
			return false, err
		}
		var g *geometry
		if errs[i] == nil {
			g, errs[i] = decodeSuperblock(buf)
		}
		if errs[i] == nil {
			errs[i] = g.fit(s, id.LBASize)
		}
		if copies[i] = string(buf); errs[i] == nil && c.g == nil {
			c.g = g
		}
	}
	switch {
	case c.g == nil && errors.Is(errs[0], ErrUnformatted) && !errors.Is(errs[1], ErrVersion):
		c.r.Unformatted = true
		return false, nil
	case errs[0] == nil && errs[1] == nil && copies[0] != copies[1]:
		errs[1] = errors.New("it is intact but not the same as the first")
	}
	kind, severity, remedy := FoundSuperblock, Loss, "without one nothing can be found: start over with --fresh"
	if c.g != nil {
		kind, severity, remedy = FoundSuperblockCopy, Repairable, "the other copy is good"
	}
	for i, at := range s.superblocks() {
		if errs[i] != nil {
			c.found(kind, severity, fmt.Sprintf("superblock, copy %d", i), int64(at), reason(errs[i]), remedy)
		}
	}
	if c.g != nil && c.g.generation != c.opts.Generation {
		c.found(FoundGeneration, Loss, "superblock", superblockOffset,
			fmt.Sprintf("it has generation %#x, the partition table %#x: this is from before the namespace was formatted", c.g.generation, c.opts.Generation), "")
	}
	return c.g != nil, nil
}

// stateHeaders checks both headers and takes the newer one; ok reports that one is good.
func (c *checker) stateHeaders() (ok bool, err error) {
	var errs [2]error
	var list [2]*stateHeader
	best := -1
	buf := make([]byte, blockSize)
	for slot := range 2 {
		errs[slot] = c.readBlocks(c.g.lbaOf(headerAt(slot)), buf)
		if err := fatal(errs[slot]); err != nil {
			return false, err
		}
		if errs[slot] == nil {
			list[slot], errs[slot] = decodeStateHeader(buf, c.g)
		}
		if errs[slot] == nil && (best < 0 || list[slot].sequence > list[best].sequence) {
			best = slot
		}
	}
	for slot, err := range errs {
		where := fmt.Sprintf("state header, slot %d", slot)
		switch {
		case best < 0:
			c.found(FoundHeader, Loss, where, int64(headerAt(slot)), reason(err), "the current state cannot be found")
		case err != nil:
			c.found(FoundHeaderCopy, Note, where, int64(headerAt(slot)), reason(err), "the other is good; "+cutShort)
		case list[slot].sequence != list[best].sequence:
			c.found(FoundHeaderCopy, Note, where, int64(headerAt(slot)), "it is of the state before", "a crash came between the two")
		case *list[slot] != *list[best]:
			c.found(FoundHeaderCopy, Repairable, where, int64(headerAt(slot)), "it is intact but not the same as the other", "")
		}
	}
	if best >= 0 {
		c.ckpt.header = *list[best]
	}
	return best >= 0, nil
}

// cutShort explains a finding that need not be damage. A crash can leave the same, and so can a
// command that was in flight when a connection was lost and is executed late.
const cutShort = "a write that was cut short leaves that, too"

func headerAt(slot int) nvmf.Bytes { return headerOffset + nvmf.Bytes(slot)*blockSize }

// claims checks both claims, and finds out who holds the partition.
func (c *checker) claims() error {
	var list [2]*Claim
	var errs [2]error
	buf := make([]byte, blockSize)
	best := -1
	for slot := range 2 {
		err := c.readBlocks(c.g.lbaOf(claimAt(slot)), buf)
		if fatal(err) != nil {
			return err
		}
		if err == nil {
			list[slot], err = decodeClaim(buf, c.g.fs)
		}
		if errs[slot] = err; list[slot] != nil && (best < 0 || list[slot].Sequence > list[best].Sequence) {
			best = slot
		}
	}
	for slot, err := range errs {
		if err == nil {
			continue
		}
		severity, remedy := Note, cutShort
		if best < 0 && errs[1-slot] != nil {
			severity, remedy = Repairable, "the next mount for writing writes it again, if it may: nothing tells who held the partition"
		}
		c.found(FoundClaim, severity, fmt.Sprintf("claim, slot %d", slot), int64(claimAt(slot)), reason(err), remedy)
	}
	if best >= 0 && !list[best].Released {
		c.r.Holder = list[best].String()
	}
	return nil
}

func claimAt(slot int) nvmf.Bytes { return claimOffset + nvmf.Bytes(slot)*blockSize }

// state reads the state checkpoint; ok reports that it is valid.
func (c *checker) state() (ok bool, err error) {
	h := &c.ckpt.header
	where, at := fmt.Sprintf("state checkpoint %d", h.sequence), int64(c.g.state[h.area])
	state, err := c.readStateArea(h)
	if err != nil && fatal(err) != nil && !errors.Is(err, ErrCorrupt) {
		return false, err
	}
	if err != nil {
		c.found(FoundState, Loss, where, at, reason(err), "the names and places of all files were in it")
		return false, nil
	}
	for _, b := range c.repair {
		c.found(FoundStateBlock, Repairable, where, int64(b.at), "a block of it is damaged", "it can be made good from the others")
	}
	if c.tree, err = decodeTree(c.g, state); err == nil {
		return true, nil
	}
	return false, c.explainState(state, where, at, err)
}

// explainState adds findings for everything that is wrong in a state whose checksum matches.
// decodeTree refuses such a state for the first reason.
func (c *checker) explainState(state []byte, where string, at int64, refused error) (err error) {
	known := len(problems(c.r))
	r := &stateReader{b: state, malformed: c.malformed}
	if c.tree, err = r.tree(c.g); err != nil {
		c.found(FoundState, Loss, where, at, reason(err), "what comes behind that place cannot be read")
	}
	if c.tree != nil {
		c.checkTree()
	}
	if len(problems(c.r)) == known {
		c.found(FoundState, Loss, where, at, reason(refused), "")
	}
	return nil
}

// malformed adds a finding about a malformed inode, name or extent of a state.
func (c *checker) malformed(ino Ino, err error) {
	c.r.add(Finding{Kind: FoundInode, Severity: Loss, Where: fmt.Sprintf("inode %d", ino), Offset: -1, Ino: ino, What: reason(err)})
}

// replay follows the log; ok reports that it reached the end.
func (c *checker) replay() (ok bool, err error) {
	prior := c.ckpt.header.prior
	if c.log, err = oplog.Recover(c.logGeometry(), prior, c.media()); err != nil {
		if err := fatal(err); err != nil && !MovedOn(err) && !errors.Is(err, oplog.ErrFormat) {
			return false, err
		}
		c.log = nil
		c.found(FoundLog, Loss, fmt.Sprintf("log behind page %d", prior.Page), -1, reason(err), "operations from there on are lost")
		return false, c.survey()
	}
	c.r.LogUsed = c.g.logPages - c.log.Free()
	c.r.Generation = c.log.Generation() - 1
	err = c.log.Inspect(prior, c.media(), c.slots)
	if errors.Is(err, oplog.ErrDamaged) {
		c.r.InUse, err = true, nil
	}
	return true, fatal(err)
}

// survey reports the damaged slots of a log that cannot be replayed.
func (c *checker) survey() error {
	err := oplog.Survey(c.logGeometry(), c.ckpt.header.prior, c.media(), c.slots)
	if errors.Is(err, oplog.ErrFormat) || errors.Is(err, oplog.ErrDamaged) {
		return nil
	}
	return fatal(err)
}

// slots reports the damaged slots of a log page.
func (c *checker) slots(p oplog.PageReport) {
	severity, remedy := Loss, "the other has no image of the page either"
	if p.Slots[0] == oplog.SlotIntact || p.Slots[1] == oplog.SlotIntact {
		severity, remedy = Note, "the other is good; "+cutShort
	}
	for slot, s := range p.Slots {
		if s == oplog.SlotDamaged {
			at := nvmf.Bytes(p.LBA[slot])*c.g.lba - c.g.seg.Start
			c.found(FoundLogSlot, severity, fmt.Sprintf("log page %d, slot %d", p.Page, slot), int64(at), "it holds no intact image", remedy)
		}
	}
}

// unlinked adds a note about files without a name that are still in the log or the state. A mount
// frees them.
func (c *checker) unlinked() {
	n, mapped := 0, Hugeblock(0)
	for in := range c.tree.inodes.all() {
		if in.nlink == 0 {
			n++
			mapped += in.mapped
		}
	}
	if n > 0 {
		c.found(FoundUnlinked, Note, "files without a name", -1,
			fmt.Sprintf("%d removed files, of %v, are still in the log since the state checkpoint", n, nvmf.Bytes(mapped)*c.g.hugeblock),
			"every mount counts their space as free")
	}
	c.tree.dropNameless()
}

func (c *checker) found(kind FindingKind, s Severity, where string, offset int64, what, remedy string) {
	c.r.add(Finding{Kind: kind, Severity: s, Where: where, Offset: offset, What: what, Remedy: remedy})
}

// reason returns the text of an error without the words that all these errors end with.
func reason(err error) string { return strings.TrimSuffix(err.Error(), ": "+ErrCorrupt.Error()) }
