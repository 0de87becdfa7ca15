package apps

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
	"nvmecr/internal/demo/demotest"
)

// limit is the time limit of a command.
const limit = 15 * time.Minute

// mount is the mount point of `nvmecr run`.
const mount = "/nvmecr"

// newStage returns a stage until the end of the test.
var newStage = demotest.NewStage

// python is the interpreter of the distribution, which has the distribution's modules.
const python = "/usr/bin/python3"

// need skips the test unless all names are installed: commands, and Python modules as "python:NAME".
func need(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if module, ok := strings.CutPrefix(name, "python:"); ok {
			if !hasModule(module) {
				t.Skipf("Python's %s is not installed: make test-apps", module)
			}
		} else if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed: make deps or make test-apps", name)
		}
	}
}

// hasModule checks for a Python module without importing it, which may take seconds.
func hasModule(name string) bool {
	return exec.Command(python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('"+name+"') is None)").Run() == nil
}

// source returns the path of a file in testdata.
func source(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", name))
	require.NoError(t, err)
	return path
}

// compile builds a program of testdata in the stage's directory.
func compile(t *testing.T, s *demo.Stage, compiler, name string, flags ...string) string {
	t.Helper()
	need(t, compiler)
	program := filepath.Join(s.Dir, strings.TrimSuffix(filepath.Base(name), filepath.Ext(name)))
	out, err := exec.Command(compiler, append([]string{"-O1", "-o", program, source(t, name)}, flags...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// environment is the environment of every program, independent of the caller's.
var environment = []string{"LC_ALL=C.UTF-8", "TZ=UTC", "PYTHONDONTWRITEBYTECODE=1"}

// outcome is the result of a command.
type outcome struct {
	err            error // failure, with its status in the text
	stdout, stderr string
}

// runs runs a command line to its end.
func runs(t *testing.T, s *demo.Stage, argv ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	job, err := s.Start(argv, environment...)
	require.NoError(t, err)
	err = job.Wait(ctx)
	if ctx.Err() != nil {
		_, killed := s.Kill()
		require.NoError(t, killed)
		require.NoError(t, ctx.Err(), "%v hangs: %s%s", argv, job.Stdout.Tail(20), job.Stderr.Tail(20))
	}
	return outcome{err, job.Stdout.Tail(1 << 20), job.Stderr.Tail(1 << 20)}
}

// native creates a local directory of the stage.
func native(t *testing.T, s *demo.Stage) string {
	t.Helper()
	dir, err := os.MkdirTemp(s.Dir, "native")
	require.NoError(t, err)
	return dir
}

// alike checks that a command line has the same effects in a local directory and in the store "alike" of the stage. argv is called with
// the directory. Files whose relative path matches except are not compared. It returns the local directory.
func alike(t *testing.T, s *demo.Stage, except string, argv func(dir string) []string) string {
	t.Helper()
	local := native(t, s)
	want := runs(t, s, argv(local)...)
	require.NoError(t, want.err, "natively")
	got := runs(t, s, append(s.RunFlags("alike", "--fresh"), argv(mount)...)...)
	require.NoError(t, got.err, "under the mount")
	assert.Equal(t, lines(want.stdout, local), lines(got.stdout, mount))
	assert.NotEmpty(t, got.stdout)

	copied := filepath.Join(s.Dir, "copied")
	require.NoError(t, os.RemoveAll(copied))
	require.NoError(t, runs(t, s, s.Nvmecr, "cp", "--name", "alike", "/", copied).err)
	var files []string
	for rank := range ranks {
		// cp copies files of several ranks into a directory for each rank.
		own := filepath.Join(copied, "rank"+strconv.Itoa(rank))
		if _, err := os.Stat(own); err == nil {
			files = append(files, tree(t, own, except)...)
		}
	}
	if files == nil {
		files = tree(t, copied, except)
	}
	slices.Sort(files)
	assert.Equal(t, tree(t, local, except), files, "the files")
	return local
}

// lines returns the lines of an output with dir replaced by "DIR".
func lines(output, dir string) []string {
	return strings.Split(strings.ReplaceAll(output, dir, "DIR"), "\n")
}

// tree lists the files below a directory, with checksums.
func tree(t *testing.T, dir, except string) []string {
	t.Helper()
	found := map[string]string{}
	skipped := regexp.MustCompile("^(" + except + ")$")
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil || except != "" && skipped.MatchString(name) {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch d.Type() {
		case fs.ModeDir:
			found[name] = info.Mode().String()
		case fs.ModeSymlink:
			found[name], err = os.Readlink(path)
		default:
			var content []byte
			content, err = os.ReadFile(path)
			found[name] = fmt.Sprintf("%v %d bytes %x", info.Mode(), len(content), sha256.Sum256(content))
		}
		return err
	}))
	var all []string
	for name, what := range found {
		all = append(all, name+": "+what)
	}
	slices.Sort(all)
	return all
}
