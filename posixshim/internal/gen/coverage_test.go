package main

import (
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

// fileHeaders are those of the C library that declare calls on files.
const fileHeaders = `
#include <aio.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <termios.h>
#include <unistd.h>
#include <utime.h>
#include <wchar.h>
`

var (
	declaration = regexp.MustCompile(`^extern [\w\s*]+?\**\s*(?:__attribute__\s*\(\(.*?\)\)\s*)?(\w+)\s*\((.*)`)
	// The C library names the parameters of such calls consistently.
	fileParameter = regexp.MustCompile(`int __?\w*fd\w*\b|__fildes|const char \*(?:__restrict )?__(file|path|name|filename|dir|from|to|old|new|template|link)\b|__path\b|DIR \*|FILE \*|char \*__template`)
	// Names that the parameters' names mistake for calls on files.
	otherCalls = strings.Fields("getenv secure_getenv setenv unsetenv setdomainname sethostname setlogin")
)

// TestEveryFileCallIsInTheTable asks the C library's headers which calls take
// a path, a descriptor or a stream: each is interposed or left out on purpose.
func TestEveryFileCallIsInTheTable(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not installed")
	}
	cmd := exec.Command(gcc, "-E", "-P", "-D_GNU_SOURCE", "-")
	cmd.Stdin = strings.NewReader(fileHeaders)
	out, err := cmd.Output()
	require.NoError(t, err)
	text, err := os.ReadFile("../../calls.txt")
	require.NoError(t, err)
	table, err := parse(string(text))
	require.NoError(t, err)
	known := table.names()
	found := 0
	for _, d := range strings.Split(strings.Join(strings.Fields(string(out)), " "), ";") {
		i := strings.Index(d, "extern ")
		if i < 0 {
			continue
		}
		m := declaration.FindStringSubmatch(d[i:])
		if m == nil || !fileParameter.MatchString(m[2]) || slices.Contains(otherCalls, m[1]) {
			continue
		}
		found++
		assert.True(t, known[m[1]], "%s takes a file but is not in calls.txt", m[1])
	}
	assert.Greater(t, found, 250)
}

// TestLibraryExportsTheTable compares what the built library exports.
func TestLibraryExportsTheTable(t *testing.T) {
	library := filepath.Join(t.TempDir(), "shim.so")
	sources, err := filepath.Glob("../../shim/*.c")
	require.NoError(t, err)
	args := []string{"-D_GNU_SOURCE", "-U_FORTIFY_SOURCE", "-O0", "-fPIC", "-fvisibility=hidden", "-shared", "-o", library}
	out, err := exec.Command("gcc", append(args, sources...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command("nm", "-D", "--defined-only", library).Output()
	require.NoError(t, err)
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		got = append(got, strings.Fields(line)[2])
	}
	text, err := os.ReadFile("../../calls.txt")
	require.NoError(t, err)
	table, err := parse(string(text))
	require.NoError(t, err)
	var want []string
	for _, c := range table.calls {
		want = append(append(want, c.name), c.aka...)
	}
	assert.ElementsMatch(t, want, got)
}

// names returns every name that the table knows.
func (t *table) names() map[string]bool {
	known := map[string]bool{}
	for _, c := range t.calls {
		known[c.name] = true
		for _, a := range c.aka {
			known[a] = true
		}
	}
	for _, s := range t.skipped {
		for _, n := range s.names {
			known[n] = true
		}
	}
	return known
}
