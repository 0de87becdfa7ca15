package drain

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errDead = errors.New("dead")

// A memoryBucket is a Bucket in memory. If dies is not negative, it is the number of changes after which the process
// of the bucket dies.
type memoryBucket struct {
	mu      sync.Mutex
	objects map[string][]byte
	age     time.Duration // of all objects
	dies    int
	sent    int64 // bytes
}

func newBucket() *memoryBucket { return &memoryBucket{objects: map[string][]byte{}, dies: -1} }

// change is called before each change, with mu held.
func (b *memoryBucket) change() error {
	if b.dies == 0 {
		return errDead
	}
	b.dies = max(b.dies-1, -1)
	return nil
}

func (b *memoryBucket) read(r io.ReadSeeker, size int64) ([]byte, error) {
	if _, err := io.CopyN(io.Discard, r, size/2); err != nil { // a failed attempt
		return nil, err
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	if err == nil && int64(len(data)) != size {
		err = io.ErrUnexpectedEOF
	}
	return data, err
}

func (b *memoryBucket) set(name string, data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.change(); err != nil {
		return err
	}
	b.objects[name] = data
	b.sent += int64(len(data))
	return nil
}

func (b *memoryBucket) Put(_ context.Context, name string, r io.ReadSeeker, size int64) error {
	data, err := b.read(r, size)
	if err != nil {
		return err
	}
	return b.set(name, data)
}

func (b *memoryBucket) Begin(_ context.Context, name string) (Upload, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &memoryUpload{bucket: b, name: name, parts: map[int][]byte{}}, b.change()
}

func (b *memoryBucket) Get(_ context.Context, name string, off, n int64) (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	data, ok := b.objects[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	if n < 0 {
		n = int64(len(data))
	}
	return io.NopCloser(io.NewSectionReader(bytes.NewReader(data), off, n)), nil
}

func (b *memoryBucket) List(_ context.Context, prefix string) (list []Object, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, data := range b.objects {
		if strings.HasPrefix(name, prefix) {
			list = append(list, Object{name, int64(len(data)), time.Now().Add(-b.age)})
		}
	}
	slices.SortFunc(list, func(x, y Object) int { return cmp.Compare(x.Name, y.Name) })
	return list, nil
}

func (b *memoryBucket) Dirs(ctx context.Context, prefix string) (dirs []string, err error) {
	list, err := b.List(ctx, prefix)
	for _, o := range list {
		if dir, _, ok := strings.Cut(strings.TrimPrefix(o.Name, prefix), "/"); ok {
			dirs = append(dirs, dir)
		}
	}
	return slices.Compact(dirs), err
}

func (b *memoryBucket) Remove(_ context.Context, names ...string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		if err := b.change(); err != nil {
			return err
		}
		delete(b.objects, name)
	}
	return nil
}

type memoryUpload struct {
	bucket *memoryBucket
	name   string
	mu     sync.Mutex
	parts  map[int][]byte
}

func (u *memoryUpload) Part(_ context.Context, number int, r io.ReadSeeker, size int64) error {
	data, err := u.bucket.read(r, size)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.parts[number] = data
	return err
}

func (u *memoryUpload) Complete(context.Context) error {
	var all []byte
	for i := range len(u.parts) {
		all = append(all, u.parts[i]...)
	}
	return u.bucket.set(u.name, all)
}

func (u *memoryUpload) Abort() {}

// requireInBucket checks that the bucket has exactly one set, with its files.
func requireInBucket(t *testing.T, b *memoryBucket, l Archive, s *Set, data map[string][]byte) *Set {
	t.Helper()
	sets, err := l.Sets()
	require.NoError(t, err)
	require.Len(t, sets, 1)
	require.True(t, s.Same(&sets[0]))
	require.NoError(t, l.Verify(t.Context(), &sets[0], Options{}))
	for i, f := range sets[0].Files {
		got := make(buffer, f.Size)
		require.NoError(t, l.Get(t.Context(), &sets[0], i, got, Options{}))
		require.True(t, bytes.Equal(data[f.Path], got), f.Path)
	}
	assert.Len(t, b.objects, len(data)+1)
	return &sets[0]
}

func TestBucket(t *testing.T) {
	data := someFiles(t)
	s, m := checkpointOf("400", data)
	b := newBucket()
	l := OpenBucket(b, "s3://b/p", "p", "melt")
	put, err := l.Put(t.Context(), s, m, Options{})
	require.NoError(t, err)
	assert.Regexp(t, `^s3://b/p/melt/melt\.400~[0-9a-f]{16}$`, put.Dir)
	requireInBucket(t, b, l, s, data)

	sent := b.sent
	_, err = l.Put(t.Context(), s, m, Options{})
	require.NoError(t, err)
	assert.Equal(t, sent, b.sent, "it is there already")

	require.NoError(t, l.Remove(put))
	assert.Empty(t, b.objects)
}

// TestBucketCutShort kills a Put, and then a Remove, before each change: a set is listed as a whole or not at all.
func TestBucketCutShort(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, SegmentSize+7), "/d/melt.400.1": random(t, 100), "/melt.400.2": nil}
	for dies := 0; ; dies++ {
		s, m := checkpointOf("400", data)
		b := newBucket()
		l := OpenBucket(b, "s3://b", "", "melt")
		b.dies = dies
		_, err := l.Put(t.Context(), s, m, Options{Workers: 1})
		b.dies = -1
		if err == nil {
			require.Greater(t, dies, 4)
			break
		}
		require.ErrorIs(t, err, errDead)
		sets, err := l.Sets()
		require.NoError(t, err)
		require.Empty(t, sets)
		_, err = l.Put(t.Context(), s, m, Options{})
		require.NoError(t, err)
		put := requireInBucket(t, b, l, s, data)
		assert.LessOrEqual(t, b.sent, s.Size()+8<<10, "what was complete is not sent again")

		b.dies = dies
		err = l.Remove(put)
		b.dies = -1
		sets, e2 := l.Sets()
		require.NoError(t, e2)
		if dies == 0 {
			require.ErrorIs(t, err, errDead)
			requireInBucket(t, b, l, s, data)
			continue
		}
		require.Empty(t, sets)
	}
}

// TestBucketAbandoned checks that an incomplete set is removed when it is old, and not before.
func TestBucketAbandoned(t *testing.T) {
	s, m := checkpointOf("400", map[string][]byte{"/melt.400.0": random(t, 10)})
	b := newBucket()
	l := OpenBucket(b, "s3://b", "", "melt")
	for _, age := range []time.Duration{time.Hour, 2 * abandoned} {
		b.objects["melt/melt.600~1/melt.600.0"] = []byte("half")
		put, err := l.Put(t.Context(), s, m, Options{})
		require.NoError(t, err)
		b.age = age
		require.NoError(t, l.Remove(put))
		assert.Equal(t, age < abandoned, len(b.objects) == 1)
	}
}

func TestBucketDamage(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, 2*blockSize), "/melt.400.1": random(t, 20)}
	cases := []struct {
		name   string
		damage func(b *memoryBucket, dir string)
		found  error // by Verify
		sets   bool  // whether the set is listed
	}{
		{"a bit", func(b *memoryBucket, dir string) { b.objects[dir+"/melt.400.1"][3] ^= 1 }, ErrDamaged, true},
		{"shorter", func(b *memoryBucket, dir string) { b.objects[dir+"/melt.400.1"] = make([]byte, 19) }, ErrDamaged, true},
		{"longer", func(b *memoryBucket, dir string) {
			b.objects[dir+"/melt.400.1"] = append(b.objects[dir+"/melt.400.1"], 0)
		}, ErrDamaged, true},
		{"an object is gone", func(b *memoryBucket, dir string) { delete(b.objects, dir+"/melt.400.1") }, fs.ErrNotExist, true},
		{"the manifest is gone", func(b *memoryBucket, dir string) { delete(b.objects, dir+"/"+manifestName) }, nil, false},
		{"the manifest is cut short", func(b *memoryBucket, dir string) {
			b.objects[dir+"/"+manifestName] = b.objects[dir+"/"+manifestName][:100]
		}, ErrManifest, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, m := checkpointOf("400", data)
			b := newBucket()
			l := OpenBucket(b, "s3://b", "", "melt")
			put, err := l.Put(t.Context(), s, m, Options{})
			require.NoError(t, err)
			c.damage(b, strings.TrimPrefix(put.Dir, "s3://b/"))
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

// TestBucketLies checks that an object of an earlier Put with wrong data is detected, and that the next Put starts
// over.
func TestBucketLies(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, 10), "/melt.400.1": random(t, 20)}
	s, m := checkpointOf("400", data)
	b := newBucket()
	l := OpenBucket(b, "s3://b", "", "melt")
	b.objects["melt/"+objectsDir(s)+"/melt.400.0"] = make([]byte, 10)
	_, err := l.Put(t.Context(), s, m, Options{})
	require.ErrorIs(t, err, ErrDamaged)
	_, err = l.Put(t.Context(), s, m, Options{})
	require.NoError(t, err)
	requireInBucket(t, b, l, s, data)
}

// TestBucketChanged checks that files which change, or cannot be read, while they are copied do not become a set.
func TestBucketChanged(t *testing.T) {
	cases := []struct {
		name   string
		change func(*content)
		err    error
	}{
		{"written again", func(c *content) { c.modified = noon.Add(1) }, ErrChanged},
		{"shorter", func(c *content) { c.data = c.data[:5] }, ErrChanged},
		{"broken", func(c *content) { c.broken = syscall.EIO }, syscall.EIO},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, m := checkpointOf("400", map[string][]byte{"/melt.400.0": random(t, 10)})
			b := newBucket()
			l := OpenBucket(b, "s3://b", "", "melt")
			c.change(m.files["melt.400.0"])
			_, err := l.Put(t.Context(), s, m, Options{})
			require.ErrorIs(t, err, c.err)
			assert.Empty(t, b.objects)
		})
	}
}
