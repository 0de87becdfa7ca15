package e2e

import (
	"encoding/binary"
	"encoding/json"
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

// partitionAt is the offset of the only partition of a store in its image.
const partitionAt = 2 << 20

// spoil inverts n bytes of the image of the default store.
func spoil(t *testing.T, s *demo.Stage, at int64, n int) {
	f, err := os.OpenFile(s.Image("default"), os.O_RDWR, 0)
	require.NoError(t, err)
	b := make([]byte, n)
	_, err = f.ReadAt(b, at)
	require.NoError(t, err)
	for i := range b {
		b[i] ^= 0xff
	}
	_, err = f.WriteAt(b, at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// superblock returns an 8-byte integer of the superblock.
func superblock(t *testing.T, s *demo.Stage, at int64) int64 {
	f, err := os.Open(s.Image("default"))
	require.NoError(t, err)
	defer f.Close()
	b := make([]byte, 8)
	_, err = f.ReadAt(b, partitionAt+at)
	require.NoError(t, err)
	return int64(binary.LittleEndian.Uint64(b))
}

const fillStore = `mkdir /nvmecr/d; dd if=/dev/zero of=/nvmecr/d/big bs=1000000 count=3 status=none; echo hi > /nvmecr/a; ln -s a /nvmecr/l; mkdir /nvmecr/e`

func TestFsckAndVerify(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	sh(t, s, fillStore, "--size", "64M").ok(t)
	out := call(t, s, "fsck").ok(t)
	assert.Contains(t, out, "rank 0: clean: 2 files, 2 directories, 1 symbolic link, 2.9 MiB in ")
	assert.True(t, strings.HasSuffix(out, "store \"default\": 1 partition checked: clean\n"), out)
	out = call(t, s, "verify").ok(t)
	assert.Contains(t, out, "rank 0: 2 files, 2.9 MiB verified\n")
	assert.Contains(t, out, "store \"default\": read 2.9 MiB in ")

	// One byte of a file.
	data := partitionAt + superblock(t, s, 128)
	spoil(t, s, data+40000, 1)
	call(t, s, "fsck").ok(t)
	r := call(t, s, "verify")
	assert.Equal(t, 1, r.code)
	assert.Empty(t, r.stderr)
	assert.Contains(t, r.stdout, "rank 0: /d/big: bytes 32768 to 65535 (32 KiB at LBA ")
	assert.Contains(t, r.stdout, "1 damaged file\n")
	r = call(t, s, "verify", "--json")
	var verified struct {
		Damaged int
		Ranks   []struct {
			Damaged []struct {
				Path           string
				Offset, Length int64
			}
		}
	}
	assert.Equal(t, 1, r.code)
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &verified))
	require.Equal(t, 1, verified.Damaged)
	assert.Equal(t, int64(32768), verified.Ranks[0].Damaged[0].Offset)

	// Structures with two copies.
	spoil(t, s, partitionAt, 100)
	spoil(t, s, 1<<20, 100)
	r = call(t, s, "fsck", "--json")
	var checked struct {
		Clean   bool
		Targets []struct {
			Findings []struct{ Kind, Severity string }
		}
		Ranks []struct {
			Findings []struct{ Kind, Severity string }
			Repaired []string
		}
	}
	assert.Equal(t, 1, r.code)
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &checked))
	assert.False(t, checked.Clean)
	assert.Equal(t, "table-copy", checked.Targets[0].Findings[0].Kind)
	assert.Equal(t, "superblock-copy", checked.Ranks[0].Findings[0].Kind)
	assert.Equal(t, "repairable", checked.Ranks[0].Findings[0].Severity)
	assert.Contains(t, call(t, s, "fsck").stdout, "`nvmecr fsck --repair` repairs what can be repaired")
	assert.Contains(t, call(t, s, "fsck", "--repair").ok(t), "rank 0: repair: superblock copy 0")
	call(t, s, "fsck").ok(t)
	assert.Equal(t, "hi\n", call(t, s, "cat", "/a").ok(t))

	// Structures without a copy.
	for _, off := range []int64{0, 8} { // both state areas
		spoil(t, s, partitionAt+superblock(t, s, 104+off), 2*4096)
	}
	r = call(t, s, "fsck")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.stdout, "rank 0: damaged, data is lost")
	assert.Contains(t, r.stdout, "data loss: state checkpoint")
	r = call(t, s, "fsck", "--repair")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.stderr, "rank 0: ")
	call(t, s, "verify").refused(t, "rank 0: ")
}

func TestFsckUsage(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	call(t, s, "fsck").refused(t, `no store "default"`)
	sh(t, s, "true", "--size", "64M", "--data-checksum", "off").ok(t)
	call(t, s, "fsck").refused(t, "nothing was ever written to store")
	sh(t, s, fillStore).ok(t)
	for _, args := range [][]string{{"fsck", "--rank", "1"}, {"fsck", "--rank", "-7"}, {"verify", "--rank", "1"}, {"fsck", "x"}, {"verify", "x"}} {
		r := call(t, s, args...)
		assert.Equal(t, 2, r.code, "%v: %s", args, r.stderr)
		r.refused(t)
	}
	out := call(t, s, "verify").ok(t)
	assert.Contains(t, out, "read; nothing can be verified")
	assert.Contains(t, out, "there are no checksums to compare with")
}

// TestFsckWhileAJobRuns checks a store in use, and that a repair of it is refused.
func TestFsckWhileAJobRuns(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	fifo := filepath.Join(s.Dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	job, err := s.Start(append(s.RunFlags("default", "--size", "64M"), "sh", "-c", fillStore+"; echo up; read x < "+fifo))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(job.Stdout.Lines()) > 0 || job.Ended() }, hang, time.Millisecond)
	require.False(t, job.Ended())
	assert.Contains(t, call(t, s, "fsck").ok(t), "2 files")
	assert.Contains(t, call(t, s, "verify").ok(t), "verified")
	call(t, s, "fsck", "--repair").refused(t, "in use by process")
	require.NoError(t, os.WriteFile(fifo, []byte("x\n"), 0o600))
	require.NoError(t, job.Wait(t.Context()))
	call(t, s, "fsck", "--repair").ok(t)
}
