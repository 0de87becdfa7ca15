package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/cli"
	"nvmecr/internal/shortdir"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/provision/provisiontest"
)

// admin runs nvmecr admin and returns its output.
func admin(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errors bytes.Buffer
	root := newRoot()
	root.SetArgs(append([]string{"admin"}, args...))
	root.SetOut(&out)
	code = cli.Tell(root.Execute(), &errors)
	return out.String(), errors.String(), code
}

// hang is longer than anything takes on a busy machine.
const hang = 5 * time.Minute

// startTarget starts a target with a pool and waits until it can be administered.
func startTarget(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	socket := filepath.Join(dir, "s")
	cmd := nvmecr("nvmecr", "target", "--listen", "127.0.0.1:0", "--admin", socket, "--pool", "file:"+filepath.Join(dir, "pool"))
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	t.Setenv("NVMECR_PROVISIONER", "nvmecr:"+socket)
	require.Eventually(t, func() bool { _, _, code := admin(t, "list"); return code == 0 }, hang, 10*time.Millisecond)
	return cmd
}

// TestAdmin makes the calls of an administrator, also after the target was killed.
func TestAdmin(t *testing.T) {
	dir := shortdir.New(t)
	cmd := startTarget(t, dir)
	out, _, code := admin(t, "create", "melt", "3M", "--host", provisiontest.HostA)
	require.Zero(t, code)
	id, err := nvmf.ParseTransportID(strings.TrimSpace(out))
	require.NoError(t, err, "what it prints is what --target takes")
	v, err := provisiontest.Dial(id, provisiontest.HostA, dhchap.Keys{})
	require.NoError(t, err)
	_, err = v.WriteAt(bytes.Repeat([]byte{5}, 4096), 8192)
	require.NoError(t, err)
	require.NoError(t, v.Close())
	_, _, code = admin(t, "limit", "melt", "64M")
	require.Zero(t, code)

	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait()
	startTarget(t, dir)
	out, _, code = admin(t, "list", "--json")
	require.Zero(t, code)
	var list []provision.Namespace
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	require.Len(t, list, 1)
	id = list[0].Targets[0]
	list[0].Targets = nil
	assert.Equal(t, provision.Namespace{Job: "melt", State: provision.Ready, Size: 3 * nvmf.MiB,
		Hosts: []string{provisiontest.HostA}, Rate: 64 * nvmf.MiB}, list[0])
	_, err = provisiontest.Dial(id, provisiontest.HostB, dhchap.Keys{})
	require.ErrorIs(t, err, nvmf.ErrHostRefused)
	v, err = provisiontest.Dial(id, provisiontest.HostA, dhchap.Keys{})
	require.NoError(t, err)
	got := make([]byte, 4096)
	_, err = v.ReadAt(got, 8192)
	require.NoError(t, err)
	assert.Equal(t, bytes.Repeat([]byte{5}, 4096), got)
	require.NoError(t, v.Close())

	out, _, code = admin(t, "list")
	require.Zero(t, code)
	assert.Contains(t, out, "64 MiB/s")
	_, _, code = admin(t, "limit", "melt", "off")
	require.Zero(t, code)
	_, _, code = admin(t, "expose", "melt")
	require.Zero(t, code)
	_, err = provisiontest.Dial(id, provisiontest.HostA, dhchap.Keys{})
	require.ErrorIs(t, err, nvmf.ErrHostRefused)
	for range 2 {
		_, _, code = admin(t, "delete", "melt")
		require.Zero(t, code)
	}
	out, _, code = admin(t, "list", "--json")
	require.Zero(t, code)
	assert.Equal(t, "[]\n", out)
}

// TestAdminKeys checks that a host exposed with keys has to authenticate, also to the next target.
func TestAdminKeys(t *testing.T) {
	dir := shortdir.New(t)
	cmd := startTarget(t, dir)
	secret := dhchap.NewSecret(dhchap.SHA256)
	file := filepath.Join(dir, "keys")
	require.NoError(t, os.WriteFile(file, []byte(provisiontest.HostA+" "+secret.Reveal()+"\n"), 0o600))
	out, _, code := admin(t, "create", "melt", "1M", "--host", provisiontest.HostA, "--dhchap-keys", file)
	require.Zero(t, code)
	id, err := nvmf.ParseTransportID(strings.TrimSpace(out))
	require.NoError(t, err)
	check := func() {
		_, err = provisiontest.Dial(id, provisiontest.HostA, dhchap.Keys{})
		require.ErrorIs(t, err, nvmf.ErrAuthentication)
		v, err := provisiontest.Dial(id, provisiontest.HostA, dhchap.Keys{Host: secret})
		require.NoError(t, err)
		require.NoError(t, v.Close())
	}
	check()
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait()
	startTarget(t, dir)
	out, _, code = admin(t, "list", "--json")
	require.Zero(t, code)
	assert.NotContains(t, out, "DHHC")
	var list []provision.Namespace
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	require.Len(t, list, 1)
	assert.True(t, list[0].Authenticate)
	id = list[0].Targets[0]
	check()
	for args, text := range map[string]string{
		"expose melt --dhchap-keys " + file:                                   "without a host",
		"expose melt " + provisiontest.HostB + " --dhchap-keys " + file:       provisiontest.HostB + " has no key",
		"expose melt " + provisiontest.HostA + " --dhchap-keys " + file + "x": file + "x",
	} {
		_, stderr, code := admin(t, strings.Fields(args)...)
		assert.NotZero(t, code, args)
		assert.Contains(t, stderr, text, args)
		assert.NotContains(t, stderr, "DHHC")
	}
	check()
	t.Setenv("NVMECR_DHCHAP_KEYS", file)
	_, stderr, code := admin(t, "expose", "melt")
	require.Zero(t, code, stderr)
	_, err = provisiontest.Dial(id, provisiontest.HostA, dhchap.Keys{Host: secret})
	require.Error(t, err, "hidden")
	_, stderr, code = admin(t, "expose", "melt", provisiontest.HostA)
	require.Zero(t, code, stderr)
	check()
	_, stderr, code = admin(t, "create", "other", "1M")
	require.Zero(t, code, stderr)
}

func TestAdminUsage(t *testing.T) {
	t.Setenv("NVMECR_PROVISIONER", "")
	none := filepath.Join(shortdir.New(t), "none")
	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"list", 2, "--provisioner"},
		{"list --provisioner x", 2, "nvmecr:SOCKET"},
		{"list --provisioner iscsi:/x", 2, "iscsi"},
		{"list --provisioner nvmecr:/x?y=z", 2, "takes none"},
		{"list --provisioner nvmecr:" + none, 1, "nvmecr target --admin"},
		{"create melt --provisioner nvmecr:" + none, 2, "takes JOB SIZE, and was given 1 argument"},
		{"create melt lots --provisioner nvmecr:" + none, 2, "lots"},
		{"limit melt lots --provisioner nvmecr:" + none, 2, "nor off"},
	} {
		_, stderr, code := admin(t, strings.Fields(c.args)...)
		assert.Equal(t, c.code, code, c.args)
		assert.Contains(t, stderr, c.text, c.args)
	}
	for args, text := range map[string]string{
		"":                      "--namespace",
		"--pool mem:1M":         "--admin",
		"--admin /x":            "--pool",
		"--admin /x --pool y:z": "file:DIRECTORY",
		"--admin /x --pool mem:1M --nqn nqn.2014-08.org:" + strings.Repeat("x", 180): "too long",
	} {
		cmd := newRoot()
		cmd.SetArgs(append([]string{"target"}, strings.Fields(args)...))
		require.ErrorContains(t, cmd.Execute(), text, fmt.Sprintf("%q", args))
	}
}

// TestAdminChecksFirst checks that a create whose namespace cannot be exposed leaves nothing.
func TestAdminChecksFirst(t *testing.T) {
	dir := shortdir.New(t)
	startTarget(t, dir)
	file := filepath.Join(dir, "keys")
	require.NoError(t, os.WriteFile(file, []byte(provisiontest.HostA+" "+dhchap.NewSecret(dhchap.SHA256).Reveal()+"\n"), 0o600))
	for args, text := range map[string]string{
		"create melt 1M --host node7": `host "node7"`,
		"create melt 1M --host " + provisiontest.HostB + " --dhchap-keys " + file: provisiontest.HostB + " has no key",
		"create melt 1X --host " + provisiontest.HostA:                            "1X",
	} {
		_, errs, code := admin(t, strings.Fields(args)...)
		assert.NotZero(t, code, args)
		assert.Contains(t, errs, text)
		out, _, code := admin(t, "list", "--json")
		require.Zero(t, code)
		assert.Equal(t, "[]\n", out, args)
	}
}
