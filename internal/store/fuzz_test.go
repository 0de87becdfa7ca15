package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/hostile"
)

// FuzzRecord loads arbitrary bytes as the record of a state directory. Load must return a record, or an error that
// names the store, with bounded time and memory. Settings that can be adopted must be unchanged after they are
// recorded and loaded again.
func FuzzRecord(f *testing.F) {
	d := &StateDir{Name: "fuzz", Path: f.TempDir()}
	require.NoError(f, d.Record(config.Default(), true))
	b, err := os.ReadFile(d.record())
	require.NoError(f, err)
	f.Add(b)
	for _, s := range []string{"", "null", "[]", `{"settings":null,"size":-1}`, `{"settings":{"name":"..","mount":"/"}}`,
		`{"settings":{"target":"mem:1;mem:1","timeout":"1"},"embedded":true,"size":18446744073709551615,"time":"9999-12-31T23:59:59Z"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		require.NoError(t, os.WriteFile(d.record(), b, 0o600))
		hostile.Bounded(t, 4<<20+256*uint64(len(b)), 20*time.Second, func() {
			r, err := d.Load()
			if err != nil {
				require.False(t, errors.Is(err, fs.ErrNotExist))
				require.ErrorContains(t, err, `store "fuzz"`)
				return
			}
			_ = d.CheckImage()
			cfg := config.Default()
			if cfg.Adopt(r.Settings) != nil {
				return
			}
			cfg.Size = r.Size
			require.NoError(t, d.Record(cfg, r.Embedded))
			again, err := d.Load()
			require.NoError(t, err)
			back := config.Default()
			require.NoError(t, back.Adopt(again.Settings))
			back.Size = again.Size
			require.Equal(t, cfg, back)
		})
	})
}

// TestHugeRecord checks that Load reads only the beginning of a record of 1 TiB.
func TestHugeRecord(t *testing.T) {
	d := &StateDir{Name: "huge", Path: t.TempDir()}
	require.NoError(t, os.WriteFile(d.record(), []byte(`{"settings":{"name":"`), 0o600))
	require.NoError(t, os.Truncate(d.record(), 1<<40))
	hostile.Bounded(t, 16<<20, 20*time.Second, func() {
		_, err := d.Load()
		require.ErrorContains(t, err, "remove the file")
	})
}

// FuzzPlace passes arbitrary values in the variables of a launcher. ProcFromEnv must return a valid rank or an error.
func FuzzPlace(f *testing.F) {
	f.Add(uint8(0), "3", "4", "")
	f.Add(uint8(4), "0", "2147483647", "5")
	f.Add(uint8(4), "0", "2", "4294967295")
	f.Add(uint8(2), "-1", "18446744073709551616", "x")
	f.Fuzz(func(t *testing.T, which uint8, rank, size, step string) {
		l := launchers[int(which)%len(launchers)]
		p, err := ProcFromEnv(func(name string) string {
			switch name {
			case l.rank:
				return rank
			case l.sizes[0]:
				return size
			case "SLURM_STEP_ID":
				return step
			}
			return ""
		})
		if err == nil && (p.Size < 1 || p.Rank < 0 || p.Rank >= p.Size) {
			t.Fatalf("%+v", p)
		}
	})
}

// FuzzHolder reads arbitrary bytes as the holder in a lock file.
func FuzzHolder(f *testing.F) {
	f.Add([]byte("4711      \n"))
	f.Add(fmt.Appendf(nil, holderFormat, 4711, 1, uuid.New(), initialPIDSpace, "node7"))
	f.Add([]byte("99999999999999999999"))
	file, err := os.CreateTemp(f.TempDir(), "lock")
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, file.Close()) })
	f.Fuzz(func(t *testing.T, b []byte) {
		require.NoError(t, file.Truncate(0))
		_, err := file.WriteAt(b, 0)
		require.NoError(t, err)
		_ = readHolder(file)
	})
}
