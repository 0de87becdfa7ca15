package command

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/tcp"
)

// TestHangup checks that a target without key files ends regularly on SIGHUP, unless that is ignored, as by nohup.
func TestHangup(t *testing.T) {
	// Ignored signals would be inherited; caught ones are not.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	for _, ignored := range []bool{false, true} {
		cmd := nvmecr("nvmecr", "target", "--listen", "127.0.0.1:0", "--namespace", "mem:1M")
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		if ignored {
			cmd.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
			cmd.Path = "/bin/sh"
		}
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(stdout).ReadString('\n')
		require.NoError(t, err)
		id, err := nvmf.ParseTransportID(line)
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		if ignored {
			time.Sleep(100 * time.Millisecond) // time in which it would end
			conn, err := net.Dial("tcp", id.HostPort())
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		}
		require.NoError(t, cmd.Wait())
	}
}

// TestRenewedKeys checks that a target reads its key file again on SIGHUP, and keeps its keys if the file is invalid.
func TestRenewedKeys(t *testing.T) {
	const host = "nqn.2014-08.org.example:host"
	path := filepath.Join(t.TempDir(), "keys")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	old, next := dhchap.NewSecret(dhchap.SHA256), dhchap.NewSecret(dhchap.SHA256)
	write(host + " " + old.Reveal())
	cmd := nvmecr("nvmecr", "target", "--listen", "127.0.0.1:0", "--namespace", "mem:1M", "--dhchap-keys", path)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	id, err := nvmf.ParseTransportID(line)
	require.NoError(t, err)
	connect := func(s dhchap.Secret) error {
		d, err := tcp.Open(context.Background(), id, tcp.Options{HostNQN: host, Keys: dhchap.Keys{Host: s}})
		if err == nil {
			err = d.Close()
		}
		return err
	}
	said := bufio.NewReader(stderr)
	renew := func(text, says string) {
		write(text)
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		line, err := said.ReadString('\n')
		require.NoError(t, err)
		assert.Contains(t, line, says)
		assert.NotContains(t, line, next.Reveal()[10:20])
	}
	require.NoError(t, connect(old))
	renew(host+" "+next.Reveal(), "keys of 1 host")
	require.ErrorIs(t, connect(old), nvmf.ErrAuthentication)
	require.NoError(t, connect(next))
	renew(host+" "+next.Reveal()[:20], "stay as they were")
	require.NoError(t, connect(next))
}
