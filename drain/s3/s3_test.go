package s3

import (
	"bytes"
	"crypto/rand"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/drain"
	"nvmecr/internal/s3server"
)

const where = Scheme + s3server.Bucket + "/a/b"

func serve(t *testing.T) *s3server.Server {
	s := s3server.Start(t)
	for _, v := range s.Environ() {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	return s
}

// A source has one file in memory.
type source struct{ data []byte }

func (s source) Open(int, string) (drain.Reader, error) { return reader{bytes.NewReader(s.data)}, nil }
func (s source) Refresh() error                         { return nil }

type reader struct{ *bytes.Reader }

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func (r reader) Data(off int64) (from, to int64, err error) { return off, r.Size(), nil }
func (r reader) Stat() (int64, time.Time, error)            { return r.Size(), noon, nil }
func (r reader) Close() error                               { return nil }

// A buffer is a destination of Get.
type buffer []byte

func (b buffer) WriteAt(p []byte, off int64) (int, error) { return copy(b[off:], p), nil }

// TestLevel puts, lists, reads, damages and removes sets on a real server: empty ones, and ones of one object or
// several parts.
func TestLevel(t *testing.T) {
	server := serve(t)
	for _, size := range []int{0, 5, drain.SegmentSize + 5} {
		data := make([]byte, size)
		_, _ = rand.Read(data)
		l, err := Open(where, "melt", os.Getenv)
		require.NoError(t, err)
		s := &drain.Set{Store: "melt", Pattern: "ck {step}/**", Name: "400", Ranks: 1, Tree: true, Ended: noon, Files: []drain.File{
			{Path: "/ck 400/näme +&", Size: int64(size), Mode: 0o600, Modified: noon},
		}}
		put, err := l.Put(t.Context(), s, source{data}, drain.Options{})
		require.NoError(t, err)
		require.Contains(t, put.Dir, where+"/melt/ck_400~")

		sets, err := l.Sets()
		require.NoError(t, err)
		require.Len(t, sets, 1)
		assert.Equal(t, put.Dir, sets[0].Dir)
		require.NoError(t, l.Verify(t.Context(), &sets[0], drain.Options{}))
		got := make(buffer, size)
		require.NoError(t, l.Get(t.Context(), &sets[0], 0, got, drain.Options{}))
		require.True(t, bytes.Equal(data, got))

		name := strings.TrimPrefix(put.Dir, Scheme+s3server.Bucket+"/") + "/ck 400/näme +&"
		_, err = server.Client.PutObject(t.Context(), s3server.Bucket, name, bytes.NewReader(make([]byte, size+1)), int64(size+1), minio.PutObjectOptions{})
		require.NoError(t, err)
		require.ErrorIs(t, l.Verify(t.Context(), &sets[0], drain.Options{}), drain.ErrDamaged)
		if size > 0 {
			require.ErrorIs(t, l.Get(t.Context(), &sets[0], 0, got, drain.Options{}), drain.ErrDamaged)
		}

		require.NoError(t, l.Remove(put))
		for o := range server.Client.ListObjectsIter(t.Context(), s3server.Bucket, minio.ListObjectsOptions{Recursive: true}) {
			assert.Fail(t, "left", o.Key)
		}
		require.NoError(t, l.Close())
	}
}

// TestMany tests more objects than a listing or a removal returns at once.
func TestMany(t *testing.T) {
	serve(t)
	l, err := Open(where, "melt", os.Getenv)
	require.NoError(t, err)
	s := &drain.Set{Store: "melt", Pattern: "ck.{step}.*", Name: "400", Ranks: 1, Tree: true, Ended: noon}
	for i := range 1100 {
		s.Files = append(s.Files, drain.File{Path: "/ck.400." + strings.Repeat("x", i%7) + string(rune('0'+i%10)) + time.Duration(i).String(), Size: 3, Mode: 0o600, Modified: noon})
	}
	put, err := l.Put(t.Context(), s, source{[]byte("abc")}, drain.Options{})
	require.NoError(t, err)
	require.NoError(t, l.Remove(put))
	sets, err := l.Sets()
	require.NoError(t, err)
	require.Empty(t, sets)
}

// TestRefused checks that wrong settings are reported before a job starts.
func TestRefused(t *testing.T) {
	cases := []struct{ name, where, variable, value, says string }{
		{"no bucket", Scheme + "none/x", "", "", "no bucket \"none\": make it"},
		{"wrong key", where, "AWS_SECRET_ACCESS_KEY", "wrong", "refuses the keys"},
		{"no keys", where, "AWS_ACCESS_KEY_ID", "", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"},
		{"no endpoint", where, "AWS_ENDPOINT_URL", "localhost:9", "such as https://s3.example.org:9000"},
		{"nobody there", where, "AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1", "connection refused"},
	}
	serve(t)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", t.TempDir()+"/none")
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.variable != "" {
				t.Setenv(c.variable, c.value)
			}
			_, err := Open(c.where, "melt", os.Getenv)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, "second level "+c.where)
		})
	}
}

// TestMissing checks the error for a missing object.
func TestMissing(t *testing.T) {
	serve(t)
	client, err := connect(os.Getenv)
	require.NoError(t, err)
	b := &bucket{client, s3server.Bucket}
	_, err = b.Get(t.Context(), "none", 0, -1)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, b.Remove(t.Context(), "none"))
	require.NoError(t, b.Put(t.Context(), "there", strings.NewReader("abc"), 3))
	r, err := b.Get(t.Context(), "there", 1, 1)
	require.NoError(t, err)
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	assert.Equal(t, "b", string(text))
}
