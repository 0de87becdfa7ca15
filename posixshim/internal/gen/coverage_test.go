package main

import (
	"debug/elf"
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
	known, calls := readTable(t).names(), fileCalls(t)
	for _, name := range calls {
		assert.True(t, known[name], "%s takes a file but is not in calls.txt", name)
	}
	assert.Greater(t, len(calls), 250)
}

// installed are programs and libraries that work on files, as distributions
// ship them. Those that are not installed are passed over.
var installed = strings.Fields(`
	/bin/bash /bin/cp /bin/dash /bin/dd /bin/ls /bin/mv /bin/rm /bin/tar /bin/touch
	/usr/bin/du /usr/bin/find /usr/bin/gfortran /usr/bin/gmx /usr/bin/gmx_mpi /usr/bin/install /usr/bin/lmp
	/usr/bin/python3 /usr/bin/rsync /usr/bin/sort /usr/bin/sqlite3 /usr/bin/split /usr/bin/truncate
	/usr/lib/x86_64-linux-gnu/hdf5/*/lib*.so
	/usr/lib/x86_64-linux-gnu/libgfortran.so.*
	/usr/lib/x86_64-linux-gnu/libgromacs*.so.*
	/usr/lib/x86_64-linux-gnu/libhdf5*.so.*
	/usr/lib/x86_64-linux-gnu/liblammps*.so.*
	/usr/lib/x86_64-linux-gnu/libmpi*.so.*
	/usr/lib/x86_64-linux-gnu/libmuparser.so.*
	/usr/lib/x86_64-linux-gnu/libnetcdf.so.*
	/usr/lib/x86_64-linux-gnu/libopen-*.so.*
	/usr/lib/x86_64-linux-gnu/libpython3*.so.*
	/usr/lib/x86_64-linux-gnu/libsqlite3.so.*
	/usr/lib/x86_64-linux-gnu/libstdc++.so.*
	/usr/lib/x86_64-linux-gnu/libtorch*.so.*
	/usr/lib/x86_64-linux-gnu/libc10.so.*
	/usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi3/mca_*io*.so
	/usr/lib/python3/dist-packages/h5py/*.so
	/usr/lib/python3/dist-packages/mpi4py/*.so
	/usr/lib/python3/dist-packages/netCDF4/*.so
	/usr/lib/python3/dist-packages/numpy/*/*.so
	/usr/lib/python3.*/lib-dynload/*.so`)

// TestInstalledProgramsAreCovered asks programs which calls on files they
// import, by all the names that the C library has for them.
func TestInstalledProgramsAreCovered(t *testing.T) {
	known := readTable(t).names()
	takesFile := map[string]bool{}
	for name := range known {
		takesFile[plainName(name)] = true
	}
	for _, name := range fileCalls(t) {
		takesFile[plainName(name)] = true
	}
	looked := map[string]bool{}
	for _, pattern := range installed {
		paths, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, link := range paths {
			path, err := filepath.EvalSymlinks(link)
			require.NoError(t, err)
			if looked[path] {
				continue
			}
			f, err := elf.Open(path)
			if err != nil {
				continue // a script, or one that the linker reads
			}
			looked[path] = true
			symbols, err := f.ImportedSymbols()
			require.NoError(t, f.Close())
			require.NoError(t, err, path)
			for _, s := range symbols {
				if strings.HasPrefix(s.Version, "GLIBC") && takesFile[plainName(s.Name)] {
					assert.True(t, known[s.Name], "%s calls %s, which is not in calls.txt", path, s.Name)
				}
			}
		}
	}
	assert.Greater(t, len(looked), 20)
	t.Logf("looked at %d programs and libraries", len(looked))
}

// plainName is the name of a call without what the C library adds to it for
// another size of offsets, for checks, or for itself.
func plainName(name string) string {
	name = strings.TrimLeft(name, "_")
	for _, prefix := range []string{"IO_", "isoc99_", "isoc23_", "libc_"} {
		name = strings.TrimPrefix(name, prefix)
	}
	for _, suffix := range []string{"_chk", "_2", "64", "_unlocked"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return strings.TrimSuffix(name, "64") // as in pread64_chk
}

// fileCalls are what the headers declare on paths, descriptors and streams.
func fileCalls(t *testing.T) []string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not installed")
	}
	cmd := exec.Command(gcc, "-E", "-P", "-D_GNU_SOURCE", "-")
	cmd.Stdin = strings.NewReader(fileHeaders)
	out, err := cmd.Output()
	require.NoError(t, err)
	var found []string
	for _, d := range strings.Split(strings.Join(strings.Fields(string(out)), " "), ";") {
		i := strings.Index(d, "extern ")
		if i < 0 {
			continue
		}
		m := declaration.FindStringSubmatch(d[i:])
		if m != nil && fileParameter.MatchString(m[2]) && !slices.Contains(otherCalls, m[1]) {
			found = append(found, m[1])
		}
	}
	return found
}

func readTable(t *testing.T) *table {
	t.Helper()
	text, err := os.ReadFile("../../calls.txt")
	require.NoError(t, err)
	table, err := parse(string(text))
	require.NoError(t, err)
	return table
}

// TestLibraryExportsTheTable compares what the built library exports.
func TestLibraryExportsTheTable(t *testing.T) {
	library := filepath.Join(t.TempDir(), "shim.so")
	sources, err := filepath.Glob("../../shim/*/*.c")
	require.NoError(t, err)
	args := []string{"-I../../shim", "-D_GNU_SOURCE", "-U_FORTIFY_SOURCE", "-O0", "-fPIC", "-fvisibility=hidden", "-shared", "-o", library}
	out, err := exec.Command("gcc", append(args, sources...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command("nm", "-D", "--defined-only", library).Output()
	require.NoError(t, err)
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		got = append(got, strings.Fields(line)[2])
	}
	var want []string
	for _, c := range readTable(t).calls {
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
