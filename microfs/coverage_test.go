package microfs

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/blocktest/crash"
)

// coverage counts the images of crashes by situation: what was in progress at the crash. The situation is
// derived from the commands in flight and from the media, not from what the test intended.
type coverage map[string]int

// mustCover lists the situations that a run of the crash tests must have met at least once.
var mustCover = []string{
	"a coalesced image in flight", "a reused block", "a wrapped ring", "half a state checkpoint",
	"a tail append", "an overwrite", "a second crash during recovery", "a crash after a fall-back",
}

func (v coverage) count(seen []string) {
	for _, s := range seen {
		v[s]++
	}
}

func (v coverage) add(o coverage) {
	for k, n := range o {
		v[k] += n
	}
}

func (v coverage) String() string {
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(v)) {
		if !strings.HasPrefix(k, "block ") {
			lines = append(lines, fmt.Sprintf("%9d images of %s", v[k], k))
		}
	}
	return strings.Join(lines, "\n")
}

func (v coverage) require(t testing.TB, want ...string) {
	for _, s := range want {
		assert.Positive(t, v[s], "never crashed into %s", s)
	}
}

// blockUse says which part of which file a hugeblock holds.
type blockUse struct {
	ino     Ino // 0: free
	file    Hugeblock
	covered nvmf.Bytes
}

// blockUses returns the blockUse of every hugeblock.
func blockUses(fs *FS) []blockUse {
	use := make([]blockUse, fs.g.blocks)
	for in := range fs.tree.inodes.all() {
		for x := range in.extents.all() {
			for n := range x.count {
				use[x.phys+n] = blockUse{in.ino, x.file + n, x.coveredIn(x.file+n, fs.g)}
			}
		}
	}
	return use
}

// remember records which hugeblocks have ever been used.
func (v coverage) remember(fs *FS) {
	for h, u := range blockUses(fs) {
		if u.ino != 0 {
			v[fmt.Sprintf("block %d used", h)] = 1
		}
	}
}

// classify returns the situations of a crash point. owner says what the hugeblocks held before the
// operation in progress.
func (v coverage) classify(c *crasher, owner []blockUse, h *crash.History) (seen []string) {
	saw := func(s string) {
		if !slices.Contains(seen, s) {
			seen = append(seen, s)
		}
	}
	id := c.live.Identity()
	g, _ := newGeometry(id, c.seg, &FormatOptions{Hugeblock: MinHugeblock, LogPages: minLogPages, NoDataCRC: c.cfg.noSums})
	var written []logRecord
	for _, e := range h.InFlight() {
		if im := parseImage(e.Data); im != nil {
			written = append(written, im.list()...)
		}
	}
	for _, e := range h.InFlight() {
		at := nvmf.Bytes(e.LBA)*id.LBASize - c.seg.Start
		switch {
		case at >= headerOffset && at < logOffset:
			saw("a state header in flight")
		case at >= logOffset && at < g.state[0]:
			v.classifyImage(c, e, saw)
		case at >= g.state[0] && at < g.data:
			saw("half a state checkpoint")
		case at >= g.data:
			classifyData(v, owner, written, Hugeblock((at-g.data)/g.hugeblock), saw)
		}
	}
	return seen
}

func (v coverage) classifyImage(c *crasher, e blocktest.Event, saw func(string)) {
	im := parseImage(e.Data)
	if im == nil {
		return // zeros, which blank a page
	}
	saw("a log image in flight")
	if im.page > minLogPages {
		saw("a wrapped ring")
	}
	if len(im.raw) == len(e.Data) && im.pending > 0 {
		saw("an image with pending data in flight")
	}
	ring := c.ring()
	for slot := range 2 {
		old := parseImage(ring[(int(im.page%minLogPages)*2+slot)*blockSize:][:blockSize])
		if old == nil || old.page != im.page || old.version >= im.version {
			continue
		}
		a, b := old.list(), im.list()
		for i := range min(len(a), len(b)) {
			if a[i].kind == 1 && a[i].at == b[i].at && a[i].ino == b[i].ino && a[i].phys == b[i].phys && a[i].end < b[i].end {
				saw("a coalesced image in flight")
			}
		}
	}
}

// classifyData classifies data in flight to hugeblock b. records are the log records in flight.
func classifyData(v coverage, owner []blockUse, records []logRecord, b Hugeblock, saw func(string)) {
	saw("data in flight")
	if owner[b].ino != 0 {
		saw("a tail append")
		return
	}
	if v[fmt.Sprintf("block %d used", b)] > 0 {
		saw("a reused block")
	}
	for _, r := range records {
		if r.kind != 1 || b < r.phys || nvmf.Bytes(b-r.phys)*MinHugeblock >= nvmf.Bytes(r.end) {
			continue
		}
		for _, u := range owner {
			if u.ino == r.ino && u.file == r.file+b-r.phys {
				saw("an overwrite")
			}
		}
	}
}

// logImage is a log page image, decoded as docs/dev/format.md specifies.
type logImage struct {
	raw                   []byte
	page, version         uint64
	prevPage, prevVersion uint64
	generation            uint64
	records               []byte
	pending               int
}

// parseImage decodes an image. It returns nil if b is not an intact image.
func parseImage(b []byte) *logImage {
	if len(b) != blockSize || !bytes.HasPrefix(b, []byte("NVLP")) || checksum(b[:blockSize-8]) != le.Uint64(b[blockSize-8:]) {
		return nil
	}
	return &logImage{
		raw: b, generation: le.Uint64(b[24:]), page: le.Uint64(b[32:]), version: le.Uint64(b[40:]),
		prevPage: le.Uint64(b[48:]), prevVersion: le.Uint64(b[56:]),
		records: b[96 : 96+le.Uint16(b[80:])], pending: int(le.Uint16(b[82:])),
	}
}

// logRecord has the common fields of a record and, for a Write, the hugeblocks that it maps.
type logRecord struct {
	at         int
	kind       byte
	ino        Ino
	file, phys Hugeblock
	end        uint64
}

func (im *logImage) list() (list []logRecord) {
	for at := 0; at < len(im.records); {
		b := im.records[at:]
		r := logRecord{at: at, kind: b[0], ino: Ino(le.Uint64(b[8:]))}
		if r.kind == 1 {
			r.file, r.phys, r.end = Hugeblock(le.Uint32(b[24:])), Hugeblock(le.Uint32(b[28:])), le.Uint64(b[32:])
		}
		list = append(list, r)
		at += int(le.Uint16(b[2:]))
	}
	return list
}

// newestImage returns a copy of the intact image of the highest version.
func newestImage(ring []byte) (newest *logImage) {
	for at := 0; at < len(ring); at += blockSize {
		if im := parseImage(ring[at : at+blockSize]); im != nil && (newest == nil || im.version > newest.version) {
			newest = im
		}
	}
	if newest == nil {
		return nil
	}
	return parseImage(bytes.Clone(newest.raw))
}

// dropped reports whether the recovery of fs rejected the image: the image that sealed the log neither
// repeats the records of im nor names im as previous.
func (im *logImage) dropped(fs *FS) bool {
	_, raw, ok := fs.log.TailRead()
	if im == nil || !ok {
		return false
	}
	seal := parseImage(raw)
	same := seal.page == im.page && bytes.Equal(seal.records, im.records)
	follows := len(seal.records) == 0 && seal.prevPage == im.page && seal.prevVersion == im.version
	return !same && !follows
}
