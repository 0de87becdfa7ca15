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

// A loopback is a file system on a loop device over a file in memory: what a
// kernel file system does on a medium as fast as that of a target over memory.
//
// It lives in a mount namespace of a process of its own, which ends with its
// standard input: whatever becomes of us, the kernel then takes the mounts, the
// loop device and the memory back. Others reach it by that process's root.
type loopback struct {
	cmd   *exec.Cmd
	stdin io.Closer
	dir   string
	mark  string // an empty directory of everybody's, on which it is mounted
}

// loopbackScript mounts memory at $1, in it a file of $2 bytes, on that a file
// system of kind $3. All of the file is written first: memory that was never
// touched is slow. mkfs must not give it back.
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

// loopbackStart is how long it may take to be there.
const loopbackStart = time.Minute

// startLoopback makes a file system of kind "ext4" or "xfs". The error says
// what is missing.
func (e *Env) startLoopback(ctx context.Context, kind string, size nvmf.Bytes) (*loopback, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("mounting takes root")
	}
	if _, err := exec.LookPath("mkfs." + kind); err != nil {
		return nil, fmt.Errorf("mkfs.%s is not installed", kind)
	}
	size = max(size.AlignUp(nvmf.MiB), 512*nvmf.MiB)
	if size > freeMemory()/2 {
		return nil, fmt.Errorf("a file of %s in memory would take more than half of what is free", size)
	}
	mark, err := os.MkdirTemp(e.scratch, kind+"-")
	if err != nil {
		return nil, err
	}
	var said bytes.Buffer
	l := &loopback{mark: mark, cmd: exec.CommandContext(ctx, "sh", "-c", loopbackScript, "sh", mark, strconv.FormatUint(uint64(size), 10), kind)}
	l.cmd.Stderr = &said
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: syscall.CLONE_NEWNS}
	if l.stdin, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := l.cmd.StdoutPipe()
	if err == nil {
		err = l.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("a mount namespace of our own: %w", err)
	}
	late := time.AfterFunc(loopbackStart, func() { _ = l.cmd.Process.Kill() })
	defer late.Stop()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "mounted\n" {
		_ = l.Close() // it has ended, and says why
		return nil, fmt.Errorf("%s on a loop device: %s", kind, strings.ReplaceAll(strings.TrimSpace(said.String()), "\n", "; "))
	}
	l.dir = filepath.Join("/proc", strconv.Itoa(l.cmd.Process.Pid), "root", mark, "mounted")
	return l, nil
}

// Close takes it away.
func (l *loopback) Close() error {
	l.stdin.Close()
	_ = l.cmd.Wait() // the mounts go with it, however it ends
	return os.Remove(l.mark)
}
