package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

func TestWordsTellTheirSource(t *testing.T) {
	s := source{actor: 5, version: 1<<31 + 77}
	b := make([]byte, 100)
	s.fill(b, 4099)
	assert.Equal(t, "what rank 2, actor 0, operation 2147483725 wrote there", describe(b[3:], 4102))
	assert.Contains(t, describe(b[5:], 8), "by rank 2, actor 0, operation 2147483725 at offset 4104")
	assert.Equal(t, "zeros", describe(make([]byte, 20), 3))
	for range 100 {
		x := rand.Uint64()
		require.Equal(t, x, unmix(mix(x)))
	}
	var pieces []byte
	for i := range 100 { // the same, byte by byte
		one := make([]byte, 1)
		s.fill(one, 4099+int64(i))
		pieces = append(pieces, one...)
	}
	assert.Equal(t, b, pieces)
}

// TestContentIsBytes compares a content with a slice of bytes under the same changes.
func TestContentIsBytes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var c content
	var want []byte
	for version := range uint32(2000) {
		off, n := random.Int64N(3000), 1+random.Int64N(2000)
		if random.IntN(4) == 0 {
			c = c.truncate(off)
			want = append(want, make([]byte, max(0, int(off)-len(want)))...)[:off]
			want = want[:off:off]
		} else {
			s := source{1, version + 1}
			c = c.write(off, n, s)
			want = append(want, make([]byte, max(0, int(off+n)-len(want)))...)
			s.fill(want[off:off+n], off)
		}
		require.EqualValues(t, len(want), c.size())
		if len(want) == 0 {
			continue
		}
		from := random.IntN(len(want))
		got := make([]byte, len(want)-from)
		c.read(got, int64(from))
		require.Equal(t, want[from:], got)
		difference, err := c.compare(bytes.NewReader(want))
		require.NoError(t, err)
		require.Empty(t, difference)
		want[from]++
		difference, err = c.compare(bytes.NewReader(want))
		require.NoError(t, err)
		require.Contains(t, difference, fmt.Sprintf("offset %d:", from))
		want[from]--
		_, err = c.compare(io.MultiReader(bytes.NewReader(want), failing{}))
		require.ErrorIs(t, err, syscall.EIO)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, syscall.EIO }

// TestChecker gives wrong journals and copies to the checker, which must detect each error.
func TestChecker(t *testing.T) {
	const start = "\n= start 0 of 1 pid 1 .\n"
	const back = start + "= readback copy .\n"
	const begun = start + "= readback empty .\n1 > mkdir - .\n1 < 0 0 .\n"
	const written = begun + "2 > open 0 f c .\n2 < 0 0 .\n3 > write 0 0 20 .\n3 < 20 0 .\n"
	w := func(n int, version uint32) string {
		b := make([]byte, n)
		source{1, version}.fill(b, 0)
		return string(b)
	}
	for name, c := range map[string]struct {
		journal string
		copy    map[string]string // names to contents; a / at the end: a directory, @: a link
		want    string            // part of the error
	}{
		"all is well":           {written + back, map[string]string{"f": w(20, 3)}, ""},
		"torn last line":        {written + "4 > unlink f .\n4 < 0", map[string]string{"f": w(20, 3)}, ""},
		"a file is missing":     {written + back, map[string]string{"g/": ""}, "f: is missing"},
		"the directory is":      {written + back, nil, "the actor's directory: expected true, got false"},
		"a byte is wrong":       {written + back, map[string]string{"f": w(17, 3) + "XYZ"}, "f: offset 17: expected what rank 0, actor 0, operation 3 wrote, got 58 59 5a"},
		"bytes of another":      {written + back, map[string]string{"f": w(20, 9)}, "got what rank 0, actor 0, operation 9 wrote there"},
		"a byte is missing":     {written + back, map[string]string{"f": w(19, 3)}, "size: expected 20, got 19"},
		"a byte too many":       {written + back, map[string]string{"f": w(21, 3)}, "size: expected 20, got 21"},
		"a file too many":       {written + back, map[string]string{"f": w(20, 3), "g": ""}, "g: is there and must not be"},
		"a file for a link":     {begun + "2 > symlink x s .\n2 < 0 0 .\n" + back, map[string]string{"s": "x"}, "expected a symbolic link"},
		"another link":          {begun + "2 > symlink x s .\n2 < 0 0 .\n" + back, map[string]string{"s@": "y"}, `got one to "y"`},
		"renamed back":          {written + "4 > rename f g .\n4 < 0 0 .\n" + back, map[string]string{"f": w(20, 3)}, "g: is missing"},
		"unlinked and back":     {written + "4 > unlink f .\n4 < 0 0 .\n" + back, map[string]string{"f": w(20, 3)}, "f: is there and must not be"},
		"in doubt, not done":    {written + "4 > unlink f .\n" + back, map[string]string{"f": w(20, 3)}, ""},
		"in doubt, done":        {written + "4 > unlink f .\n" + back, map[string]string{}, ""},
		"in doubt, half":        {written + "4 > rename f g .\n" + back, map[string]string{"f": w(20, 3), "g": w(20, 3)}, "with it"},
		"settled, then undone":  {written + "4 > unlink f .\n" + back + start + "= readback again .\n", map[string]string{}, "f: is there and must not be"},
		"half a write":          {begun + "2 > open 0 f c .\n2 < 0 0 .\n3 > write 0 0 20 .\n" + back, map[string]string{"f": w(10, 3)}, "with it"},
		"half a large write":    {begun + "2 > open 0 f c .\n2 < 0 0 .\n3 > write 0 0 2000000 .\n" + back, map[string]string{"f": w(10, 3)}, ""},
		"half a stream":         {begun + "2 > open 0 f cts .\n2 < 0 0 .\n3 > stream 0 0 20 .\n" + back, map[string]string{"f": w(10, 3)}, ""},
		"half a stream, wrong":  {begun + "2 > open 0 f cts .\n2 < 0 0 .\n3 > stream 0 0 20 .\n" + back, map[string]string{"f": w(10, 3) + "X"}, "with its first 10 bytes"},
		"no space":              {written + "4 > write 0 20 9 .\n4 < -1 28 .\n" + back, map[string]string{"f": w(20, 3)}, ""},
		"a short write":         {written + "4 > pwrite 0 0 9 .\n4 < 5 0 .\n" + back, map[string]string{"f": w(5, 4) + w(20, 3)[5:]}, ""},
		"a wrong errno":         {written + "4 > unlink g .\n4 < 0 0 .\n", nil, "expected -1 (no such file or directory), got 0"},
		"a wrong offset":        {written + "4 > write 0 19 9 .\n4 < 9 0 .\n", nil, "the offset must be 20"},
		"a wrong read":          {written + "4 > read 0 0 9 .\n4 < 9 0 12345678 .\n", nil, `got ["12345678"]`},
		"a wrong size":          {written + "4 > stat f .\n4 < 0 0 21 1 .\n", nil, `expected ["20" "1"], got ["21" "1"]`},
		"EIO for no reason":     {written + "4 > fsync 0 .\n4 < -1 5 1000 .\n", nil, "input/output error"},
		"refused for no reason": {start + "= refused 1000 111 .\n", nil, "connection refused"},
		"not readable":          {start + "= unreadable 1000 5 /nvmecr/a0/f .\n", nil, "/nvmecr/a0/f"},
		"lines out of order":    {written + "5 < 0 0 .\n", nil, "out of order"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "r0.a0.journal"), []byte(c.journal), 0o600))
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "readback", "empty"), 0o700))
			writeFiles(t, filepath.Join(dir, "readback", "copy", "a0"), c.copy)
			writeFiles(t, filepath.Join(dir, "readback", "again", "a0"), map[string]string{"f": w(20, 3)})
			err := readJournals(dir, false)
			if c.want == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, c.want)
			}
		})
	}
}

// TestCheckerOfTree has a write in doubt over bytes that another rank may have written: the copy may still have those, each write of
// them as a whole.
func TestCheckerOfTree(t *testing.T) {
	const journal = "\n= start 0 of 1 pid 1 .\n= readback empty .\n1 > mkdir - .\n1 < 0 0 .\n2 > open 0 f c .\n2 < 0 0 .\n" +
		"3 > write 0 0 20 .\n3 < 20 0 .\n4 > pwrite 0 30 10 .\n4 < 10 0 .\n" +
		"5 > pwrite 0 10 50 .\n\n= start 0 of 1 pid 1 .\n= readback copy .\n"
	b := func(version uint32, from, to int) string {
		b := make([]byte, to-from)
		source{1, version}.fill(b, int64(from))
		return string(b)
	}
	for name, c := range map[string]struct {
		copy, want string
		otherwise  bool // without one tree
	}{
		"not done":           {b(3, 0, 20) + string(make([]byte, 10)) + b(4, 30, 40), "", true},
		"done":               {b(3, 0, 10) + b(5, 10, 60), "", true},
		"over no other":      {b(3, 0, 20) + b(5, 20, 30) + b(4, 30, 40) + b(5, 40, 60), "", false},
		"over the first one": {b(3, 0, 10) + b(5, 10, 30) + b(4, 30, 40) + b(5, 40, 60), "", false},
		"its end is missing": {b(3, 0, 20) + b(5, 20, 30) + b(4, 30, 40), "size: expected", false},
		"a hole is left":     {b(3, 0, 20) + string(make([]byte, 10)) + b(4, 30, 40) + b(5, 40, 60), "size: expected", false},
		"half over another":  {b(3, 0, 20) + b(5, 20, 35) + b(4, 35, 40) + b(5, 40, 60), "size: expected", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "r0.a0.journal"), []byte(journal), 0o600))
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "readback", "empty"), 0o700))
			writeFiles(t, filepath.Join(dir, "readback", "copy", "a0"), map[string]string{"f": c.copy})
			if err := readJournals(dir, true); c.want == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, c.want)
			}
			assert.Equal(t, c.otherwise, readJournals(dir, false) == nil)
		})
	}
}

func readJournals(dir string, tree bool) error {
	never := new(faults)
	c := &checker{dir: dir, excused: never.excused, whole: 1 << 20, tree: tree, tally: newTally(io.Discard), histories: []*history{{model: newModel()}}}
	return c.readJournals()
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	if files != nil {
		require.NoError(t, os.MkdirAll(dir, 0o700))
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		switch {
		case strings.HasSuffix(name, "/"):
			require.NoError(t, os.Mkdir(path, 0o700))
		case strings.HasSuffix(name, "@"):
			require.NoError(t, os.Symlink(text, strings.TrimSuffix(path, "@")))
		default:
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		}
	}
}

// TestJudgeShared checks that errors in shared files are detected.
func TestJudgeShared(t *testing.T) {
	const off = 10007
	bytes := func(version uint32) []byte {
		b := make([]byte, cellSize)
		source{common, version}.fill(b, off)
		return b
	}
	mixed := append(bytes(3)[:100], bytes(4)[100:]...)
	c := cell{known: 3, low: 4, high: 5}
	assert.Equal(t, -1, c.wrong(mixed, off))
	assert.Equal(t, -1, cell{known: 7, zero: true}.wrong(make([]byte, cellSize), off))
	assert.Equal(t, -1, cell{low: 1}.wrong(make([]byte, cellSize), off))
	assert.Equal(t, 100, cell{known: 3, low: 1}.wrong(mixed, off))
	assert.GreaterOrEqual(t, c.wrong(make([]byte, cellSize), off), 0)
	assert.GreaterOrEqual(t, c.wrong(bytes(6), off), 0)

	payload := make([]byte, 10)
	source{common, 7 + 2}.fill(payload, 0)
	record := "<00000007 00000002 0000000a>" + string(payload)
	torn := record[:len(record)-1]
	assert.Equal(t, map[string]int{"00000007 00000002": 2}, countRecords([]byte("\x00\x00<"+record+torn+"<<00000007"+record)))
	assert.Empty(t, countRecords([]byte(torn)))
	assert.Equal(t, map[string]int{"a": 2, "b": 1}, countLines([]byte("a\nb\na\n")))
}

// TestFailedCallsOfAnEmbeddedTarget checks that a failed call on a shared file is excused by a fault of its round, although the faults of
// an embedded target are over before the files are compared.
func TestFailedCallsOfAnEmbeddedTarget(t *testing.T) {
	for _, killed := range []bool{true, false} {
		f := newTestbed(&demo.Stage{Dir: t.TempDir()}, newTally(io.Discard), "embedded", "64M", 1)
		f.tree = true
		r := &round{testbed: f, dir: t.TempDir()}
		if killed {
			f.faults.indexKilled()
		}
		writeFiles(t, f.sharedDir(), map[string]string{"failed": fmt.Sprintf("%d %d append to the log\n", time.Now().UnixNano(), syscall.EIO)})
		_, err := r.judgeCalls()
		assert.Equal(t, killed, err == nil, "the index was killed: %t; %v", killed, err)
		assert.NoError(t, r.judgeShared(t.TempDir(), "who looks later"), "it was judged before")
	}
}

// TestPromises checks that a listing that promises less than the one before is detected, except for losses in between.
func TestPromises(t *testing.T) {
	whole := func(name string) listed { return listed{Name: name, Complete: true, Protected: true} }
	shards := func(name string, spare int) listed {
		return listed{Name: name, Complete: true, Shards: &struct{ Spare int }{spare}}
	}
	for _, c := range []struct {
		name   string
		before promises
		lost   int
		now    []listed
		want   promises
		broken bool
	}{
		{"the first listing", nil, 0, []listed{whole("1"), {Name: "2", Complete: true}, {Name: "3"}, shards("4", 2), shards("5", -1)}, promises{1: 1, 2: 0, 3: -1, 4: 2, 5: 0}, false},
		{"a copy is lost", promises{1: 1}, 1, []listed{{Name: "1", Complete: true}}, promises{1: 0}, false},
		{"a copy has gone, and no target", promises{1: 1}, 0, []listed{{Name: "1", Complete: true}}, promises{1: 0}, true},
		{"more than it bears", promises{1: 1}, 2, []listed{{Name: "1"}}, promises{1: -1}, false},
		{"no more than it bears", promises{1: 1}, 1, []listed{{Name: "1"}}, promises{1: -1}, true},
		{"it is listed no more", promises{4: 2}, 2, nil, promises{}, true},
		{"the better one of two of that name counts", promises{4: 2}, 1, []listed{shards("4", 1), {Name: "4"}}, promises{4: 1}, false},
		{"it was removed", promises{0: 1, 1: 1}, 0, []listed{whole("1"), whole("0")}, promises{1: 1}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range c.lost {
				c.before.lose()
			}
			got, err := c.before.next(c.now, 0)
			assert.Equal(t, c.want, got)
			assert.Equal(t, c.broken, err != nil, "%v", err)
		})
	}
	assert.Equal(t, 2, promises{1: 0, 2: 0, 3: -1}.newest())
}
