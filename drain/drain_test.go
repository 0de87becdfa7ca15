package drain

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func random(t *testing.T, n int) []byte {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24)})
	p := make([]byte, n)
	_, _ = r.Read(p)
	return p
}

func open(t *testing.T, dir string) *Level {
	l, err := Open(dir, "melt")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	return l
}

// requireSet checks that dir has exactly the set: the files with their bytes, times and permissions, and its manifest.
func requireSet(t *testing.T, l *Level, s *Set, data map[string][]byte) {
	t.Helper()
	sets, err := l.Sets()
	require.NoError(t, err)
	require.Len(t, sets, 1)
	assert.True(t, s.Same(&sets[0]))
	assert.Equal(t, s.Ranks, sets[0].Ranks)
	require.NoError(t, l.Verify(t.Context(), &sets[0], Options{}))
	for path, want := range data {
		name := filepath.Join(sets[0].Dir, path)
		have, err := os.ReadFile(name)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, have), path)
		info, err := os.Stat(name)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o640), info.Mode())
		assert.True(t, info.ModTime().Equal(noon))
	}
	files := 0
	require.NoError(t, filepath.WalkDir(sets[0].Dir, func(_ string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files++
		}
		return err
	}))
	assert.Equal(t, len(data)+1, files, "the manifest beside the files, and nothing else")
}

func someFiles(t *testing.T) map[string][]byte {
	large := append(random(t, SegmentSize+5), make([]byte, 3*blockSize)...)
	copy(large[2*blockSize:], make([]byte, 20*blockSize)) // a hole
	return map[string][]byte{
		"/melt.400.0":     large,
		"/melt.400.1":     random(t, 3),
		"/d/e/melt.400.2": {},
		"/melt.400.3":     make([]byte, 2*blockSize), // a hole
	}
}

func TestPut(t *testing.T) {
	data := someFiles(t)
	s, m := checkpointOf("400", data)
	l := open(t, t.TempDir())
	var copied, verified int64
	var mu sync.Mutex
	got, err := l.Put(t.Context(), s, m, Options{Progress: func(c, v int64) {
		mu.Lock()
		copied, verified = copied+c, verified+v
		mu.Unlock()
	}})
	require.NoError(t, err)
	assert.Equal(t, "melt.400", filepath.Base(got.Dir))
	assert.Equal(t, []int64{s.Size(), s.Size()}, []int64{copied, verified})
	requireSet(t, l, s, data)

	info, err := os.Stat(filepath.Join(got.Dir, "melt.400.3"))
	require.NoError(t, err)
	assert.Zero(t, info.Sys().(*syscall.Stat_t).Blocks, "holes stay holes")

	read := m.read
	_, err = l.Put(t.Context(), s, m, Options{})
	require.NoError(t, err)
	assert.Equal(t, read, m.read, "it is there already")
	requireSet(t, l, s, data)
}

// A buffer is a destination of Get.
type buffer []byte

func (b buffer) WriteAt(p []byte, off int64) (int, error) { return copy(b[off:], p), nil }

func TestGet(t *testing.T) {
	data := someFiles(t)
	s, m := checkpointOf("400", data)
	l := open(t, t.TempDir())
	put, err := l.Put(t.Context(), s, m, Options{})
	require.NoError(t, err)
	for i, f := range put.Files {
		b := make(buffer, f.Size)
		require.NoError(t, l.Get(t.Context(), put, i, b, Options{}))
		require.True(t, bytes.Equal(data[f.Path], b), f.Path)
		if f.Size == 0 {
			continue
		}
		to, err := os.OpenFile(filepath.Join(put.Dir, put.In(&f)), os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = to.WriteAt([]byte{b[f.Size/2] + 1}, f.Size/2)
		require.NoError(t, errors.Join(err, to.Close()))
		require.ErrorIs(t, l.Get(t.Context(), put, i, b, Options{}), ErrDamaged, f.Path)
	}
}

// TestCutShort kills a Put before each change of the directory: the set must count as a whole or not at all, and the
// next Put must complete it.
func TestCutShort(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, 2*blockSize+7), "/melt.400.1": random(t, 100), "/melt.400.2": nil}
	for at := 0; ; at++ {
		s, m := checkpointOf("400", data)
		l := open(t, t.TempDir())
		n, ended := 0, false
		_, err := l.Put(t.Context(), s, m, Options{Workers: 1, step: func(string) error {
			if n++; n > at {
				ended = true
			}
			if ended {
				return errDead
			}
			return nil
		}})
		if !ended {
			require.NoError(t, err)
			require.Greater(t, at, 15)
			return
		}
		require.ErrorIs(t, err, errDead)
		sets, err := l.Sets()
		require.NoError(t, err)
		require.Empty(t, sets)
		read := m.read
		_, err = l.Put(t.Context(), s, m, Options{Workers: 1})
		require.NoError(t, err, "after %d changes", at)
		requireSet(t, l, s, data)
		assert.LessOrEqual(t, m.read-read, s.Size())
	}
}

// TestGoesOn checks that segments in a journal are not read again.
func TestGoesOn(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, 10), "/melt.400.1": random(t, 20), "/melt.400.2": random(t, 40)}
	s, m := checkpointOf("400", data)
	dir := t.TempDir()
	l := open(t, dir)
	m.files["melt.400.2"].broken = syscall.EIO
	_, err := l.Put(t.Context(), s, m, Options{Workers: 1})
	require.ErrorIs(t, err, syscall.EIO)
	require.Equal(t, int64(30), m.read)

	journals, err := filepath.Glob(filepath.Join(dir, "melt", partialDir, "melt.400", journalPrefix+"*"))
	require.NoError(t, err)
	require.Len(t, journals, 1)
	j, err := os.OpenFile(journals[0], os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = j.WriteString("\x00\n{\"file\":7,\"segment\":0}\n{\"file\":0,\"segment\":-1}\n{\"file\":2,\"segment\":0,\"crc64nvme\":\"0000000000000001\"}") // invalid lines, and a truncated one
	require.NoError(t, errors.Join(err, j.Close()))

	m.files["melt.400.2"].broken = nil
	_, err = l.Put(t.Context(), s, m, Options{})
	require.NoError(t, err)
	assert.Equal(t, int64(70), m.read)
	requireSet(t, l, s, data)
}

// TestJournalLies checks that a wrong journal entry is detected, and that the next Put starts over.
func TestJournalLies(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, 10), "/melt.400.1": random(t, 20)}
	s, m := checkpointOf("400", data)
	dir := t.TempDir()
	l := open(t, dir)
	m.files["melt.400.1"].broken = syscall.EIO
	_, err := l.Put(t.Context(), s, m, Options{Workers: 1})
	require.ErrorIs(t, err, syscall.EIO)
	m.files["melt.400.1"].broken = nil
	require.NoError(t, os.WriteFile(filepath.Join(dir, "melt", partialDir, "melt.400", "melt.400.0"), make([]byte, 10), 0o600))
	_, err = l.Put(t.Context(), s, m, Options{})
	require.ErrorIs(t, err, ErrDamaged)
	_, err = l.Put(t.Context(), s, m, Options{})
	require.NoError(t, err)
	requireSet(t, l, s, data)
}

// TestChanged replaces files while they are copied: they do not become a set. Files of a later checkpoint with the
// same names become another set.
func TestChanged(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, 10)}
	s, m := checkpointOf("400", data)
	l := open(t, t.TempDir())
	_, err := l.Put(t.Context(), s, m, Options{step: func(what string) error {
		if what == "sync" {
			m.mu.Lock()
			m.files["melt.400.0"].modified = noon.Add(1)
			m.mu.Unlock()
		}
		return nil
	}})
	require.ErrorIs(t, err, ErrChanged)
	m.files["melt.400.0"].modified = noon
	first, err := l.Put(t.Context(), s, m, Options{})
	require.NoError(t, err)

	later := noon.Add(time.Hour)
	m.files["melt.400.0"].modified = later
	next, _ := checkpointOf("400", data)
	next.Files[0].Modified = later
	second, err := l.Put(t.Context(), next, m, Options{})
	require.NoError(t, err)
	assert.Equal(t, first.Dir+"~2", second.Dir)
	require.NoError(t, l.Remove(first))
	sets, err := l.Sets()
	require.NoError(t, err)
	require.Len(t, sets, 1)
	assert.Equal(t, second.Dir, sets[0].Dir)
}

// dieAfter returns a step that kills the process after a number of steps. n counts them.
func dieAfter(at int, n *int) func(string) error {
	return func(string) error {
		if *n++; *n > at {
			return errDead
		}
		return nil
	}
}

// putAtOnce puts the same set in several processes.
func putAtOnce(t *testing.T, dir string, s *Set, m Source) {
	var all sync.WaitGroup
	for range 3 {
		l := open(t, dir)
		all.Go(func() {
			_, err := l.Put(t.Context(), s, m, Options{})
			assert.NoError(t, err)
		})
	}
	all.Wait()
}

// TestTwoAtOnce checks that several hosts may put the same set.
func TestTwoAtOnce(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, 5*blockSize), "/a/melt.400.1": random(t, 20)}
	for range 20 {
		s, m := checkpointOf("400", data)
		dir := t.TempDir()
		putAtOnce(t, dir, s, m)
		requireSet(t, open(t, dir), s, data)
	}
}

func TestDamage(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, 2*blockSize), "/melt.400.1": random(t, 20)}
	cases := []struct {
		name   string
		damage func(dir string) error
		found  error // of Verify
		sets   bool  // whether the set is listed
	}{
		{"a bit", func(dir string) error {
			data := bytes.Clone(data["/melt.400.0"])
			data[blockSize+3] ^= 1
			return os.WriteFile(dir+"/melt.400.0", data, 0)
		}, ErrDamaged, true},
		{"shorter", func(dir string) error { return os.Truncate(dir+"/melt.400.1", 19) }, ErrDamaged, true},
		{"longer", func(dir string) error { return os.Truncate(dir+"/melt.400.1", 21) }, ErrDamaged, true},
		{"a file is gone", func(dir string) error { return os.Remove(dir + "/melt.400.1") }, os.ErrNotExist, true},
		{"the manifest is gone", func(dir string) error { return os.Remove(dir + "/" + manifestName) }, nil, false},
		{"the manifest is cut short", func(dir string) error { return os.Truncate(dir+"/"+manifestName, 100) }, ErrManifest, false},
		{"the manifest is of another set", func(dir string) error {
			text, err := os.ReadFile(dir + "/" + manifestName)
			return errors.Join(err, os.WriteFile(dir+"/"+manifestName, bytes.Replace(text, []byte("400"), []byte("401"), 1), 0))
		}, ErrManifest, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, m := checkpointOf("400", data)
			l := open(t, t.TempDir())
			put, err := l.Put(t.Context(), s, m, Options{})
			require.NoError(t, err)
			require.NoError(t, c.damage(put.Dir))
			sets, err := l.Sets()
			assert.Len(t, sets, map[bool]int{true: 1}[c.sets])
			if c.sets {
				require.NoError(t, err)
				err = l.Verify(t.Context(), &sets[0], Options{})
			}
			require.ErrorIs(t, err, c.found)
		})
	}
}

func TestRefused(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "none"), "melt")
	require.ErrorIs(t, err, os.ErrNotExist)

	l := open(t, t.TempDir())
	for _, name := range []string{manifestName, "melt.\xff"} {
		s, m := checkpointOf("400", map[string][]byte{"/" + name: nil})
		_, err = l.Put(t.Context(), s, m, Options{})
		require.ErrorIs(t, err, ErrManifest, "%q", name)
		assert.NoDirExists(t, filepath.Join(l.dir, partialDir), "%q", name)
	}
}

func TestLabel(t *testing.T) {
	cases := []struct{ pattern, name, want string }{
		{"melt.{step}.*", "400", "melt.400"},
		{"ckpt-{step}/**", "000100", "ckpt-000100"},
		{"{step}/**", "400", "400"},
		{"{name}.cpt", "state_prev", "state_prev"},
		{"processor*/{step}/**", "0.005", "processor_0.005"},
		{"out/a b/{step}", "7", "out_a_b_7"},
		{"/x/{name}", "../..", "x_.._.."},
		{"{name}", "..", "_.."},
		{"{name}", ".hidden", "_.hidden"},
	}
	for _, c := range cases {
		t.Run(fmt.Sprint(c.pattern, c.name), func(t *testing.T) {
			assert.Equal(t, c.want, label(&Set{Pattern: c.pattern, Name: c.name}))
		})
	}
}

// TestAbandoned checks that the next set of a series removes the files of older sets that were never completed, a day after the last change.
func TestAbandoned(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	data := someFiles(t)
	crash := errors.New("crash")
	begun := func(name, pattern string, ended time.Time) string {
		s, m := checkpointOf(name, data)
		s.Pattern, s.Ended = pattern, ended
		_, err := l.Put(t.Context(), s, m, Options{step: func(what string) error {
			if what == "rename" {
				return crash
			}
			return nil
		}})
		require.ErrorIs(t, err, crash)
		return filepath.Join(dir, "melt", partialDir, label(s))
	}
	age := func(path string, by time.Duration) {
		require.NoError(t, filepath.WalkDir(path, func(name string, _ os.DirEntry, err error) error {
			require.NoError(t, err)
			return os.Chtimes(name, time.Now().Add(-by), time.Now().Add(-by))
		}))
	}
	const pattern = "melt.{step}.*"
	old := begun("100", pattern, noon.Add(-2*time.Hour))
	recent := begun("200", pattern, noon.Add(-time.Hour))
	newer := begun("500", pattern, noon.Add(time.Hour))
	other := begun("1", "other.{step}.*", noon.Add(-time.Hour))
	for path, by := range map[string]time.Duration{old: 25 * time.Hour, recent: 23 * time.Hour, newer: 25 * time.Hour, other: 25 * time.Hour} {
		age(path, by)
	}
	s, m := checkpointOf("400", data)
	_, err := l.Put(t.Context(), s, m, Options{})
	require.NoError(t, err)
	assert.NoDirExists(t, old)
	for _, path := range []string{recent, newer, other} {
		assert.DirExists(t, path)
	}
}

// TestWholePath checks that errors of the second level have the whole path.
func TestWholePath(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "melt", partialDir), nil, 0o600))
	s, m := checkpointOf("400", map[string][]byte{"/melt.400": {1}})
	_, err := l.Put(t.Context(), s, m, Options{})
	require.ErrorIs(t, err, syscall.ENOTDIR)
	require.ErrorContains(t, err, filepath.Join(dir, "melt", partialDir))
}

// TestLateBegin begins a set in one process while another process completes the set. The set stays, at whatever step the late process is
// killed.
func TestLateBegin(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, 10), "/a/melt.400.1": random(t, 20)}
	for at := 1; ; at++ {
		s, m := checkpointOf("400", data)
		dir := t.TempDir()
		l := open(t, dir)
		n, ended, stepped := 0, false, ""
		_, err := l.Put(t.Context(), s, m, Options{Workers: 1, step: func(what string) error {
			if ended {
				return errDead
			}
			if n++; n == at {
				stepped = what
				_, err := open(t, dir).Put(t.Context(), s, m, Options{})
				require.NoError(t, err)
			}
			ended = n > at // at the step after that
			return nil
		}})
		if n < at {
			require.NoError(t, err)
			require.Greater(t, at, 10)
			return
		}
		sets, err := l.Sets()
		require.NoError(t, err, "at %s", stepped)
		require.Len(t, sets, 1, "at %s", stepped)
		require.NoError(t, l.Verify(t.Context(), &sets[0], Options{}), "at %s", stepped)
	}
}
