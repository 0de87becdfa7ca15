package hosts

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// output runs a command on this machine.
func output(argv []string) (string, error) {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// TestHosts checks that hosts have different identities, reach each other, and do not after a cut or a kill.
func TestHosts(t *testing.T) {
	dir, err := os.MkdirTemp("", "hosts-")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	n := New(t, dir, "n1", "n2")
	one, two := n.Host("n1"), n.Host("n2")

	const facts = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; readlink /proc/self/ns/pid; ls /tmp | grep -c other; id -u"
	a, err := output(one.In("sh", "-c", "touch /tmp/other; "+facts))
	require.NoError(t, err)
	b, err := output(two.In("sh", "-c", facts))
	require.NoError(t, err)
	was := strings.Fields(a)
	for i, fact := range strings.Fields(b)[:5] {
		assert.NotEqual(t, was[i], fact)
	}
	assert.Equal(t, "65534", was[5])

	reach := two.In("bash", "-c", "exec 3<>/dev/tcp/n1/7; cat <&3")
	listen := exec.Command(one.Root("python3")[0], one.Root("python3", "-c", `
import socket
l = socket.create_server(("", 7))
print("up", flush=True)
while True:
    c, _ = l.accept(); c.sendall(b"hello"); c.close()`)[1:]...)
	up, err := listen.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, listen.Start())
	_, err = up.Read(make([]byte, 3))
	require.NoError(t, err)
	out, err := output(reach)
	require.NoError(t, err, out)
	assert.Equal(t, "hello", out)
	one.Cut()
	_, err = output(append([]string{"timeout", "1"}, reach...))
	require.Error(t, err)
	one.Join()
	out, err = output(reach)
	require.NoError(t, err, out)
	assert.Equal(t, "hello", out)

	out, err = output(two.In(n.Agent(), "n1", "echo $(hostname) $HOME; exit 0"))
	require.NoError(t, err, out)
	assert.Equal(t, "n1 "+n.dir, out)
	_, err = output(two.In(n.Agent(), "n1", "exit 7"))
	require.ErrorContains(t, err, "exit status 7")

	one.Kill()
	require.Error(t, listen.Wait(), "its processes are gone")
	one.Boot()
	c, err := output(one.In("sh", "-c", facts))
	require.NoError(t, err)
	again := strings.Fields(c)
	assert.Equal(t, was[:2], again[:2])
	assert.NotEqual(t, was[2], again[2], "boot id")
	assert.Equal(t, "0", again[4], "/tmp is new")
}

// TestLimit checks that a link is not faster than its rate and delay.
func TestLimit(t *testing.T) {
	dir, err := os.MkdirTemp("", "hosts-")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	n := New(t, dir, "n1", "n2")
	const bytes, rate, delay = 1 << 20, 100e6, 5 * time.Millisecond
	n.Host("n1").Limit(rate, delay)
	echo := exec.Command(n.Host("n2").Root("python3")[0], n.Host("n2").Root("python3", "-c", `
import socket
listener = socket.create_server(("", 7))
print("ready", flush=True)
one, _ = listener.accept()
one.sendall(one.recv(1))
while one.recv(65536):
    pass
`)[1:]...)
	ready, err := echo.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, echo.Start())
	t.Cleanup(func() { _ = echo.Wait() })
	_, err = bufio.NewReader(ready).ReadString('\n')
	require.NoError(t, err)
	out, err := output(n.Host("n1").Root("python3", "-c", `
import socket, sys, time
one = socket.create_connection(("n2", 7))
begin = time.monotonic()
one.sendall(b"x")
one.recv(1)
print(time.monotonic() - begin)
begin = time.monotonic()
one.sendall(bytes(int(sys.argv[1])))
one.shutdown(socket.SHUT_WR)
one.recv(1)
print(time.monotonic() - begin)
`, strconv.Itoa(bytes)))
	require.NoError(t, err, out)
	var roundTrip, transfer float64
	_, err = fmt.Sscan(out, &roundTrip, &transfer)
	require.NoError(t, err, out)
	assert.GreaterOrEqual(t, roundTrip, (2 * delay).Seconds())
	assert.GreaterOrEqual(t, transfer, 8*bytes/rate)
	t.Logf("round trip %.2f ms, %.1f Mbit/s", roundTrip*1e3, 8*bytes/transfer/1e6)
}
