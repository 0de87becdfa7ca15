package drain

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// crowded returns options for a level that is full while it has more than max sets, complete or not, and what is being removed counted among them.
func crowded(l *Level, most int, why syscall.Errno) Options {
	return Options{step: func(what string) error {
		count := 0
		for _, pattern := range []string{"[a-z]*", partialDir + "/*", removalDir + "/*"} {
			found, _ := filepath.Glob(filepath.Join(l.dir, pattern))
			count += len(found)
		}
		if what == "sync" && count > most {
			return fmt.Errorf("write: %w", why)
		}
		return nil
	}}
}

// TestFull checks what is removed when there is no space for a set.
func TestFull(t *testing.T) {
	data := map[string][]byte{"/a": random(t, 3), "/b": random(t, blockSize)}
	numbered := func(n int, pattern string) (*Set, *memory) {
		s, m := checkpointOf(fmt.Sprint(n), data)
		s.Pattern, s.Ended = pattern, noon.Add(time.Duration(n)*time.Second+time.Duration(len(pattern)))
		for i := range s.Files {
			f := &s.Files[i]
			f.Modified = s.Ended
			m.files[s.In(f)].modified = s.Ended
		}
		return s, m
	}
	const pattern, other = "melt.{step}.*", "other.{step}.*"
	put := func(t *testing.T, l *Level, n int, pattern string, o Options) error {
		s, m := numbered(n, pattern)
		_, err := l.Put(t.Context(), s, m, o)
		return err
	}
	names := func(t *testing.T, l *Level) (list []string) {
		sets, err := l.Sets()
		require.NoError(t, err)
		for _, s := range sets {
			list = append(list, filepath.Base(s.Dir))
		}
		return list
	}
	interrupted := func(t *testing.T, l *Level, n int, pattern string) {
		require.ErrorIs(t, put(t, l, n, pattern, Options{step: func(what string) error {
			if what == "rename" {
				return syscall.EINTR
			}
			return nil
		}}), syscall.EINTR)
	}

	t.Run("an interrupted older copy goes", func(t *testing.T) {
		l := open(t, t.TempDir())
		require.NoError(t, put(t, l, 1, pattern, Options{}))
		interrupted(t, l, 2, pattern)
		interrupted(t, l, 2, other)
		require.NoError(t, put(t, l, 3, pattern, crowded(l, 3, syscall.ENOSPC)))
		assert.Equal(t, []string{"melt.1", "melt.3"}, names(t, l))
		assert.DirExists(t, filepath.Join(l.dir, partialDir, "other.2"))
	})
	t.Run("a newer one stays", func(t *testing.T) {
		l := open(t, t.TempDir())
		interrupted(t, l, 4, pattern)
		require.ErrorIs(t, put(t, l, 3, pattern, crowded(l, 1, syscall.ENOSPC)), syscall.ENOSPC)
		assert.DirExists(t, filepath.Join(l.dir, partialDir, "melt.4"))
	})
	t.Run("what an interrupted removal has left goes", func(t *testing.T) {
		l := open(t, t.TempDir())
		require.NoError(t, os.MkdirAll(filepath.Join(l.dir, removalDir, "x", "y"), 0o700))
		require.NoError(t, put(t, l, 3, pattern, crowded(l, 1, syscall.ENOSPC)))
	})
	t.Run("complete ones stay", func(t *testing.T) {
		l := open(t, t.TempDir())
		require.NoError(t, put(t, l, 1, pattern, Options{}))
		require.NoError(t, put(t, l, 2, pattern, Options{}))
		require.ErrorIs(t, put(t, l, 3, pattern, crowded(l, 2, syscall.ENOSPC)), syscall.ENOSPC)
		assert.Equal(t, []string{"melt.1", "melt.2"}, names(t, l))
	})
	t.Run("where most bytes have equal times, the smallest number goes", func(t *testing.T) {
		l := open(t, t.TempDir())
		for n := 9; n <= 11; n++ {
			s, m := numbered(n, pattern)
			s.Files[1].Modified = noon // "/b", the larger one
			m.files[s.In(&s.Files[1])].modified = noon
			o := crowded(l, 2, syscall.ENOSPC)
			o.Replace = true
			_, err := l.Put(t.Context(), s, m, o)
			require.NoError(t, err)
		}
		assert.Equal(t, []string{"melt.10", "melt.11"}, names(t, l))
	})
	t.Run("the oldest go if they may, but not the newest", func(t *testing.T) {
		for _, why := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
			l := open(t, t.TempDir())
			for n := 1; n <= 3; n++ {
				require.NoError(t, put(t, l, n, pattern, Options{}))
			}
			require.NoError(t, put(t, l, 1, other, Options{}))
			o := crowded(l, 4, why)
			o.Replace = true
			require.NoError(t, put(t, l, 4, pattern, o))
			assert.Equal(t, []string{"melt.2", "melt.3", "melt.4", "other.1"}, names(t, l))
			o = crowded(l, 1, why)
			o.Replace = true
			err := put(t, l, 5, pattern, o)
			require.ErrorIs(t, err, why)
			assert.ErrorContains(t, err, "in addition to the newest")
			assert.Equal(t, []string{"melt.4", "other.1"}, names(t, l))
		}
	})
}
