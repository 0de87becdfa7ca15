//go:build !race

package posixshim_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The C of the preloaded library is in every process of a job, and has to stay small enough to be understood as a whole. These
// limits are lowered when the C becomes smaller, and never raised.
const (
	maxLines  = 5950 // lines written by hand
	maxCircle = 4    // files in the largest cycle of calls
)

// aPointer matches a global function pointer. A file could call a function of a folder above through it, which nm
// does not show.
var aPointer = regexp.MustCompile(`(?m)^extern [^;{]*\(\*\s*nv_\w+\)\(.*`)

// folders are the folders of the C, from the lowest to the highest. A file uses only functions and variables of its
// own folder and of lower ones.
var folders = []string{"base", "runtime", "remote", "route", "files", "process", "calls"}

// TestShimIsSmall checks the size of the C, its largest cycle of calls, and that no file uses a folder above its own.
func TestShimIsSmall(t *testing.T) {
	files, err := filepath.Glob("shim/*/*.[ch]")
	require.NoError(t, err)
	headers, err := filepath.Glob("shim/*.[ch]")
	require.NoError(t, err)
	lines := 0
	for _, name := range slices.Concat(files, headers) {
		if text, err := os.ReadFile(name); assert.NoError(t, err) && !strings.Contains(name, "_gen.") {
			lines += bytes.Count(text, []byte("\n"))
			assert.Empty(t, aPointer.FindString(string(text)), "%s: a function pointer may call a folder above", name)
		}
	}
	assert.LessOrEqual(t, lines, maxLines, "lines of C: can it be left to the kernel, to Go, or to calls.txt?")
	calls := callsOfFiles(t, files)
	var largest []string
	for name := range calls {
		if circle := circleOf(calls, name); len(circle) > len(largest) {
			largest = circle
		}
	}
	assert.LessOrEqual(t, len(largest), maxCircle, "%v", largest)
	for name, others := range calls {
		for _, other := range others {
			assert.GreaterOrEqual(t, levelOf(t, name), levelOf(t, other), "%s calls %s, which is above it", name, other)
		}
	}
}

// levelOf returns the index of a file's folder in folders.
func levelOf(t *testing.T, file string) int {
	level := slices.Index(folders, filepath.Base(filepath.Dir(file)))
	require.GreaterOrEqual(t, level, 0, "%s is in none of the folders %v", file, folders)
	return level
}

// callsOfFiles returns, for each file, the files whose functions or variables it uses.
func callsOfFiles(t *testing.T, files []string) map[string][]string {
	dir := t.TempDir()
	defined, used := map[string]string{}, map[string][]string{}
	for _, name := range files {
		if filepath.Ext(name) != ".c" {
			continue
		}
		object := filepath.Join(dir, filepath.Base(name)+".o")
		out, err := exec.Command(tool(t, "gcc"), "-Ishim", "-std=gnu11", "-D_GNU_SOURCE", "-U_FORTIFY_SOURCE", "-fPIC", "-O0", "-c", "-o", object, name).CombinedOutput()
		require.NoError(t, err, "%s", out)
		symbols, err := exec.Command(tool(t, "nm"), object).Output()
		require.NoError(t, err)
		for line := range strings.Lines(string(symbols)) {
			f := strings.Fields(line)
			switch kind, symbol := f[len(f)-2], f[len(f)-1]; {
			case kind == "U":
				used[name] = append(used[name], symbol)
			case strings.Contains("TDBRC", kind):
				defined[symbol] = name
			}
		}
	}
	calls := map[string][]string{}
	for name, symbols := range used {
		for _, symbol := range symbols {
			if of, ok := defined[symbol]; ok && of != name && !slices.Contains(calls[name], of) {
				calls[name] = append(calls[name], of)
			}
		}
	}
	return calls
}

// circleOf returns the cycle of a file: all files that it reaches and that reach it.
func circleOf(calls map[string][]string, name string) (circle []string) {
	for other := range reachable(calls, name) {
		if reachable(calls, other)[name] {
			circle = append(circle, other)
		}
	}
	slices.Sort(circle)
	return circle
}

// reachable returns the files that a file uses, directly or through others.
func reachable(calls map[string][]string, from string) map[string]bool {
	seen := map[string]bool{}
	for next := []string{from}; len(next) > 0; {
		name := next[len(next)-1]
		next = next[:len(next)-1]
		for _, other := range calls[name] {
			if !seen[other] {
				seen[other] = true
				next = append(next, other)
			}
		}
	}
	return seen
}
