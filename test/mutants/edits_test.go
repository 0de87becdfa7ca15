package mutants

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/mutant"
)

var all = flag.Bool("all", false, "try the edits, too")

// An edit is a deliberate fault that is not in the program: a piece of a source file is replaced in the build (go build -overlay).
type edit struct {
	name string
	file string // from the root of the repository
	// right occurs once in the file, and is replaced by wrong.
	right, wrong string
	tests        string // regular expression of tests of the file's package, one of which has to fail
	in           string // package of the tests, if it is another one
}

func (e *edit) dir() string {
	if e.in != "" {
		return e.in
	}
	return filepath.Dir(e.file)
}

const root = "../.."

// spoiled returns the content of the file with the fault.
func (e *edit) spoiled(t *testing.T) string {
	b, err := os.ReadFile(filepath.Join(root, e.file))
	require.NoError(t, err)
	assert.Equal(t, 1, strings.Count(string(b), e.right), "%s: this is no longer in %s once:\n%s\nsay what the fault is there now", e.name, e.file, e.right)
	return strings.Replace(string(b), e.right, e.wrong, 1)
}

// TestEditsApply checks that each edit applies to the present code, and names existing tests.
func TestEditsApply(t *testing.T) {
	names := map[string]bool{}
	for i := range edits {
		e := &edits[i]
		require.False(t, names[e.name], "twice: %s", e.name)
		names[e.name] = true
		_, err := parser.ParseFile(token.NewFileSet(), e.file, e.spoiled(t), 0)
		require.NoError(t, err, e.name)
		for _, name := range strings.Split(e.tests, "|") {
			assert.True(t, testsOf(t, e.dir())[name], "%s: %s has no test %s", e.name, e.dir(), name)
		}
	}
}

// TestNumberOfFaults checks that the number of faults in the docs is approximately right.
func TestNumberOfFaults(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/reliability.md"))
	require.NoError(t, err)
	said := regexp.MustCompile(`more than (\d+) deliberate faults, .*, (\d+) of them of the log`).FindStringSubmatch(string(page))
	require.NotNil(t, said)
	n, err := strconv.Atoi(said[1])
	require.NoError(t, err)
	faults := len(edits) + len(mutant.All)
	assert.Greater(t, faults, n)
	assert.LessOrEqual(t, faults, n+50, "say in docs/reliability.md that there are more")
	assert.Equal(t, strconv.Itoa(len(mutant.All)), said[2])
}

var tests = map[string]map[string]bool{}

// testsOf returns the names of the tests of a package.
func testsOf(t *testing.T, dir string) map[string]bool {
	if tests[dir] == nil {
		tests[dir] = map[string]bool{}
		files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
		require.NoError(t, err)
		for _, name := range files {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
					tests[dir][fn.Name.Name] = true
				}
			}
		}
	}
	return tests[dir]
}

// TestEdits checks that each fault makes one of its tests fail, and that the tests pass without it.
func TestEdits(t *testing.T) {
	if !*all {
		t.Skip("builds a package for each fault: make mutants")
	}
	sound := map[string]bool{}
	for i := range edits {
		e := &edits[i]
		t.Run(e.name, func(t *testing.T) {
			if key := e.dir() + " " + e.tests; !sound[key] {
				by, out := e.caughtBy(t, "")
				require.Empty(t, by, "fails without a fault: %s", out)
				sound[key] = true
			}
			dir := t.TempDir()
			file, err := filepath.Abs(filepath.Join(root, e.file))
			require.NoError(t, err)
			spoiled, overlay := filepath.Join(dir, "spoiled.go"), filepath.Join(dir, "overlay.json")
			require.NoError(t, os.WriteFile(spoiled, []byte(e.spoiled(t)), 0o600))
			b, err := json.Marshal(map[string]map[string]string{"Replace": {file: spoiled}})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(overlay, b, 0o600))
			begin := time.Now()
			by, out := e.caughtBy(t, overlay)
			require.NotEmpty(t, by, "nothing notices it: %s", out)
			fmt.Printf("%-45s %-45s %.1f s\n", e.name, by, time.Since(begin).Seconds())
		})
	}
}

// caughtBy returns the failing test, or "", and the output.
func (e *edit) caughtBy(t *testing.T, overlay string) (by, out string) {
	args := []string{"test", "-count", "1", "-short", "-failfast", "-vet", "off", "-run", "^(" + e.tests + ")$"}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+e.dir())...)
	cmd.Dir, cmd.WaitDelay = root, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the test and its child processes
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	b, err := cmd.CombinedOutput()
	out = string(b)
	if err == nil {
		require.NotContains(t, out, "no tests to run")
		require.NotContains(t, out, "SKIP")
		return "", out
	}
	if ctx.Err() != nil {
		return e.dir() + " hangs", out
	}
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit), err)
	require.NotContains(t, out, "[build failed]", out)
	require.NotContains(t, out, "[setup failed]", out)
	if m := failed.FindStringSubmatch(out); m != nil {
		return e.dir() + " " + strings.SplitN(m[1], "/", 2)[0], out
	}
	return e.dir() + " panics", out
}
