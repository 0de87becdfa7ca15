package conformance

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A difference is a step with a different result under the mount.
type difference struct {
	name, step, local, mount string
}

func (d difference) String() string {
	return strings.Join([]string{d.name, d.step, d.local, d.mount}, " | ")
}

// differences is differences.txt: blocks of a reason in lines that begin with
// "#" and of the differences that it explains,
//
//	[FILE SYSTEM...:] NAME | STEP | LOCAL RESULT | RESULT UNDER THE MOUNT
type differences struct {
	accepted map[difference]bool // whether the difference has occurred
}

func readDifferences(t *testing.T, names ...string) *differences {
	t.Helper()
	d := &differences{accepted: map[difference]bool{}}
	for _, name := range names {
		d.read(t, name)
	}
	return d
}

func (d *differences) read(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	explained := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			explained = false
		case strings.HasPrefix(line, "#"):
			explained = true
		default:
			require.True(t, explained, "differences.txt: no reason is given for %q", line)
			d.accept(t, line)
		}
	}
}

func (d *differences) accept(t *testing.T, line string) {
	t.Helper()
	if kinds, rest, only := strings.Cut(line, ": "); only && !strings.Contains(kinds, "|") {
		if !slices.Contains(strings.Fields(kinds), fileSystem(t, os.TempDir())) {
			return
		}
		line = rest
	}
	part := strings.Split(line, " | ")
	require.Len(t, part, 4, "differences.txt: %q", line)
	entry := difference{part[0], part[1], part[2], part[3]}
	_, twice := d.accepted[entry]
	require.False(t, twice, "differences.txt: %s is there twice", entry)
	d.accepted[entry] = false
}

// fileSystem returns the type of a directory's file system. An unknown one, such as an overlay on ext4, counts as ext4.
func fileSystem(t *testing.T, dir string) string {
	t.Helper()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &st))
	switch st.Type {
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	}
	return "ext4"
}

// compare fails for every difference that is not accepted.
func (d *differences) compare(t *testing.T, cases []testCase, local, mount trace) {
	t.Helper()
	for _, c := range cases {
		a, b := local[c.name], mount[c.name]
		if len(a) != len(b) {
			t.Errorf("%s ended early: locally %q, under the mount %q", c.name, last(a), last(b))
		}
		for i := range min(len(a), len(b)) {
			if a[i] == b[i] {
				continue
			}
			step, want, _ := strings.Cut(a[i], " = ")
			_, got, _ := strings.Cut(b[i], " = ")
			found := difference{c.name, step, want, got}
			if _, ok := d.accepted[found]; !ok {
				t.Error(found)
			}
			d.accepted[found] = true
		}
	}
}

func last(lines []string) string {
	if len(lines) == 0 {
		return "nothing"
	}
	return lines[len(lines)-1]
}

// stale fails for accepted differences that have not occurred.
func (d *differences) stale(t *testing.T) {
	t.Helper()
	for entry, seen := range d.accepted {
		if !seen {
			t.Errorf("differences.txt: no longer so: %s", entry)
		}
	}
}
