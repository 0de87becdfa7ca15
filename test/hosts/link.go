package hosts

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// linkMTU is the MTU of links with a rate: that of jumbo frames, as in networks of clusters.
const linkMTU = 9000

// linkQueue is how long a frame may be queued before it is dropped, as in a switch with a full buffer.
const linkQueue = 50 * time.Millisecond

// Limit gives a host that has just been started a link with a rate, in bits a second, and a delay one way, each in both directions. This process forwards its frames,
// since few kernels have a queueing discipline that delays: it takes processor time of the machine that real links do not.
func (h *Host) Limit(rate float64, delay time.Duration) {
	t := h.network.t
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("links with a rate are made by tap devices: %v", err)
	}
	board, pid := strconv.Itoa(h.network.board.first), strconv.Itoa(h.init.first)
	require.NoError(t, call("nsenter --target "+board+" --net ip link delete "+h.Name))
	near, err := openTap(pid, "eth0")
	require.NoError(t, err)
	far, err := openTap(board, h.Name)
	require.NoError(t, err)
	mtu := strconv.Itoa(linkMTU)
	for _, line := range []string{
		"nsenter --target " + board + " --net ip link set " + h.Name + " mtu " + mtu + " master bridge up",
		"nsenter --target " + pid + " --net ip link set eth0 address " + h.mac + " mtu " + mtu + " up",
		"nsenter --target " + pid + " --net ip addr add " + h.Address + "/24 dev eth0",
	} {
		require.NoError(t, call(line))
	}
	go forward(far, near, rate, delay)
	go forward(near, far, rate, delay)
}

// openTap creates a TAP device in the network namespace of a process.
func openTap(pid, name string) (tap int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread is in another namespace
		tap, err = openTapIn("/proc/"+pid+"/ns/net", name)
	}()
	<-done
	return tap, err
}

func openTapIn(namespace, name string) (int, error) {
	ns, err := os.Open(namespace)
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return 0, fmt.Errorf("%s: %w", namespace, err)
	}
	tap, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(tap), unix.TUNSETIFF, uintptr(unsafe.Pointer(request))); errno != 0 {
		return 0, fmt.Errorf("network device %s: %w", name, errno)
	}
	return tap, nil
}

type frame struct {
	due  time.Time
	data []byte
}

// forward forwards frames from one device to another at a rate, each after a delay. It ends with the devices.
func forward(from, to int, rate float64, delay time.Duration) {
	queue := make(chan frame, 1<<16)
	go func() {
		runtime.LockOSThread() // time.Sleep is exact to a millisecond only
		for f := range queue {
			if wait := unix.NsecToTimespec(int64(time.Until(f.due))); wait.Nano() > 0 {
				_ = unix.Nanosleep(&wait, nil)
			}
			_, _ = unix.Write(to, f.data) // fails if the device is down
		}
	}()
	defer close(queue)
	var free time.Time // when the link has sent all queued frames
	for buffer := make([]byte, linkMTU+64); ; {
		n, err := unix.Read(from, buffer)
		if err != nil {
			return
		}
		now := time.Now()
		if free.Before(now) {
			free = now
		}
		if free.Sub(now) > linkQueue {
			continue
		}
		free = free.Add(time.Duration(float64(8*n) / rate * 1e9))
		queue <- frame{free.Add(delay), append([]byte(nil), buffer[:n]...)}
	}
}
