package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/bench/result"
)

// TestParseIOR checks which outputs of IOR are accepted.
func TestParseIOR(t *testing.T) {
	const summary = `{"Version": "4.0.0", "summary": [{"operation": "write", "numTasks": 4, "bwMeanMIB": 1583.0176}], "Finished": "today"}`
	for name, tt := range map[string]struct {
		printed string
		fails   string
	}{
		"as it is":         {summary, ""},
		"behind a warning": {"[host] oversubscribed\n" + summary + "\n", ""},
		"nothing":          {"", "printed no summary"},
		"an error":         {"ERROR: open64 failed", "open64 failed"},
		"cut off":          {summary[:60], "printed no summary"},
		"no rate":          {`{"summary": [{"numTasks": 4}]}`, "printed no summary"},
	} {
		t.Run(name, func(t *testing.T) {
			rate, tasks, err := parseIOR([]byte(tt.printed))
			if tt.fails != "" {
				assert.ErrorContains(t, err, tt.fails)
				return
			}
			require.NoError(t, err)
			assert.InDelta(t, 1583.0176, rate, 1e-9)
			assert.Equal(t, 4, tasks)
		})
	}
}

// programs adds scripts of the given names to the beginning of PATH.
func programs(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// iorTable returns the lines of IOR's table.
func iorTable(r *result.Result) []result.Row {
	for _, table := range r.Tables {
		if strings.HasPrefix(table.Title, "The same by IOR") {
			return table.Lines
		}
	}
	return nil
}

// TestBesideIOR checks the table of the rates of IOR and of our rank on each side. If IOR fails the
// table must be missing, with the reason, and the rest must be measured.
func TestBesideIOR(t *testing.T) {
	prints := func(tasks int) string {
		return fmt.Sprintf(`echo '{"summary": [{"numTasks": %d, "bwMeanMIB": 1000}]}'`, tasks)
	}
	for name, tt := range map[string]struct {
		ior     string
		missing string
	}{
		"as many as ranks":  {prints(2), ""},
		"each on its own":   {prints(1), "another MPI"},
		"it fails":          {"echo no such api >&2; exit 3", "no such api"},
		"on our mount only": {`case "$*" in *shm*) ` + prints(2) + `;; *) exit 4;; esac`, "exit status 4"},
	} {
		t.Run(name, func(t *testing.T) {
			programs(t, map[string]string{"ior": tt.ior, "mpirun": `shift 2; exec "$@"`})
			second, err := os.MkdirTemp("/dev/shm", "ior")
			require.NoError(t, err)
			defer os.RemoveAll(second)
			r := measured(t, nil, "checkpoint", "--ranks", "2", "--peer", "dir:"+second, "--ior", "ior")
			assert.Len(t, r.Comparisons, 6)
			left, err := os.ReadDir(second)
			require.NoError(t, err)
			assert.Empty(t, left)
			if tt.missing != "" {
				require.Len(t, r.Missing, 1)
				assert.Equal(t, "IOR", r.Missing[0].What)
				assert.Contains(t, r.Missing[0].Why, tt.missing)
				assert.Empty(t, iorTable(r))
				return
			}
			assert.Empty(t, r.Missing)
			lines := iorTable(r)
			require.Len(t, lines, 2)
			for _, l := range lines {
				assert.Equal(t, 1000.0, l.Cells[1].Value, l.Name)
				assert.Positive(t, l.Cells[0].Value, l.Name)
			}
		})
	}
}

// TestRealIOR runs IOR, if it is installed. IOR must find the files that it has written before.
func TestRealIOR(t *testing.T) {
	if _, err := exec.LookPath("ior"); err != nil {
		t.Skip("IOR is not in PATH")
	}
	r := measured(t, nil, "checkpoint", "--ranks", "2", "--peer", "dir:/dev/shm", "--ior", "ior")
	assert.Empty(t, r.Missing)
	assert.Len(t, iorTable(r), 2)
}
