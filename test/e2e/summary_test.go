package e2e

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
	"nvmecr/nvmf"
)

// lastLines returns the messages of a run after the line about its store.
func lastLines(t *testing.T, r result) []string {
	lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
	require.Contains(t, lines[0], "nvmecr: store ", r.stderr)
	return lines[1:]
}

// TestSummary checks the line at the end of a run: about its files, or that nothing was opened; none if there is nothing to report, or
// with --log=error.
func TestSummary(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, tc := range []struct {
		name, script string
		flags        []string
		want         string // expected last line; "": none
	}{
		{"not used", "echo out", nil, "nothing was opened under /nvmecr"},
		{"written", "echo out; echo 12345 > /nvmecr/a; head -c 2000 /dev/zero > /nvmecr/b", nil, `store "default": 2 files of 2.0 KiB new or changed; newest complete: /b`},
		{"failed", "echo out; exit 3", nil, ""},
		{"read", "echo out; cat /nvmecr/a > /dev/null", nil, ""},
		{"looked for", "echo out; [ -e /nvmecr/c ]", nil, ""},
		{"not used again", "echo out", nil, "nothing was opened under /nvmecr"},
		{"changed", "echo out; echo 1 >> /nvmecr/a", nil, "1 file of 8 B new or changed; newest complete: /a"},
		{"killed in a write", "echo out; exec 3> /nvmecr/d; echo 1 >&3; kill -9 $$", nil, "1 file of 2 B new or changed; none of them is complete"},
		{"with --log error", "echo out; echo 1 > /nvmecr/e", []string{"--log", "error"}, ""},
		{"not used, with --log error", "echo out", []string{"--log", "error"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := sh(t, s, tc.script, tc.flags...)
			assert.Equal(t, "out\n", r.stdout)
			lines := lastLines(t, r)
			if tc.want == "" {
				assert.Empty(t, lines)
				return
			}
			require.Len(t, lines, 1, r.stderr)
			assert.Contains(t, lines[0], tc.want)
		})
	}
}

// TestSummaryOfRanks checks that the newest checkpoint is one that all ranks have, by the same name or with their numbers in it.
func TestSummaryOfRanks(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("mpirun.openmpi"); err != nil {
		t.Skip("OpenMPI (mpirun.openmpi) is not installed: make deps")
	}
	s := newRankStage(t)
	rank := `r=$OMPI_COMM_WORLD_RANK; `
	for _, tc := range []struct{ name, script, want string }{
		{"numbers", rank + "for i in 200 400; do echo 1 > /nvmecr/melt.$i.$r; done; [ $r = 1 ] || echo 1 > /nvmecr/melt.600.$r", "5 files of 10 B new or changed; newest complete on all 2 ranks: /melt.400.*"},
		{"one name", rank + "mkdir -p /nvmecr/d; echo 1 > /nvmecr/d/c", "2 files of 4 B new or changed; newest complete on all 2 ranks: /d/c"},
		{"one rank", rank + "mkdir /nvmecr/d; [ $r = 0 ] || echo 1 > /nvmecr/x", "1 file of 2 B new or changed; newest complete: /x of rank 1, none on all ranks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := []string{"run", "--size", "64M", "--name", strings.ReplaceAll(tc.name, " ", "-"), "--", "mpirun.openmpi", "--oversubscribe", "-n", "2"}
			if os.Getuid() == 0 {
				args = append(args, "--allow-run-as-root")
			}
			r := call(t, s, append(args, "sh", "-c", tc.script)...)
			require.Zero(t, r.code, r.stderr)
			assert.Contains(t, r.stderr, tc.want)
		})
	}
}

// TestEmbeddedStoreGivesBack repeatedly writes checkpoints and keeps two of them. The image occupies little more than these, and less
// than was written.
func TestEmbeddedStoreGivesBack(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const checkpoint = 32 * nvmf.MiB
	script := `
import os
for i in range(10):
    with open("/nvmecr/c%d" % i, "wb", buffering=0) as f:
        for _ in range(32):
            f.write(os.urandom(1 << 20))
    if i > 1:
        os.unlink("/nvmecr/c%d" % (i - 2))
    st = os.stat(os.environ["IMAGE"])
    print(st.st_blocks * 512)
`
	r := call(t, s, "run", "--size", "1G", "--", "env", "IMAGE="+s.Image("default"), "python3", "-c", script)
	r.ok(t)
	held := stored(t, s)
	assert.Less(t, held, 2*checkpoint+8*nvmf.MiB, "at the end")
	for _, line := range strings.Fields(r.stdout) {
		assert.Less(t, len(line), 10, "%s bytes", line) // less than 1 GB
	}
	assert.Equal(t, 0, sh(t, s, "cmp /nvmecr/c8 /nvmecr/c8").code)
}

// stored returns the disk space of the default store's image.
func stored(t *testing.T, s *demo.Stage) nvmf.Bytes {
	info, err := os.Stat(s.Image("default"))
	require.NoError(t, err)
	return nvmf.Bytes(info.Sys().(*syscall.Stat_t).Blocks) * 512
}

// TestNamesRunOut checks that one message names the lack of inodes, and that statvfs (df -i) shows it.
func TestNamesRunOut(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	script := `
import os
n = 0
try:
    while n < 5000:
        open("/nvmecr/name-of-a-file-%d" % n, "w").close()
        n += 1
except OSError as e:
    for _ in range(10):
        try:
            os.mkdir("/nvmecr/directory")
        except OSError as e:
            assert e.errno == 28
print(n, os.statvfs("/nvmecr").f_ffree, os.statvfs("/nvmecr").f_files - n, os.statvfs("/nvmecr").f_bavail > 10)
`
	r := call(t, s, "run", "--size", "8M", "--", "python3", "-c", script)
	out := strings.Fields(r.ok(t))
	require.Len(t, out, 4, r.stdout)
	assert.NotEqual(t, "5000", out[0])
	assert.Equal(t, []string{"0", "1", "True"}, out[1:], "f_ffree, the root directory, and there is space")
	assert.Equal(t, 1, strings.Count(r.stderr, "there is no space for another name"), r.stderr)
}
