package bench

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"

	"nvmecr/nvmf"
)

// GlusterFS on one host: a server with a brick, the network, and a client with FUSE.
// The brick is in memory, like the namespace of nvmecr's target. The benchmark uses
// neither the management daemon nor the configuration of the host. Two files have the
// settings that the daemon would write for a volume.

// glusterName is the name of the peer.
const glusterName = "GlusterFS, a brick in memory"

// glusterScript mounts memory at $1, and GlusterFS with $2 bytes of it. It runs in its
// own network namespace, in which no other process reaches the server. The daemons end
// with this process, which is the first process of its PID namespace.
const glusterScript = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o nosuid,nodev,size=$(($2 + 67108864)) nvmecr-bench "$1"
mkdir "$1/brick" "$1/mounted"
ip link set lo up
cat >"$1/server.vol" <<END
volume posix
  type storage/posix
  option directory $1/brick
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume brick
  type performance/io-threads
  subvolumes locks
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.bind-address 127.0.0.1
  option transport.socket.listen-port 24007
  option auth.addr.brick.allow 127.0.0.1
  subvolumes brick
end-volume
END
cat >"$1/client.vol" <<END
volume client
  type protocol/client
  option transport-type tcp
  option remote-host 127.0.0.1
  option remote-port 24007
  option remote-subvolume brick
end-volume
volume write-behind
  type performance/write-behind
  subvolumes client
end-volume
END
glusterfsd --no-daemon -f "$1/server.vol" -l "$1/server.log" </dev/null >&2 &
glusterfs --no-daemon -f "$1/client.vol" -l "$1/client.log" "$1/mounted" </dev/null >&2 &
tries=0
until grep -q " $1/mounted fuse" /proc/mounts && mkdir "$1/mounted/there" 2>/dev/null; do
	tries=$((tries + 1))
	[ $tries -lt 300 ] || { grep -h " [EC] " "$1"/*.log | tail -n 3 >&2; exit 1; }
	sleep 0.1
done
rmdir "$1/mounted/there"
echo mounted
exec cat >/dev/null
`

// startGluster starts the server and the client. The error says what is missing.
func (e *Env) startGluster(ctx context.Context, size nvmf.Bytes) (*mountpoint, error) {
	for _, program := range []string{"glusterfsd", "glusterfs", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%s is not installed", program)
		}
	}
	return e.mount(ctx, size, glusterScript, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID|syscall.CLONE_NEWNET)
}
