package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/demo"
)

// compileViews builds the program that maps files for reading.
func compileViews(t *testing.T, s *demo.Stage) string {
	program := filepath.Join(s.Dir, "views")
	out, err := exec.Command("gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/views.c").CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// mappers are processes that map files: one alone, with private files and in a job's tree, and a rank. Each is the prefix of a command
// line.
var mappers = []struct {
	name string
	view config.View
	as   []string
}{
	{"alone", config.ViewRank, nil},
	{"alone in a tree", config.ViewJob, nil},
	{"a rank in a tree", config.ViewJob, []string{"env", "PMI_RANK=1", "PMI_SIZE=2"}},
}

// TestMappedInView checks that a large file mapped for reading is not copied, and that its mapping behaves as on a local file system,
// whatever is done to the mapping, the file and its names.
func TestMappedInView(t *testing.T) {
	t.Parallel()
	for _, m := range mappers {
		t.Run(m.name, func(t *testing.T) { testMappedInView(t, m.view, m.as) })
	}
}

func testMappedInView(t *testing.T, view config.View, as []string) {
	s := newStage(t)
	s.View = view
	needsView(t, s, sharedMappings)
	program := compileViews(t, s)
	look := func(t *testing.T, flags []string, args ...string) {
		t.Helper()
		run := slices.Concat([]string{"run", "--name", "maps", "--fresh"}, flags, []string{"--"}, as, []string{program}, args)
		assert.Empty(t, call(t, s, run...).ok(t))
	}
	type row struct {
		look  string
		flags []string
	}
	rows := []row{
		{"changes", nil},
		{"changes", []string{"--durability=close"}},
		{"names", nil},
		{"memory", nil},
		{"sources", nil},
		{"busy", nil},
	}
	if view == config.ViewJob {
		rows = append(rows, row{"others", nil}, row{"others", []string{"--durability=close"}})
	}
	for _, tt := range rows {
		t.Run(tt.look, func(t *testing.T) {
			out, err := exec.Command(program, tt.look, t.TempDir()).CombinedOutput()
			require.NoError(t, err, "on a local file system: %s", out)
			look(t, tt.flags, tt.look, "/nvmecr", "/view/")
		})
	}
	for name, flags := range map[string][]string{
		"without a view":    {"--fuse=off"},
		"without checksums": {"--data-checksum=off"},
	} {
		t.Run(name, func(t *testing.T) {
			look(t, flags, "names", "/nvmecr", "memfd:nvmecr")
		})
	}
}

// TestMappedInViewOfKilled checks that after a kill of the server unread pages are lost, and that files are then mapped as copies.
func TestMappedInViewOfKilled(t *testing.T) {
	t.Parallel()
	for _, m := range mappers {
		t.Run(m.name, func(t *testing.T) { testMappedInViewOfKilled(t, m.view, m.as) })
	}
}

func testMappedInViewOfKilled(t *testing.T, view config.View, as []string) {
	s := newStage(t)
	s.View = view
	needsView(t, s, sharedMappings)
	ready := filepath.Join(s.Dir, "go")
	job, err := s.Start([]string{s.Nvmecr, "run", "--", "sh", "-c", `echo $NVMECR_EXPORT; mkfifo ` + ready + `; exec ` +
		strings.Join(as, " ") + ` ` + compileViews(t, s) + ` killed /nvmecr /view/ < ` + ready})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(job.Stdout.Lines()) > 0 }, hang, time.Millisecond)
	var line *os.File
	require.Eventually(t, func() bool { line, err = os.OpenFile(ready, os.O_WRONLY, 0); return err == nil }, hang, time.Millisecond)
	defer line.Close()
	export := job.Stdout.Lines()[0]
	require.Eventually(t, func() bool { return len(job.Stdout.Lines()) > 1 }, hang, time.Millisecond)
	require.NoError(t, syscall.Kill(serverOf(t, export), syscall.SIGKILL))
	_, err = line.WriteString("\n")
	require.NoError(t, err)
	require.NoError(t, job.Wait(t.Context()), "%v", job.Stderr.Lines())
	assert.Equal(t, []string{export, "go"}, job.Stdout.Lines())
}

// TestMappedInViewAtTheEnd checks that a mapping that outlives the run does not delay the end of the run.
func TestMappedInViewAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, m := range mappers {
		t.Run(m.name, func(t *testing.T) { testMappedInViewAtTheEnd(t, m.view, m.as) })
	}
}

func testMappedInViewAtTheEnd(t *testing.T, view config.View, as []string) {
	s := newStage(t)
	s.View = view
	needsView(t, s, sharedMappings)
	r := sh(t, s, `echo $NVMECR_EXPORT; exec `+strings.Join(as, " ")+` `+compileViews(t, s)+` held /nvmecr /view/`)
	lines := strings.Fields(r.ok(t))
	require.Len(t, lines, 2)
	pid, err := strconv.Atoi(lines[1])
	require.NoError(t, err)
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.NoError(t, err)
	assert.Contains(t, string(maps), "/job/f")
	assert.NotContains(t, r.stderr, "is killed")
	assert.NoDirExists(t, lines[0])
}
