package installed

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// asFinder makes the test program print the result of Find.
const asFinder = "INSTALLED_TEST_FIND"

func TestMain(m *testing.M) {
	if os.Getenv(asFinder) == "" {
		os.Exit(m.Run())
	}
	path, err := Find(os.Args[1])
	if err != nil {
		path = err.Error()
	}
	os.Stdout.WriteString(path)
}

// TestFind checks that files are found relative to the program, also through a link to the program.
func TestFind(t *testing.T) {
	self, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	for _, tt := range []struct{ name, part, want string }{
		{"beside", "bin/part", "bin/part"},
		{"lib", "lib/part", "lib/part"},
		{"lib of its own", "lib/nvmecr/part", "lib/nvmecr/part"},
		{"a directory of the name", "lib/part/other", ""},
		{"nowhere", "elsewhere/part", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root, err := filepath.EvalSymlinks(t.TempDir())
			require.NoError(t, err)
			program, link := filepath.Join(root, "bin/program"), filepath.Join(root, "link")
			for _, path := range []string{program, filepath.Join(root, tt.part)} {
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				require.NoError(t, os.WriteFile(path, self, 0o755))
			}
			require.NoError(t, os.Symlink(program, link))
			want := filepath.Join(root, tt.want)
			if tt.want == "" {
				want = "part is not beside " + program + ": run make, or reinstall"
			}
			for _, path := range []string{program, link} {
				cmd := exec.Command(path, "part")
				cmd.Env = append(os.Environ(), asFinder+"=1")
				said, err := cmd.Output()
				require.NoError(t, err)
				assert.Equal(t, want, string(said))
			}
		})
	}
}
