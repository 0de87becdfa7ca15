package e2e

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// Features that need the view: the list of docs/programs.md, "What needs the view". All other tests must pass without it (make
// test-nofuse).
const (
	otherPrograms  = "Programs that the library is not in"
	programsHere   = "Programs and libraries in the mount"
	sharedMappings = "Large files mapped without a copy"
)

// needsView skips the test without FUSE.
func needsView(t *testing.T, s *demo.Stage, what string) {
	t.Helper()
	if r := sh(t, s, `test -n "$NVMECR_EXPORT"`, "--log", "info", "--name", "probe"); r.code != 0 {
		t.Skipf("there is no view here, which this needs: %s", what)
	}
}

// TestWhatNeedsTheView checks that the list in the docs is that of the tests.
func TestWhatNeedsTheView(t *testing.T) {
	page, err := os.ReadFile("../../docs/programs.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## What needs the view\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^- \*\*(.*?)\*\*`).FindAllStringSubmatch(section, -1) {
		names = append(names, m[1])
	}
	assert.ElementsMatch(t, []string{otherPrograms, programsHere, sharedMappings}, names)
}

// staticAppend builds a statically linked program that appends a line to a file and prints the file.
func staticAppend(t *testing.T, s *demo.Stage) string {
	program := filepath.Join(s.Dir, "static")
	out, err := exec.Command("gcc", "-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/static.c").CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// TestView checks that the kernel shows each process its own files.
func TestView(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	needsView(t, s, otherPrograms)
	out := sh(t, s, `set -e; echo hi > /nvmecr/a; mkdir /nvmecr/d; cp /bin/echo /nvmecr/d
		env -i cat $NVMECR_EXPORT/self/a; $NVMECR_EXPORT/self/d/echo ran
		echo more >> /nvmecr/a; env -i cat $NVMECR_EXPORT/self/a
		env -i sh -c "echo written > $NVMECR_EXPORT/self/b"; cat /nvmecr/b
		env -i rm $NVMECR_EXPORT/self/d/echo; ls /nvmecr/d; env -u LD_PRELOAD readlink $NVMECR_EXPORT/self`).ok(t)
	assert.Equal(t, "hi\nran\nhi\nmore\nwritten\njob\n", out)
	// Data written a moment ago is visible.
	out = sh(t, s, `set -e; i=0; while [ $i -lt 20 ]; do i=$((i+1)); printf '#!/bin/sh\necho %s\n' $i > /nvmecr/s.$i; chmod +x /nvmecr/s.$i
		test $(env -i $NVMECR_EXPORT/self/s.$i) = $i; echo $i > /nvmecr/n; test $(env -i cat $NVMECR_EXPORT/self/n) = $i; done; echo done`).ok(t)
	assert.Equal(t, "done\n", out)
	assert.NoDirExists(t, strings.TrimSpace(sh(t, s, "echo $NVMECR_EXPORT").ok(t)))
	assert.Equal(t, "none\n", sh(t, s, `echo ${NVMECR_EXPORT:-none}`, "--fuse=off").ok(t))
}

// TestViewOfRanks checks that each rank sees its own files in the view while all ranks write.
func TestViewOfRanks(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	needsView(t, s, otherPrograms)
	for _, l := range launchers(t, s) {
		script := filepath.Join(s.Dir, "rank.sh")
		require.NoError(t, os.WriteFile(script, []byte(`r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
echo of $r > /nvmecr/mine; echo $(env -u LD_PRELOAD readlink $NVMECR_EXPORT/self) $(cat $NVMECR_EXPORT/self/mine)
`), 0o600))
		line := strings.Join(demo.MPIRun("mpirun."+l.mpi, 3, "sh", script), " ")
		got := strings.Fields(sh(t, s, line, "--name", l.mpi).ok(t))
		require.Len(t, got, 9)
		for rank := range 3 {
			assert.Contains(t, strings.Join(got, " "), fmt.Sprintf("%dof3 of %d", rank, rank))
		}
	}
}

// TestMountPoint checks that, if the directory of --mount exists, programs without the library find the files there, and other processes
// do not.
func TestMountPoint(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("a mount namespace takes root")
	}
	s := newStage(t)
	needsView(t, s, otherPrograms)
	static, dir := staticAppend(t, s), t.TempDir()
	out := sh(t, s, fmt.Sprintf(`set -e; echo one > %[1]s/a; %[2]s %[1]s/a; cp /bin/echo %[1]s; env -i %[1]s/echo two
		printf '#!%[1]s/echo\n' > %[1]s/script; chmod +x %[1]s/script; env -i %[1]s/script three | sed "s|.*/script|script|"; ls %[1]s`, dir, static), "--mount", dir).ok(t)
	assert.Equal(t, "one\nstatic\ntwo\nscript three\na\necho\nscript\n", out)
	// A statically linked program can be the job itself.
	assert.Equal(t, "one\nstatic\nstatic\n", call(t, s, "run", "--mount", dir, "--", static, filepath.Join(dir, "a")).ok(t))
	call(t, s, "run", "--mount", dir, "--fuse=off", "--", static, filepath.Join(dir, "a")).refused(t, "statically linked")
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, names, "nothing went to the directory below")
}

// TestInheritedForReading checks that programs without the library read files that they inherit from shells of ranks.
func TestInheritedForReading(t *testing.T) {
	t.Parallel()
	for _, s := range []*demo.Stage{newStage(t), newRankStage(t)} {
		needsView(t, s, otherPrograms)
		script := filepath.Join(s.Dir, "rank.sh")
		require.NoError(t, os.WriteFile(script, []byte(`r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
printf 'of\nrank %s\n' $r > /nvmecr/in.$r; (read x; env -i cat) < /nvmecr/in.$r; exec env -i cat < /nvmecr/in.$r
`), 0o600))
		for _, l := range launchers(t, s) {
			line := strings.Join(demo.MPIRun("mpirun."+l.mpi, 2, "sh", script), " ")
			got := strings.Split(sh(t, s, line, "--name", l.mpi).ok(t), "\n")
			assert.ElementsMatch(t, []string{"rank 0", "of", "rank 0", "rank 1", "of", "rank 1", ""}, got)
		}
	}
}

// TestInheritedIsCurrent checks that in one tree such a program reads what its rank has written over the data of another one, and not
// synced; and that a program does not have the library if LD_PRELOAD is replaced.
func TestInheritedIsCurrent(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	needsView(t, s, otherPrograms)
	script := filepath.Join(s.Dir, "rank.sh")
	require.NoError(t, os.WriteFile(script, []byte(`if [ $OMPI_COMM_WORLD_RANK = 0 ]; then
	echo old bytes > /nvmecr/in
	echo > $0.there
	while [ ! -e $0.read ]; do sleep 0.01; done
else
	while [ ! -e $0.there ]; do sleep 0.01; done
	exec 3<>/nvmecr/in
	printf new >&3
	env -i cat < /nvmecr/in
	LD_PRELOAD= cat < /nvmecr/in
	echo > $0.read
fi
`), 0o600))
	line := strings.Join(demo.MPIRun("mpirun.openmpi", 2, "sh", script), " ")
	assert.Equal(t, "new bytes\nnew bytes\n", sh(t, s, line).ok(t))
}

// TestInheritedByMovedLinker checks that a program has the library, and shares the offset of what it inherits, if the name of its dynamic
// linker is at its end. patchelf moves it there.
func TestInheritedByMovedLinker(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	path, err := exec.LookPath("dd")
	require.NoError(t, err)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "dd"), moveLinker(t, b), 0o700))
	assert.Equal(t, "1234|5678", sh(t, s, `printf 12345678 > /nvmecr/in; (`+s.Dir+`/dd bs=4 count=1 status=none; printf '|'; cat) < /nvmecr/in`).ok(t))
}

// moveLinker moves the name of the dynamic linker to the end of a program.
func moveLinker(t *testing.T, b []byte) []byte {
	const at, size, count = 64, 56, 56 // of program headers; their number
	order := binary.NativeEndian
	for p := b[at:]; len(p) > len(b)-at-size*int(order.Uint16(b[count:])); p = p[size:] {
		if elf.ProgType(order.Uint32(p)) == elf.PT_INTERP {
			name := b[order.Uint64(p[8:]):][:order.Uint64(p[32:])]
			moved := append(slices.Clone(b), name...)
			header := len(b) - len(p)
			order.PutUint64(moved[header+8:], uint64(len(b)))
			copy(moved[order.Uint64(p[8:]):], strings.Repeat("X", len(name)-1))
			return moved
		}
	}
	require.Fail(t, "there is no dynamic linker")
	return nil
}

// serverOf returns the id of the process that exports a view.
func serverOf(t *testing.T, view string) int {
	processes, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, dir := range processes {
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may have ended
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if strings.HasSuffix(string(command), "\x00serve\x00") && strings.Contains(string(environ), "NVMECR_EXPORT="+view+"\x00") {
			pid, err := strconv.Atoi(filepath.Base(dir))
			require.NoError(t, err)
			return pid
		}
	}
	require.Fail(t, "nobody exports "+view)
	return 0
}

// TestServeKilled checks that the files survive when a server is killed with its view.
func TestServeKilled(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	needsView(t, s, otherPrograms)
	script := `echo one > /nvmecr/a; echo $NVMECR_EXPORT; while [ ! -e ` + filepath.Join(s.Dir, "go") + ` ]; do sleep 0.01; done
		env -i cat $NVMECR_EXPORT/self/a; echo $?; echo two >> /nvmecr/a && cat /nvmecr/a`
	job, err := s.Start([]string{s.Nvmecr, "run", "--", "sh", "-c", script})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(job.Stdout.Lines()) > 0 }, hang, time.Millisecond)
	view := job.Stdout.Lines()[0]
	require.NoError(t, syscall.Kill(serverOf(t, view), syscall.SIGKILL))
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "go"), nil, 0o600))
	require.NoError(t, job.Wait(t.Context()), "%v", job.Stderr.Lines())
	assert.Equal(t, []string{view, "1", "one", "two"}, job.Stdout.Lines())
	assert.NoDirExists(t, view, "what is left of the view goes with the run")
}

// TestServeStopped checks that a stopped server does not delay other runs of the host.
func TestServeStopped(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	needsView(t, s, otherPrograms)
	end := filepath.Join(s.Dir, "end")
	job, err := s.Start([]string{s.Nvmecr, "run", "--", "sh", "-c", "echo $NVMECR_EXPORT; until test -e " + end + "; do sleep 0.01; done"})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(job.Stdout.Lines()) > 0 }, hang, time.Millisecond)
	server := serverOf(t, job.Stdout.Lines()[0])
	stop(t, server)
	assert.Equal(t, "goes on\n", sh(t, s, "echo goes on", "--name", "another").ok(t))
	require.NoError(t, syscall.Kill(server, syscall.SIGCONT))
	require.NoError(t, os.WriteFile(end, nil, 0o600))
	require.NoError(t, job.Wait(t.Context()), "%v", job.Stderr.Lines())
}

// TestStoppedServerOfAnotherRun checks that a server that does not answer, of a stopped run, does not affect other runs.
func TestStoppedServerOfAnotherRun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	needsView(t, s, otherPrograms)
	job, err := s.Start([]string{s.Nvmecr, "run", "--name", "stopped", "--", "sh", "-c", "echo $NVMECR_EXPORT; exec sleep 3600"})
	require.NoError(t, err)
	defer job.Kill()
	require.Eventually(t, func() bool { return len(job.Stdout.Lines()) > 0 }, hang, time.Millisecond)
	server := serverOf(t, job.Stdout.Lines()[0])
	stop(t, server)
	defer func() { _ = syscall.Kill(server, syscall.SIGCONT) }()
	r := sh(t, s, `ls $NVMECR_EXPORT/self && echo x > /nvmecr/x`, "--name", "other")
	r.ok(t)
	assert.NotContains(t, r.stderr, "serve")
}

// TestNamelessFilesGoOn checks that an unlinked file, such as a here-document, keeps its content after exec, and for a child after the
// end of its parent.
func TestNamelessFilesGoOn(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const script = `TMPDIR=/nvmecr bash -c 'printf -v long %090000d 0; wc -c <<< "$long"'
		bash -c 'exec 3<> /nvmecr/t 4< /nvmecr/t; rm /nvmecr/t; echo one >&3; (while kill -0 $$ 2> /dev/null; do :; done; echo two >&3; cat <&4) &' | cat
		ls -A /nvmecr`
	for _, view := range []string{"job", "rank"} {
		t.Run(view, func(t *testing.T) {
			assert.Equal(t, "90001\none\ntwo\n", sh(t, s, script, "--view", view, "--name", view, "--size", "64M").ok(t))
		})
	}
}
