package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/google/uuid"

	"nvmecr/nvmf"
)

// XFS on Linux's NVMe/TCP host, on a target like that of nvmecr's store. It shows the
// performance of the same namespace through the kernel.

// kernelHostName is the name of the peer.
const kernelHostName = "XFS on Linux's NVMe/TCP host"

// kernelHostScript connects to the namespace of subsystem $5 at $3, port $4, as host $6, and mounts
// XFS on it below $1. If the script is killed and cannot disconnect, the kernel does so five
// seconds after the target has ended.
const kernelHostScript = `set -e
mount --make-rprivate /
modprobe -q nvme_tcp 2>/dev/null || true
[ -e /dev/nvme-fabrics ] || { echo "this kernel has no NVMe/TCP host (nvme_tcp)" >&2; exit 1; }
nvme connect -t tcp -a "$3" -s "$4" -n "$5" -q "nqn.2014-08.org.nvmexpress:uuid:$6" -I "$6" --reconnect-delay=1 --ctrl-loss-tmo=5 >/dev/null
trap 'nvme disconnect -n "$5" >/dev/null' EXIT
device() {
	for d in /sys/block/nvme*n*; do
		case ${d##*/} in *c*n*) continue ;; esac
		[ "$(cat "$d/device/subsysnqn" 2>/dev/null)" != "$1" ] || { echo "/dev/${d##*/}"; return; }
	done
}
tries=0
until [ -b "$(device "$5")" ]; do
	tries=$((tries + 1))
	[ $tries -lt 300 ] || { echo "the kernel has no device for $5" >&2; exit 1; }
	sleep 0.1
done
mkdir "$1/mounted"
mkfs.xfs -q -K -f "$(device "$5")"
mount "$(device "$5")" "$1/mounted"
echo mounted
cat >/dev/null
umount "$1/mounted"
rmdir "$1/mounted"
`

// startKernelHost mounts XFS on its own target. Its error says what is missing.
func (e *Env) startKernelHost(ctx context.Context, size nvmf.Bytes) (*mountpoint, error) {
	for _, program := range []string{"nvme", "mkfs.xfs"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%s is not installed", program)
		}
	}
	size = max(size.AlignUp(nvmf.MiB), 512*nvmf.MiB) // the smallest size that XFS accepts
	nqn := targetNQN + "-" + filepath.Base(e.scratch)
	t, err := e.startTargetAs(ctx, nqn, fmt.Sprintf("mem:%d", uint64(size)))
	if err != nil {
		return nil, err
	}
	if err := touch(ctx, t.ids[0]); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	m, err := e.mount(ctx, size, kernelHostScript, syscall.CLONE_NEWNS, t.ids[0].Address, t.ids[0].Service, nqn, uuid.NewString())
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	m.below = t
	return m, nil
}
