package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestCheckLacks checks the lines about missing limits and directories.
func TestCheckLacks(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, tt := range []struct{ name, without, line string }{
		{"all is there", "true", ""},
		{"descriptors", "ulimit -n 20", "missing open files 20: ulimit -n 1024"},
		{"few descriptors", "ulimit -n 100", "poor open files 100: "},
		{"a home", "unset HOME XDG_STATE_HOME", "missing state directory "},
		{"a state directory", "export XDG_STATE_HOME=/proc/1", "missing state directory /proc/1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := exec.Command("sh", "-c", tt.without+"; exec "+s.Nvmecr+" check").CombinedOutput()
			lines := strings.Join(strings.Fields(string(out)), " ")
			assert.Equal(t, strings.Contains(lines, "missing "), err != nil, "%v: %s", err, out)
			assert.Contains(t, lines, tt.line)
			if tt.line == "" {
				assert.NoError(t, err)
			}
		})
	}
}
