package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"nvmecr/nvmf"
)

// A mountpoint is a file system on memory, for a comparison on a medium that is as fast
// as that of a target on memory.
//
// It is in the mount namespace of a process that ends with its standard input. So if
// the benchmark dies, the kernel removes the mounts, the loop device, the daemons and
// the memory. Other processes reach the mountpoint through /proc/PID/root of that
// process.
type mountpoint struct {
	cmd   *exec.Cmd
	stdin io.Closer
	dir   string
	mark  string    // an empty directory that all users have, on which the file system is mounted
	below io.Closer // closed after the mountpoint; nil: nothing
}

// loopbackScript mounts memory at $1, creates a file of $2 bytes in it, and mounts a
// file system of kind $3 on this file. It writes the whole file first, because memory
// that was never used is slow. mkfs must not free the memory again.
const loopbackScript = `set -e
mount --make-rprivate /
mount -t tmpfs -o size=$(($2 + 67108864)) nvmecr-bench "$1"
dd if=/dev/zero of="$1/image" bs=1M count=$(($2 / 1048576)) status=none
case $3 in
xfs) mkfs.xfs -q -K "$1/image" ;;
ext4) mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$1/image" ;;
esac
mkdir "$1/mounted"
mount -o loop "$1/image" "$1/mounted"
echo mounted
exec cat >/dev/null
`

// mountStart is the time limit for mounting.
const mountStart = time.Minute

// startLoopback creates a file system of kind "ext4" or "xfs" on a loop device. Its
// error says what is missing.
func (e *Env) startLoopback(ctx context.Context, kind string, size nvmf.Bytes) (*mountpoint, error) {
	if _, err := exec.LookPath("mkfs." + kind); err != nil {
		return nil, fmt.Errorf("mkfs.%s is not installed", kind)
	}
	return e.mount(ctx, size, loopbackScript, syscall.CLONE_NEWNS, kind)
}

// mount runs a script in new namespaces that mounts a file system below a directory.
// The arguments of the script are the directory, a size in bytes, and args. The error
// says what is missing.
func (e *Env) mount(ctx context.Context, size nvmf.Bytes, script string, namespaces uintptr, args ...string) (*mountpoint, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("mounting takes root")
	}
	size = max(size.AlignUp(nvmf.MiB), 512*nvmf.MiB)
	if size > freeMemory()/2 {
		return nil, fmt.Errorf("%s of memory would take more than half of what is free", size)
	}
	mark, err := os.MkdirTemp(e.scratch, "mount-")
	if err != nil {
		return nil, err
	}
	var said bytes.Buffer
	l := &mountpoint{mark: mark, cmd: exec.CommandContext(ctx, "sh",
		append([]string{"-c", script, "sh", mark, strconv.FormatUint(uint64(size), 10)}, args...)...)}
	l.cmd.Stderr = &said
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: namespaces}
	if l.stdin, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := l.cmd.StdoutPipe()
	if err == nil {
		err = l.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("namespaces of our own: %w", err)
	}
	late := time.AfterFunc(mountStart, func() { _ = l.cmd.Process.Kill() })
	defer late.Stop()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "mounted\n" {
		_ = l.Close() // the script has ended, and has printed the reason
		return nil, errors.New(strings.ReplaceAll(strings.TrimSpace(said.String()), "\n", "; "))
	}
	l.dir = filepath.Join("/proc", strconv.Itoa(l.cmd.Process.Pid), "root", mark, "mounted")
	return l, nil
}

// Close removes the mountpoint.
func (l *mountpoint) Close() error {
	l.stdin.Close()
	_ = l.cmd.Wait() // the mounts are removed however the process ends
	err := os.RemoveAll(l.mark)
	if l.below != nil {
		err = errors.Join(err, l.below.Close())
	}
	return err
}
