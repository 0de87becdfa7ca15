//go:build !race

package posixshim_test

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestTwoMounts runs a program that uses two mounts. The second mount shows the same files, for reading.
func TestTwoMounts(t *testing.T) {
	const second = "/nvmecr.all"
	t.Setenv("NVMECR_MOUNT_ALL", second) // nvmecr serve needs it too
	program := compile(t, "gcc", "mounts.c", "-Wall", "-Wextra", "-Werror")
	for _, viewed := range []bool{false, true} {
		t.Run(map[bool]string{false: "alone", true: "with a view"}[viewed], func(t *testing.T) {
			s := newStore(t)
			if viewed {
				s = s.view()
			}
			assert.Equal(t, twoMounts, output(t, s.command(program, mount, second)))
		})
	}
}

// TestRankReadsAnother checks that a rank can read the files of another rank, and can still write its own.
func TestRankReadsAnother(t *testing.T) {
	const second = "/nvmecr.all"
	t.Setenv("NVMECR_MOUNT_ALL", second)
	s := newStore(t)
	rank := func(n int, script string) *exec.Cmd {
		cmd := s.command("sh", "-ec", script)
		cmd.Env = append(cmd.Env, fmt.Sprintf("OMPI_COMM_WORLD_RANK=%d", n), "OMPI_COMM_WORLD_SIZE=2")
		return cmd
	}
	output(t, rank(0, "echo zero > /nvmecr/f; echo of zero > /nvmecr/g"))
	output(t, rank(1, "echo one > /nvmecr/f; echo of one > /nvmecr/h"))
	assert.Equal(t, "one\nzero\nof zero\nof one\nf\ng\nh\n", output(t, rank(1, "cat /nvmecr/f; cd /nvmecr.all; cat f g h; ls")))
	stdout, stderr, err := finish(t, rank(1, "cp /nvmecr.all/g /nvmecr/mine; cat /nvmecr/mine; echo >> /nvmecr.all/g"))
	assert.Error(t, err)
	assert.Equal(t, "of zero\n", stdout)
	assert.Contains(t, stderr, "Read-only file system")
}

const twoMounts = `write: ok
rename into the other: EXDEV
rename out of it: EXDEV
renameat: EXDEV
link: EXDEV
linkat: EXDEV
unlink: EROFS
create: EROFS
write: EROFS
relative to a directory of the other: content
absolute in spite of one: content
devices differ: 1, f_fsid: 1, fstat agrees: 1
symlink: ok
link: content
link leads to /nvmecr.all/d/f, on its device: 1
link to the link: ok
twice: content
both locked: 1
mapped: con
first: co
after dup2: co
the same offset: ntent
chdir: ok
first: in /nvmecr/d, real /nvmecr/d/f, 9 is /nvmecr.all/d/f
chdir: ok
second: in /nvmecr.all/d, real /nvmecr.all/d/f, 9 is /nvmecr.all/d/f
relative: content
by way of the root: content
content/nvmecr.all/d
system: ok
child, of its parent's: c
child, relative: content
child, by its path: content
child, in a directory: content
child, rename: EXDEV
child: in /nvmecr.all/d, real /nvmecr.all/d/f, 9 is /nvmecr.all/d/f
child 0
executed: in /nvmecr.all/d, real /nvmecr.all/d/f, 9 is /nvmecr.all/d/f
executed, of the one before: ontent
executed, relative: content
executed, in a directory: content
executed, the same file: 1
`
