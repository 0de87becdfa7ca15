package oplog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/crc64"
	"nvmecr/internal/hostile"
)

const (
	fuzzMemory = 8 << 20
	fuzzTime   = 20 * time.Second
)

// FuzzRecord: what decodes is written as it was, and takes no more than it has.
func FuzzRecord(f *testing.F) {
	for _, r := range append(slices.Clone(samples), rangeSamples...) {
		b := make([]byte, r.Len())
		r.encode(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		hostile.Bounded(t, 1<<20, fuzzTime, func() {
			var r Record
			n, err := r.decode(b)
			if err != nil {
				require.ErrorIs(t, err, ErrRecord)
				return
			}
			require.LessOrEqual(t, n, len(b))
			again := make([]byte, r.Len())
			require.Equal(t, len(again), r.encode(again))
			var back Record
			m, err := back.decode(again)
			require.NoError(t, err)
			require.Equal(t, len(again), m)
			require.Equal(t, r, back)
		})
	})
}

// FuzzRecover recovers a ring that somebody wrote who can compute checksums: a
// real one with a script's changes to its images, which name each other as
// they did before.
func FuzzRecover(f *testing.F) {
	real := newRing(testGeometry)
	l := newLog(testGeometry, Prior{})
	l.generation = 1
	for round := range 3 {
		for _, rec := range append(slices.Clone(samples), rangeSamples...) {
			rec.Ino += uint64(round)
			real.group(f, l, rec)
		}
		real.group(f, l, Record{Type: Create, Ino: 9, Parent: 1, Name: bytes.Repeat([]byte("n"), 255), NewName: make([]byte, 3500)})
	}
	f.Add([]byte(nil), uint8(0))
	f.Add([]byte{0, 1, 0, 0, 40, 0, 1, 0}, uint8(1))
	f.Add([]byte{2, 5, 0, 0, 80, 0, 9, 0, 3, 1, 0, 0, 2, 0, 3, 0}, uint8(2))
	f.Fuzz(func(t *testing.T, script []byte, how uint8) {
		r := &ring{bytes.Clone(real.data)}
		forge(r.data, script)
		g := testGeometry
		g.Volatile = how&1 != 0
		hostile.Bounded(t, fuzzMemory, fuzzTime, func() {
			var recs []Record
			l, err := Recover(g, Prior{}, r.unverifiable(&recs, how>>1))
			if err != nil {
				require.True(t, errors.Is(err, ErrDamaged) || errors.Is(err, ErrRecord) || errors.Is(err, ErrFormat), "%v", err)
				return
			}
			if l.Free() == 0 || max(l.version, l.generation, l.tail.page) > 1<<61 {
				return
			}
			// Recovered and sealed, it is what it was, even if data that was
			// missing lands now.
			r.seal(t, l)
			var again []Record
			l, err = Recover(g, Prior{}, r.media(&again))
			require.NoError(t, err)
			require.Equal(t, recs, again)
			r.seal(t, l)
			r.group(t, l, Record{Type: Close, Ino: 77})
			again = nil
			_, err = Recover(g, Prior{}, r.media(&again))
			require.NoError(t, err)
			require.Len(t, again, len(recs)+1)
		})
	})
}

// unverifiable is media on which the data of inodes with a bit of bits does not verify.
func (r *ring) unverifiable(log *[]Record, bits uint8) Media {
	m := r.media(log)
	m.Verify = func(rec *Record, first, count int) (bool, error) {
		return bits>>(rec.Ino&7)&1 == 0, nil
	}
	return m
}

// forge edits the images of a ring, and makes their checksums and the names
// of these hold again.
func forge(data, script []byte) {
	le := binary.LittleEndian
	var places, images [][]byte
	var before []uint64
	for at := 0; at < len(data); at += PageSize {
		im := data[at : at+PageSize : at+PageSize]
		if _, err := decodeImage(im, testGeometry.FS, le.Uint64(im[offPage:]), 0); err != nil {
			continue
		}
		images, before = append(images, im), append(before, le.Uint64(im[offCRC:]))
		places = append(places, im[:offRecords], im[offRecords:][:512])
	}
	hostile.Apply(script, 32, places)
	now := map[uint64]uint64{}
	for range images {
		for i, im := range images {
			if crc, ok := now[le.Uint64(im[offPrevCRC:])]; ok {
				le.PutUint64(im[offPrevCRC:], crc)
			}
			crc := crc64.Checksum(im[:offCRC])
			le.PutUint64(im[offCRC:], crc)
			if crc != before[i] {
				now[before[i]], before[i] = crc, crc
			}
		}
	}
}
