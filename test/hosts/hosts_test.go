package hosts

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// output runs a command on this machine.
func output(argv []string) (string, error) {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Hosts differ in what tells real ones apart, reach each other, and do not when a link is cut or a host killed.
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
