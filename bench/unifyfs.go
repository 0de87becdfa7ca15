package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"nvmecr/bench/result"
	"nvmecr/bench/workers"
	"nvmecr/nvmf"
)

// UnifyFS on one host: a server, and a library in the ranks. The library is preloaded,
// like nvmecr's. A process can have only one of the two libraries, so these ranks are
// not those of the application. Their data goes to memory that they share with the
// server. The server gets its location by fsync and close.

// unifyfsName is the name of the peer.
const unifyfsName = "UnifyFS, its log in memory"

// unifyfsLibrary mounts automatically in a program that does not know UnifyFS. The
// other libraries of UnifyFS wait until the program calls unifyfs_mount.
const unifyfsLibrary = "libunifyfs_preload_gotcha.so"

// unifyfsScript starts the server $4, with files below $3, a directory in memory at $1,
// and $2 bytes of shared memory that only the server and the ranks see. The server ends
// with this process at the latest: after a crash of its ranks it may hang when it is
// asked to end.
const unifyfsScript = `set -e
mount --make-rprivate /
mount -t tmpfs -o nosuid,nodev nvmecr-bench "$1"
mount -t tmpfs -o nosuid,nodev,size="$2" nvmecr-bench /dev/shm
export UNIFYFS_RUNSTATE_DIR="$1" UNIFYFS_SHAREDFS_DIR="$1" UNIFYFS_LOG_DIR="$1" UNIFYFS_MOUNTPOINT="$3" UNIFYFS_DAEMONIZE=off
setpriv --pdeathsig KILL "$4" </dev/null >&2 &
tries=0
until [ -e "$1/unifyfsd.pids" ]; do
	tries=$((tries + 1))
	[ -e /proc/$!/exe ] && [ $tries -lt 300 ] || { tail -n 3 "$1"/unifyfsd.log* >&2; exit 1; }
	sleep 0.1
done
echo mounted
cat >/dev/null
kill $!
tries=0
while [ -e /proc/$!/exe ] && [ $tries -lt 100 ]; do
	tries=$((tries + 1))
	sleep 0.1
done
`

// unifyfs returns the side of UnifyFS. It returns none if the user names peers, or if
// this host does not support UnifyFS.
func (b *testbed) unifyfs(ctx context.Context, res *result.Result) ([]*side, error) {
	if len(b.env.Peers) > 0 {
		return nil, nil
	}
	s, err := b.unifyfsSide(ctx)
	if err != nil {
		res.NotMeasured(unifyfsName, "%s", err)
		return nil, ctx.Err()
	}
	return []*side{s}, nil
}

// unifyfsSide returns a side with ranks under the library of UnifyFS, and the server.
// The error says what is missing.
func (b *testbed) unifyfsSide(ctx context.Context) (*side, error) {
	if b.env.remote() {
		return nil, errors.New("the ranks are on other hosts")
	}
	server, library, err := findUnifyFS()
	if err != nil {
		return nil, err
	}
	mount := filepath.Join("/unifyfs", filepath.Base(b.env.scratch)) // a path that does not exist on this host
	m, err := b.env.mount(ctx, 2*b.env.namespace(b.env.Size), unifyfsScript, syscall.CLONE_NEWNS, mount, server)
	if err != nil {
		return nil, fmt.Errorf("%s does not start: %w", server, err)
	}
	b.closers = append(b.closers, m)
	argv := append([]string{"nsenter", "--mount=/proc/" + strconv.Itoa(m.cmd.Process.Pid) + "/ns/mnt", "env", "LD_PRELOAD=" + library},
		b.env.unifyfsSettings(m.mark, mount)...)
	group, err := b.env.startGroup(ctx, base(), append(argv, b.env.Rank)...)
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, closer(group.Stop))
	return unifyfsRanks(ctx, group, filepath.Join(mount, "nvmecr-bench"))
}

// unifyfsRanks returns a side of the group's ranks that write to a directory, which
// they create. That fails if UnifyFS is not mounted.
func unifyfsRanks(ctx context.Context, group *workers.Group, dir string) (*side, error) {
	if _, err := group.DoAll(ctx, "mkdir "+dir); err != nil {
		return nil, err
	}
	s := &side{name: unifyfsName, group: group, path: checkpoints(dir), memory: true}
	s.clear = func(ctx context.Context, k int) error { // a truncated file keeps its part of the log
		_, err := group.Do(ctx, func(rank int) string { return "unlink " + s.path(rank, k) })
		return err
	}
	return s, nil
}

// findUnifyFS returns the server in PATH, and the library installed with it.
func findUnifyFS() (server, library string, err error) {
	if server, err = exec.LookPath("unifyfsd"); err != nil {
		return "", "", errors.New("unifyfsd is not installed, or not in PATH")
	}
	prefix := filepath.Dir(filepath.Dir(server))
	for _, lib := range []string{"lib", "lib64", "lib/x86_64-linux-gnu"} {
		library = filepath.Join(prefix, lib, unifyfsLibrary)
		if _, err := os.Stat(library); err == nil {
			return server, library, nil
		}
	}
	return "", "", fmt.Errorf("%s has no %s beside it: build UnifyFS with --enable-preload", server, unifyfsLibrary)
}

// unifyfsSettings returns environment variables of the ranks. Each rank has a log of
// two checkpoints. A write takes whole chunks of the log. A rank reads only its own
// data, so it may find the data without the server: UnifyFS has a setting for such
// programs.
func (e *Env) unifyfsSettings(dir, mount string) []string {
	log := (2*e.Size + 2*e.Transfer + nvmf.MiB).AlignUp(nvmf.MiB)
	return []string{
		"UNIFYFS_PRELOAD_MOUNTPOINT=" + mount, "UNIFYFS_RUNSTATE_DIR=" + dir, "UNIFYFS_CLIENT_LOCAL_EXTENTS=on",
		"UNIFYFS_LOGIO_SHMEM_SIZE=" + bytesOf(log), "UNIFYFS_LOGIO_SPILL_SIZE=0", "UNIFYFS_LOGIO_CHUNK_SIZE=" + bytesOf(e.Transfer),
	}
}
