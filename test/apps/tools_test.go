package apps

import "testing"

// TestTools runs common tools, each by a script of testdata in an empty directory.
func TestTools(t *testing.T) {
	for _, c := range []struct {
		name   string
		needs  []string
		argv   []string // before the script
		script string
		except string // files whose content differs between runs: times, inode numbers, random numbers
	}{
		{"tar", []string{"tar"}, []string{"sh"}, "tar.sh", `.*\.tar`},
		{"rsync", []string{"rsync"}, []string{"sh"}, "rsync.sh", ``},
		{"dd, find and du", nil, []string{"sh"}, "find.sh", ``},
		{"sqlite3", []string{"sqlite3"}, []string{"sh"}, "sqlite.sh", `persist.db-journal`},
		{"children", []string{"find", "tar", "gzip"}, []string{"sh"}, "children.sh", `a\.tgz`},
		{"Octave", []string{"octave-cli"}, []string{"sh"}, "octave.sh", `a\.txt`},
		{"CMake", []string{"cmake", "make"}, []string{"sh"}, "cmake.sh", `build(/.*)?|configured|built|installed/.*|all\.tar`},
		{"Python", []string{python}, []string{python}, "library.py", ``},
		{"fio", []string{"fio"}, []string{"sh"}, "fio.sh", `.*\.0\.0`},
	} {
		t.Run(c.name, func(t *testing.T) {
			need(t, c.needs...)
			s := newStage(t)
			alike(t, s, c.except, func(dir string) []string { return append(c.argv[:1:1], source(t, c.script), dir) })
		})
	}
}

// TestLanguages runs programs in languages with I/O libraries of their own.
func TestLanguages(t *testing.T) {
	for _, c := range []struct {
		name, compiler, source string
		flags                  []string
	}{
		{"C++ iostreams", "g++", "iostreams.cc", []string{"-std=c++17", "-Wall", "-Wextra", "-Werror"}},
		{"Fortran", "gfortran", "forms.f90", []string{"-Wall", "-Werror"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			program := compile(t, s, c.compiler, c.source, c.flags...)
			alike(t, s, "", func(dir string) []string { return []string{program, dir} })
		})
	}
}

// TestThreads runs posixshim's test programs with a target: threads and signals compete in the connection.
func TestThreads(t *testing.T) {
	for _, c := range []struct {
		name, source, flag string
		except             string // files whose content depends on timing
	}{
		{"OpenMP", "openmp.c", "-fopenmp", "appended"},
		{"cancelled", "cancels.c", "-pthread", `file\.\d`},
		{"interrupted", "interrupts.c", "-Wall", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			program := compile(t, s, "gcc", "../../../posixshim/testdata/"+c.source, c.flag)
			alike(t, s, c.except, func(dir string) []string { return []string{program, dir} })
		})
	}
}
