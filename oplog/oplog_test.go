package oplog

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/crc64"
	"nvmecr/nvmf"
)

var update = flag.Bool("update", false, "write the golden files anew")

var testGeometry = Geometry{
	FS: uuid.MustParse("00112233-4455-6677-8899-aabbccddeeff"), Pages: 8, LBASize: 4096,
	Unit: 32 * nvmf.KiB, Hugeblock: 32 * nvmf.KiB,
}

// ring is the media of a log. It executes commands at once.
type ring struct{ data []byte }

func newRing(g Geometry) *ring { return &ring{make([]byte, g.Pages*2*PageSize)} }

func (r *ring) apply(cmds []*nvmf.Command) {
	for _, c := range cmds {
		at := int(c.LBA) * 4096
		for _, d := range c.Data {
			at += copy(r.data[at:], d)
		}
	}
}

func (r *ring) media(log *[]Record) Media {
	return Media{
		ReadPages: func(pos uint64, n int, buf []byte) error {
			copy(buf, r.data[pos*2*PageSize:])
			return nil
		},
		Verify: func(*Record, int, int) (bool, error) { return true, nil },
		Reset:  func() error { *log = nil; return nil },
		Apply: func(rec *Record) error {
			c := *rec
			c.Name, c.NewName = bytes.Clone(rec.Name), bytes.Clone(rec.NewName)
			c.CRCs = append([]uint64(nil), rec.CRCs...)
			c.Ranges = append([]Range(nil), rec.Ranges...)
			*log = append(*log, c)
			return nil
		},
	}
}

func (r *ring) recover(t require.TestingT, g Geometry, prior Prior) (*Log, []Record) {
	var recs []Record
	l, err := Recover(g, prior, r.media(&recs))
	require.NoError(t, err)
	return l, recs
}

func (r *ring) seal(t require.TestingT, l *Log) {
	prep, err := l.Seal()
	require.NoError(t, err)
	r.apply(prep)
	r.apply(l.Commit())
	l.Settled()
}

func (r *ring) group(t require.TestingT, l *Log, recs ...Record) {
	need := 0
	for i := range recs {
		need += recs[i].Len() + pendingSize
	}
	prep, err := l.Begin(need)
	require.NoError(t, err)
	r.apply(prep)
	for i := range recs {
		require.NoError(t, l.Append(&recs[i], true))
	}
	r.apply(l.Commit())
	l.Settled()
}

// samples has records of the types that the first version of the format had.
var samples = []Record{
	{Type: Write, Ino: 2, Time: 1, FirstUnit: 1, File: 3, Phys: 4, End: 70000, CRCs: []uint64{5, 6}},
	{Type: Create, Ino: 3, Time: 2, Parent: 1, Mode: 0o100644, UID: 7, GID: 8, Name: []byte("melt.0"), NewName: []byte{}},
	{Type: Create, Ino: 4, Time: 3, Parent: 1, Mode: 0o120777, Name: []byte("link"), NewName: []byte("target/of/it")},
	{Type: Unlink, Ino: 3, Time: 4, Parent: 1, Name: []byte("melt.0")},
	{Type: Link, Ino: 3, Time: 5, Parent: 1, Name: []byte("other")},
	{Type: Rename, Ino: 3, Time: 6, Parent: 1, NewParent: 9, Name: []byte("a"), NewName: []byte("bcd"), Flags: RenameExchange},
	{Type: Truncate, Ino: 3, Time: 7, Size: 12345, HasCRC: true, CRC: 99},
	{Type: SetAttr, Ino: 3, Time: 8, Mask: SetMode | SetMtime, Mode: 0o600, UID: 1, GID: 2, Atime: 3, Mtime: 4},
	{Type: Close, Ino: 3, Time: 9},
}

// rangeSamples has MapRange and DropRange records.
var rangeSamples = []Record{
	{Type: MapRange, Ino: 3, Time: 10, Size: 700, Mtime: 11, Ranges: []Range{{Off: 100, Len: 200, Partition: 3, Cut: 4}, {Off: 1 << 40, Len: 1 << 33, Partition: 0x80000005, Cut: 1}}},
	{Type: MapRange, Ino: 4, Time: 12, Size: 800, Mtime: -1},
	{Type: DropRange, Ino: 3, Time: 13, Offset: 1 << 41, Length: 6},
}

// spaceSamples has Allocate and Punch records.
var spaceSamples = []Record{
	{Type: Allocate, Ino: 3, Time: 14, File: 5, Phys: 6, Count: 7, Size: 1 << 33},
	{Type: Punch, Ino: 4, Time: 15, File: 8, Count: 9},
}

// TestRecordsRoundTrip checks that the samples decode to the same records after they were encoded.
func TestRecordsRoundTrip(t *testing.T) {
	for _, want := range slices.Concat(samples, rangeSamples, spaceSamples) {
		b := make([]byte, want.Len())
		require.Equal(t, len(b), want.encode(b))
		var got Record
		n, err := got.decode(b)
		require.NoError(t, err)
		require.Equal(t, len(b), n)
		if len(got.CRCs) == 0 {
			got.CRCs = nil
		}
		require.Equal(t, want, got)
	}
}

// TestMostRanges checks that a record with MaxRanges ranges fits a page together with the largest
// deferred records, and that a record with one more range does not.
func TestMostRanges(t *testing.T) {
	r := Record{Type: MapRange, Ranges: make([]Range, MaxRanges)}
	require.LessOrEqual(t, r.Len()+maxDeferred, Capacity)
	require.Greater(t, r.Len()+rangeSize+maxDeferred, Capacity)
}

// TestGolden pins the bytes of a page image with all samples.
func TestGolden(t *testing.T) {
	r := newRing(testGeometry)
	l := newLog(testGeometry, Prior{})
	l.generation = 1
	for _, rec := range samples {
		r.group(t, l, rec)
	}
	at := int(l.g.lba(l.tail.page, l.slot)) * 4096
	compareGolden(t, "page.hex", r.data[at:at+PageSize])
}

// TestGoldenRecords pins the bytes of the records of later versions.
func TestGoldenRecords(t *testing.T) {
	for name, records := range map[string][]Record{"ranges.hex": rangeSamples, "space.hex": spaceSamples} {
		var b []byte
		for i := range records {
			b = append(b, make([]byte, records[i].Len())...)
			records[i].encode(b[len(b)-records[i].Len():])
		}
		compareGolden(t, name, b)
	}
}

func compareGolden(t *testing.T, name string, got []byte) {
	var b strings.Builder
	for i := 0; i < len(got); i += 32 {
		line := got[i:min(i+32, len(got))]
		if !bytes.Equal(line, make([]byte, len(line))) {
			fmt.Fprintf(&b, "%04x %s\n", i, hex.EncodeToString(line))
		}
	}
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "the format changed: old media could not be read any more")
}

// TestReplayAndWrap logs records over many turns of the ring. It checks now and then that recovery
// replays exactly the records since the last state checkpoint.
func TestReplayAndWrap(t *testing.T) {
	g := testGeometry
	r := newRing(g)
	l, recs := r.recover(t, g, Prior{})
	require.Empty(t, recs)
	r.seal(t, l)
	var prior Prior
	count := 0
	for i := range 2000 { // many turns of the ring
		rec := Record{Type: Create, Ino: uint64(i), Parent: 1, Name: fmt.Appendf(nil, "file-%d", i), NewName: []byte{}}
		if _, err := l.Begin(rec.Len() + pendingSize); err != nil {
			require.ErrorIs(t, err, ErrFull)
			if cmds := l.Mirror(); cmds != nil {
				r.apply(cmds)
				l.Settled()
			}
			prior = l.Prior()
			l.Release(prior)
			count = 0
		}
		r.group(t, l, rec)
		count++
		if i%97 == 0 {
			var got []Record
			l, got = r.recover(t, g, prior)
			require.Len(t, got, count)
			require.EqualValues(t, i, got[count-1].Ino)
			r.seal(t, l)
		}
	}
	require.Greater(t, l.Generation(), uint64(20))
}

// TestCoalescing checks which Write records are merged into an earlier record of the same file.
func TestCoalescing(t *testing.T) {
	hb := func(file, phys, first uint32, end uint64, crcs ...uint64) Record {
		return Record{Type: Write, Ino: 2, File: file, Phys: phys, FirstUnit: first, End: end, CRCs: crcs}
	}
	other := Record{Type: Write, Ino: 3, File: 0, Phys: 50, End: 32768, CRCs: []uint64{9}}
	tests := []struct {
		name string
		in   []Record
		want []Record
	}{
		{"consecutive hugeblocks", []Record{hb(0, 10, 0, 32768, 1), hb(1, 11, 0, 32768, 2)}, []Record{hb(0, 10, 0, 65536, 1, 2)}},
		{"append inside a unit", []Record{hb(0, 10, 0, 100, 1), hb(0, 10, 0, 200, 2)}, []Record{hb(0, 10, 0, 200, 2)}},
		{"append over a boundary", []Record{hb(0, 10, 0, 100, 1), hb(0, 10, 0, 40000, 2, 3)}, []Record{hb(0, 10, 0, 40000, 2, 3)}},
		{"gap in the hugeblock before", []Record{hb(0, 10, 0, 100, 1), hb(1, 11, 0, 32768, 2)}, []Record{hb(0, 10, 0, 100, 1), hb(1, 11, 0, 32768, 2)}},
		{"not consecutive on the media", []Record{hb(0, 10, 0, 32768, 1), hb(1, 12, 0, 32768, 2)}, []Record{hb(0, 10, 0, 32768, 1), hb(1, 12, 0, 32768, 2)}},
		{"another file between", []Record{hb(0, 10, 0, 32768, 1), other, hb(1, 11, 0, 32768, 2)}, []Record{hb(0, 10, 0, 65536, 1, 2), other}},
		{"an overwrite between", []Record{hb(0, 10, 0, 32768, 1), hb(0, 20, 0, 32768, 4), hb(1, 11, 0, 32768, 2)},
			[]Record{hb(0, 10, 0, 32768, 1), hb(0, 20, 0, 32768, 4), hb(1, 11, 0, 32768, 2)}},
		{"another operation between", []Record{hb(0, 10, 0, 32768, 1), {Type: Close, Ino: 2}, hb(1, 11, 0, 32768, 2)},
			[]Record{hb(0, 10, 0, 32768, 1), {Type: Close, Ino: 2}, hb(1, 11, 0, 32768, 2)}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r := newRing(testGeometry)
			l, _ := r.recover(t, testGeometry, Prior{})
			r.seal(t, l)
			for _, rec := range tc.in {
				r.group(t, l, rec)
			}
			_, got := r.recover(t, testGeometry, Prior{})
			for i := range got {
				if len(got[i].CRCs) == 0 {
					got[i].CRCs = nil
				}
			}
			require.Equal(t, tc.want, got)
		})
	}
}

// TestPending checks that recovery takes the newest image only if the data that the image lists as
// pending verifies, and that it otherwise takes the image before without verifying any data.
func TestPending(t *testing.T) {
	r := newRing(testGeometry)
	l, _ := r.recover(t, testGeometry, Prior{})
	r.seal(t, l)
	r.group(t, l, Record{Type: Write, Ino: 2, Phys: 1, End: 32768, CRCs: []uint64{1}})
	r.group(t, l, Record{Type: Write, Ino: 2, Phys: 1, File: 0, FirstUnit: 1, End: 65536, CRCs: []uint64{2}})
	for _, there := range []bool{true, false} {
		var recs []Record
		m := r.media(&recs)
		m.Verify = func(rec *Record, first, count int) (bool, error) {
			assert.Equal(t, []uint64{2}, rec.CRCs[first:first+count])
			return there, nil
		}
		_, err := Recover(testGeometry, Prior{}, m)
		require.NoError(t, err)
		require.Len(t, recs, 1)
		require.Equal(t, there, len(recs[0].CRCs) == 2)
	}
}

// TestDamageIsNotACrash checks that recovery fails with ErrDamaged if a page in the middle of the
// log is missing: a crash cannot leave such a log.
func TestDamageIsNotACrash(t *testing.T) {
	r := newRing(testGeometry)
	l, _ := r.recover(t, testGeometry, Prior{})
	r.seal(t, l)
	for i := range 300 {
		r.group(t, l, Record{Type: Create, Ino: uint64(i), Parent: 1, Name: fmt.Appendf(nil, "file-%d", i)})
	}
	require.Greater(t, l.tail.page, uint64(3))
	clear(r.data[2*2*PageSize : 3*2*PageSize])
	_, err := Recover(testGeometry, Prior{}, r.media(new([]Record)))
	require.ErrorIs(t, err, ErrDamaged)
}

func BenchmarkGroup(b *testing.B) {
	r := newRing(testGeometry)
	l, _ := r.recover(b, testGeometry, Prior{})
	r.seal(b, l)
	rec := Record{Type: Write, Ino: 2, CRCs: []uint64{1}}
	b.ReportAllocs()
	for i := range b.N {
		rec.File, rec.Phys, rec.End = uint32(i), uint32(i), 32768
		if _, err := l.Begin(rec.Len() + pendingSize); err != nil {
			if cmds := l.Mirror(); cmds != nil {
				l.Settled()
			}
			l.Release(l.Prior())
			_, _ = l.Begin(rec.Len() + pendingSize)
		}
		_ = l.Append(&rec, true)
		l.Commit()
		l.Settled()
	}
}

// TestDeferred checks that deferred records become part of the next group that settles, in front of
// the records of that group, and that a group that fails or is lost leaves them deferred.
func TestDeferred(t *testing.T) {
	r := newRing(testGeometry)
	l := newLog(testGeometry, Prior{})
	l.generation = 1
	r.group(t, l, samples[1])
	deferred := Record{Type: Close, Ino: 3, Time: 9}
	for l.Defer(&deferred) {
		deferred.Time++
	}
	require.True(t, l.Deferred())
	require.Equal(t, Capacity-maxDeferred, l.Capacity())
	_, err := l.Begin(l.Capacity() + 1)
	require.ErrorIs(t, err, ErrTooLarge)

	_, recs := r.recover(t, testGeometry, Prior{})
	require.Len(t, recs, 1, "nothing has begun")
	for _, drop := range []func(){l.Failed, l.Lost} {
		_, err = l.Begin(0)
		require.NoError(t, err)
		l.Commit()
		drop()
		require.True(t, l.Deferred(), "the group did not settle")
	}
	large := Record{Type: Create, Ino: 4, Parent: 1, Mode: 0o120777, Name: bytes.Repeat([]byte("n"), 255), NewName: bytes.Repeat([]byte("t"), 3500)}
	require.LessOrEqual(t, large.Len(), l.Capacity())
	r.group(t, l, samples[3])
	require.False(t, l.Deferred())
	r.group(t, l, samples[7])

	_, recs = r.recover(t, testGeometry, Prior{})
	require.Len(t, recs, 1+maxDeferred/headerSize+2)
	for i, rec := range recs[1 : 1+maxDeferred/headerSize] {
		require.Equal(t, Record{Type: Close, Ino: 3, Time: int64(9 + i)}, rec)
	}
	require.Equal(t, Unlink, recs[len(recs)-2].Type)
}

// TestDeferredEndsCoalescing checks that a Write record is not merged into an earlier one if a
// deferred record is between the two.
func TestDeferredEndsCoalescing(t *testing.T) {
	r := newRing(testGeometry)
	l := newLog(testGeometry, Prior{})
	l.generation = 1
	first := Record{Type: Write, Ino: 2, File: 0, Phys: 0, End: 32768, CRCs: []uint64{1}}
	second := Record{Type: Write, Ino: 2, File: 1, Phys: 1, End: 32768, CRCs: []uint64{2}}
	r.group(t, l, first)
	require.True(t, l.Defer(&Record{Type: Close, Ino: 2}))
	r.group(t, l, second)
	_, recs := r.recover(t, testGeometry, Prior{})
	require.Len(t, recs, 3)
	require.Equal(t, []Type{Write, Close, Write}, []Type{recs[0].Type, recs[1].Type, recs[2].Type})
}

// TestBeforeLead checks that a CRC that starts from beforeLead is, after leadSize zeros, the CRC of the
// bytes that follow.
func TestBeforeLead(t *testing.T) {
	require.Zero(t, crc64.Update(beforeLead, make([]byte, leadSize)))
	require.Equal(t, crc64.Checksum([]byte("123456789")), crc64.Update(beforeLead, append(make([]byte, leadSize), "123456789"...)))
}
