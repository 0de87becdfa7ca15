//go:build !race

// The race detector needs several times the memory, so this test does not run with it.

package target_test

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
)

// resident returns the resident memory of a process, and its number of threads.
func resident(t *testing.T, pid int) (bytes nvmf.Bytes, threads int) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	number := func(name string) int {
		m := regexp.MustCompile(name + `:\s+(\d+)`).FindSubmatch(status)
		require.NotNil(t, m, "%s", status)
		n, err := strconv.Atoi(string(m[1]))
		require.NoError(t, err)
		return n
	}
	return nvmf.Bytes(number("VmRSS")) << 10, number("Threads")
}

// maxOfDiscovery limits the target's memory for one discovery connection: two of the largest answers, the buffers and slots of the
// connection, as much garbage that Go's collector has not freed yet, and a thread.
const maxOfDiscovery = 2*(2*(64<<10)+(64<<10)) + (64 << 10)

// TestDiscoveryMemory checks that discovery connections whose hosts read no answers need a bounded part of the target's memory, however
// many there are.
func TestDiscoveryMemory(t *testing.T) {
	process, addr := child(t, "mem:1048576")
	pid := process.Process.Pid
	before, _ := resident(t, pid)
	n := 0
	for _, connections := range []int{512, 1024} {
		for ; n < connections; n++ {
			greed(t, addr, net.IPv4(127, 0, byte(1+n/200), byte(1+n%200)))
		}
		settle(t, pid)
		after, threads := resident(t, pid)
		t.Logf("%d connections: %d KiB resident more than %d, %d threads", connections, (after-before)>>10, before>>10, threads)
		places := nvmf.Bytes(1024 / 2) // the most unauthenticated connections
		assert.Less(t, after-before, places*maxOfDiscovery)
	}
}

// greed connects a host from an address of its own. The host asks for the discovery log 200 times, and reads no answer.
func greed(t *testing.T, addr net.Addr, from net.IP) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}
	c, err := dialer.Dial("tcp", addr.String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
	require.NoError(t, c.(*net.TCPConn).SetReadBuffer(4096))
	h := &client{t: t, c: c, send: pdu.Rules{FromHost: true}, recv: pdu.Rules{MaxData: 1 << 20}}
	h.initialise(0)
	h.discover(0)
	var all []byte
	for range 200 {
		s := h.command(nvme.AdminGetLogPage)
		s.SetLogPage(nvme.LogDiscovery, 0, 64<<10)
		s.SGL().Set(nvme.SGLTransport, 0, 64<<10)
		all = append(all, h.encode(s, nil)...)
	}
	h.write(all)
}

// settle waits until the target is idle, that is, until its processor time does not change any more.
func settle(t *testing.T, pid int) {
	for last := ""; ; time.Sleep(200 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(t, err)
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')'):]))
		if now := fields[11] + " " + fields[12]; now == last { // utime and stime
			return
		} else {
			last = now
		}
	}
}
