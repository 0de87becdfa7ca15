package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A deliberate panic is a line of source that is compiled in front of another line. It is not in the programs of users.
type deliberate struct{ file, line, before string }

var deliberatePanics = []deliberate{
	{"posixshim/data.go", `if off == 0x7a11 { panic("deliberate") }`, "\ts := getScratch(buf)\n\tn, err := p.read(h, s.one[:], off)"},
	{"microfs/file.go", `if off == 0x7a12 { panic("deliberate") }`, "\tif total(bufs) > maxBatch {\n\t\tf.begin(false)"},
	{"tree/index/calls.go", `if r.Mode&0o777 == 0o751 { panic("deliberate") }`, "\treturn nil, c.x.fs.Mkdir(r.Dir, r.Path, r.Mode)"},
}

// replacement is the argument of go build -overlay.
type replacement struct{ Replace map[string]string }

// panics returns the overlay that compiles the deliberate panics.
func panics(t *testing.T, dir string) replacement {
	r := replacement{map[string]string{}}
	for _, d := range deliberatePanics {
		path, err := filepath.Abs(filepath.Join("../..", d.file))
		require.NoError(t, err)
		source, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(source), d.before), "say where the panic is in %s now", d.file)
		r.Replace[path] = filepath.Join(dir, filepath.Base(d.file))
		spoiled := strings.Replace(string(source), d.before, d.line+"\n"+d.before, 1)
		require.NoError(t, os.WriteFile(r.Replace[path], []byte(spoiled), 0o600))
	}
	return r
}

// and adds the overlay with which the libraries are built anyway.
func (r replacement) and(t *testing.T, path string) replacement {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &r))
	return r
}

// build compiles a package of the module.
func (r replacement) build(t *testing.T, program string, args ...string) {
	b, err := json.Marshal(r)
	require.NoError(t, err)
	overlay := program + ".json"
	require.NoError(t, os.WriteFile(overlay, b, 0o600))
	cmd := exec.Command("go", append([]string{"build", "-buildvcs=false", "-trimpath", "-overlay=" + overlay, "-o", program}, args...)...)
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// panicking builds nvmecr with the panics, and returns the command. All other code is compiled as by make.
func panicking(t *testing.T, built string) string {
	dir := t.TempDir()
	command := filepath.Join(dir, "nvmecr")
	r := panics(t, dir)
	r.build(t, command, "./cmd/nvmecr")
	r.and(t, "../../build/overlay.json").build(t, filepath.Join(dir, "libnvmecr-plain.so"), "-buildmode=c-shared",
		"-ldflags=-X=runtime.godebugDefault=asyncpreemptoff=1", "./cmd/libnvmecr")
	require.NoError(t, os.Symlink(filepath.Join(filepath.Dir(built), "libnvmecr.so"), filepath.Join(dir, "libnvmecr.so")))
	return command
}

// TestPanics checks that a call which panics returns EIO, as do all later calls, that one message names the call, and that the
// application runs to its end. The same applies to calls that a process makes for another one, and to the index of a job's tree.
func TestPanics(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs("testdata/panics.py")
	require.NoError(t, err)
	built := newStage(t)
	command := panicking(t, built.Nvmecr)
	for _, c := range []struct{ call, view, during string }{
		{"read", "rank", "pread"},
		{"locked", "rank", "pread"},
		{"child", "rank", "a call of another process"},
		{"read", "job", "pread"},
		{"name", "job", "Mkdir"},
	} {
		t.Run(c.call+" "+c.view, func(t *testing.T) {
			s := newStage(t)
			s.Nvmecr = command
			r := sh(t, s, "exec "+python+" "+script+" "+c.call, "--size", "256M", "--view", c.view)
			assert.Equal(t, "EIO\nthen EIO\ngoes on\n", r.ok(t))
			said := lines(r.stderr, "please report it")
			if assert.Len(t, said, 1, r.stderr) {
				assert.Contains(t, said[0], "internal error during "+c.during+", please report it: deliberate, at nvmecr/")
				assert.Contains(t, said[0], "is EIO from here on")
			}
			assert.NotContains(t, r.stderr, "goroutine")
		})
	}
	t.Run("by way of the kernel", func(t *testing.T) { panicOfView(t, command) })
}

// panicOfView checks that a program which uses the view gets EIO, and that the server continues.
func panicOfView(t *testing.T, command string) {
	s := newRankStage(t)
	needsView(t, s, otherPrograms)
	s.Nvmecr = command
	r := sh(t, s, `head -c 100000 /dev/zero > /nvmecr/a
		env -i LC_ALL=C dd if=$NVMECR_EXPORT/self/a of=/dev/null bs=10 iflag=skip_bytes skip=$((0x7a11)) count=1 2>&1 | grep -o 'Input/output error'
		env -i cat $NVMECR_EXPORT/self/a | wc -c`)
	assert.Equal(t, "Input/output error\n100000\n", r.ok(t))
	said := lines(r.stderr, "please report it")
	if assert.Len(t, said, 1, r.stderr) {
		assert.Contains(t, said[0], "internal error during a call by way of the kernel, please report it: deliberate, at nvmecr/posixshim.(*Process).Pread:")
	}
	assert.NotContains(t, r.stderr, "goroutine")
}

// lines returns the lines with a word.
func lines(text, word string) (found []string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			found = append(found, line)
		}
	}
	return found
}
