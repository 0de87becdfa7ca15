package runrecord

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/crc64"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

var update = flag.Bool("update", false, "write the golden files anew")

// sample returns a record with a value in every field.
func sample() *Record {
	return &Record{
		Holder: microfs.Holder{
			Run:      uuid.MustParse("01900000-0000-7000-8000-000000000001"),
			Host:     "node7",
			Machine:  uuid.MustParse("00112233-4455-6677-8899-aabbccddeeff"),
			Boot:     uuid.MustParse("ffeeddcc-bbaa-9988-7766-554433221100"),
			PIDSpace: 0xeffffffc,
			PID:      4711,
			Start:    123456789,
		},
		Store:    "melt-2.run_a",
		UID:      4000000000,
		Beat:     7,
		Interval: 2 * time.Second,
		Since:    time.Unix(1700000000, 123456789).UTC(),
		Written:  time.Unix(1700000001, 987654321).UTC(),
	}
}

// joinable returns a record of a run that others may join.
func joinable() *Record {
	r := sample()
	r.Job = Job{ID: "4711.batch", Open: true, Tree: true, Index: "10.0.0.5:40000,[fe80::1]:40000", Secret: [32]byte{0: 1, 31: 2}}
	return r
}

// degraded returns a record of a store that works without a target.
func degraded() *Record {
	r := sample()
	r.Degraded = time.Unix(1700000000, 500000000).UTC()
	return r
}

// TestGolden checks that the bytes of version 1 never change.
func TestGolden(t *testing.T) {
	for name, r := range map[string]*Record{"testdata/v1-copy1.bin": sample(), "testdata/v1-job.bin": joinable(), "testdata/v1-degraded.bin": degraded()} {
		image := encode(r, 1)
		if *update {
			require.NoError(t, os.WriteFile(name, image, 0o644))
		}
		golden, err := os.ReadFile(name)
		require.NoError(t, err)
		require.True(t, bytes.Equal(golden, image), "the encoding of version 1 has changed")
		got, err := decode(golden, 1)
		require.NoError(t, err)
		assert.Equal(t, r, got)
	}
	ended := sample()
	ended.Ended = true
	got, err := decode(encode(ended, 0), 0)
	require.NoError(t, err)
	assert.Equal(t, ended, got)
}

// seal corrects the checksum, as hostile media would.
func seal(b []byte) { binary.LittleEndian.PutUint64(b[offCRC:], crc64.Checksum(b[:offCRC])) }

func TestDecodeRefuses(t *testing.T) {
	le := binary.LittleEndian
	for name, c := range map[string]struct {
		edit   func(b []byte)
		sealed bool
		err    error
	}{
		"zeros":             {func(b []byte) { clear(b) }, false, errNone},
		"something else":    {func(b []byte) { b[3]++ }, true, errNone},
		"a bit":             {func(b []byte) { b[2000] ^= 4 }, false, ErrDamaged},
		"version 0":         {func(b []byte) { le.PutUint32(b[offVersion:], 0) }, true, ErrDamaged},
		"version 2":         {func(b []byte) { le.PutUint32(b[offVersion:], 2) }, false, ErrVersion},
		"the other copy":    {func(b []byte) { le.PutUint32(b[offCopy:], 1) }, true, ErrDamaged},
		"a feature":         {func(b []byte) { b[offIncompatible+7] = 0x80 }, true, ErrVersion},
		"a long host name":  {func(b []byte) { le.PutUint32(b[offHostLength:], 65) }, true, ErrDamaged},
		"a long store name": {func(b []byte) { le.PutUint32(b[offStoreLength:], 1<<31) }, true, ErrDamaged},
		"no state":          {func(b []byte) { le.PutUint32(b[offState:], 0) }, true, ErrDamaged},
		"a compatible bit":  {func(b []byte) { b[offIncompatible+8] = 1 }, true, nil},
		"an index":          {func(b []byte) { b[1024] = 1 }, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := encode(sample(), 0)
			c.edit(b)
			if c.sealed {
				seal(b)
			}
			_, err := decode(b, 0)
			require.ErrorIs(t, err, c.err)
		})
	}
}

// TestNewest checks which of two copies is used.
func TestNewest(t *testing.T) {
	earlier, later, beat := sample(), sample(), sample()
	later.Run, later.Beat = uuid.MustParse("01900000-0000-7000-8000-000000000002"), 1
	beat.Beat++
	other := encode(sample(), 1)
	binary.LittleEndian.PutUint32(other[offVersion:], 2)
	damaged := encode(sample(), 1)
	damaged[offPID]++
	blank := make([]byte, size)
	for name, c := range map[string]struct {
		copies [2][]byte
		want   *Record
		err    error
	}{
		"none":                     {[2][]byte{blank, blank}, nil, nil},
		"a later beat":             {[2][]byte{encode(sample(), 0), encode(beat, 1)}, beat, nil},
		"a later run":              {[2][]byte{encode(later, 0), encode(earlier, 1)}, later, nil},
		"one":                      {[2][]byte{blank, encode(earlier, 1)}, earlier, nil},
		"one, the other damaged":   {[2][]byte{encode(earlier, 0), damaged}, earlier, nil},
		"damaged":                  {[2][]byte{blank, damaged}, nil, ErrDamaged},
		"of a later version":       {[2][]byte{encode(earlier, 0), other}, earlier, ErrVersion},
		"damaged, a later version": {[2][]byte{encode(earlier, 1), other}, nil, ErrVersion},
	} {
		t.Run(name, func(t *testing.T) {
			dev, q := newMem(t, 512)
			for i, b := range c.copies {
				copy(dev.Bytes()[parttable.RunRecordOffset(i):], b)
			}
			f, err := Read(dev, q)
			require.NoError(t, err)
			assert.Equal(t, c.want, f.Record)
			require.ErrorIs(t, f.Err, c.err)
		})
	}
}

// TestWrite checks that a written record can be read, and that nothing else changes.
func TestWrite(t *testing.T) {
	for _, lba := range []nvmf.Bytes{512, 4096} {
		dev, q := newMem(t, lba)
		before := bytes.Clone(dev.Bytes())
		empty, err := Read(dev, q)
		require.NoError(t, err)
		require.Nil(t, empty.Record)
		require.NoError(t, Write(dev, q, sample(), 0))
		one, err := Read(dev, q)
		require.NoError(t, err)
		assert.Equal(t, sample(), one.Record)
		assert.False(t, one.Same(empty))
		next := sample()
		next.Beat += 2
		require.NoError(t, Write(dev, q, next, 0))
		two, err := Read(dev, q)
		require.NoError(t, err)
		assert.False(t, two.Same(one))
		again, err := Read(dev, q)
		require.NoError(t, err)
		assert.True(t, again.Same(two))
		require.NoError(t, Write(dev, q, sample(), 1))
		require.NoError(t, Flush(dev, q))
		for c := range 2 {
			clear(dev.Bytes()[parttable.RunRecordOffset(c):][:size])
		}
		assert.True(t, bytes.Equal(before, dev.Bytes()))
	}
}

func TestString(t *testing.T) {
	r := sample()
	r.Host = "a\x1b[2Jb"
	assert.Contains(t, r.String(), `process 4711 of host a\x1b[2Jb, user 4000000000 (run 01900000-0000-7000-8000-000000000001), since `)
}

func newMem(t *testing.T, lba nvmf.Bytes) (*memdev.Device, nvmf.Queue) {
	dev, err := memdev.New(4*nvmf.MiB, lba, memdev.Options{})
	require.NoError(t, err)
	q, err := dev.OpenQueue(context.Background(), 2)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, q.Close())
		assert.NoError(t, dev.Close())
	})
	return dev, q
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(sample(), 0), false)
	f.Add([]byte(magic), true)
	f.Fuzz(func(t *testing.T, b []byte, sealed bool) {
		b = append(b, make([]byte, size)...)[:size]
		if sealed {
			copy(b, magic)
			binary.LittleEndian.PutUint32(b[offVersion:], version)
			binary.LittleEndian.PutUint32(b[offCopy:], 0)
			seal(b)
		}
		r, err := decode(b, 0)
		if err != nil {
			return
		}
		_ = r.String()
		again, err := decode(encode(r, 0), 0)
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}
