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

// FuzzRecord decodes arbitrary bytes. It checks that a record that decodes is encoded to bytes that
// decode to the same record, that decoding reads no more bytes than there are, and that it needs
// little memory and time.
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

// FuzzRecover recovers a forged ring: a script changes the images of a valid ring, and forge makes
// all checksums valid again. It checks that recovery either fails with an error of this package or
// finds a log that recovers to the same records after it has been sealed.
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
			// After the seal a second recovery finds the same records. That holds even if data
			// that did not verify before verifies now.
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

// unverifiable returns media on which the data of some inodes does not verify: those whose number,
// modulo 8, is a set bit of bits.
func (r *ring) unverifiable(log *[]Record, bits uint8) Media {
	m := r.media(log)
	m.Verify = func(rec *Record, first, count int) (bool, error) {
		return bits>>(rec.Ino&7)&1 == 0, nil
	}
	return m
}

// forge lets script edit the intact images of a ring. Then it computes the checksum of each edited
// image again, and puts the new checksum into the images that name the old one as previous.
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
