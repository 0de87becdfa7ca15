package spdk_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAuthentication runs programs on a target that requires authentication. The keys must not be visible: in arguments, variables,
// files, descriptors or messages.
func TestAuthentication(t *testing.T) {
	b := newBench(t)
	const host = "nqn.2014-08.org.example:host"
	dir := t.TempDir()
	var bodies []string // of the keys
	key := func(name string) (text, path string) {
		out, err := exec.Command(b.Nvmecr, "keygen").Output()
		require.NoError(t, err)
		text, path = strings.TrimSpace(string(out)), filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, out, 0o600))
		bodies = append(bodies, strings.Split(text, ":")[2])
		return text, path
	}
	ours, secret := key("host")
	theirs, ctrl := key("target")
	_, wrong := key("wrong")
	keys := filepath.Join(dir, "keys")
	require.NoError(t, os.WriteFile(keys, []byte(host+" "+ours+" "+theirs+"\n"), 0o600))
	job, err := b.Start([]string{b.Nvmecr, "target", "--listen", "127.0.0.1:0", "--namespace", "mem:256M", "--dhchap-keys", keys})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return job.Ended() || len(job.Stdout.Lines()) > 0 }, time.Minute, time.Millisecond)
	require.NotEmpty(t, job.Stdout.Lines(), "the target has ended")
	target := job.Stdout.Lines()[0]

	silent := func(t *testing.T, texts ...string) {
		for _, body := range bodies {
			for _, text := range texts {
				assert.NotContains(t, text, body)
			}
		}
	}
	flags := func(more ...string) []string { return append(append([]string{"--hostnqn", host}, more...), fresh...) }
	good := []string{"--dhchap-secret", secret, "--dhchap-ctrl-secret", ctrl}
	stdout, stderr, state := b.run(t, "spdk", target, flags(good...), "sh", "-c", `seq 1000 >/nvmecr/f
		for p in self $PPID; do tr '\0' '\n' </proc/$p/cmdline; tr '\0' '\n' </proc/$p/environ; done
		sh -c 'wc -l </nvmecr/f; for f in /proc/self/fd/*; do readlink $f; done; true'`)
	require.True(t, state.Success(), "%s\n%s%s", state, stdout, stderr)
	assert.Empty(t, stderr)
	assert.Contains(t, stdout, "1000\n")
	silent(t, stdout)

	for name, c := range map[string]struct {
		keys []string
		want string
	}{
		"no secret":           {nil, "there is no secret; give one with --dhchap-secret"},
		"wrong secret":        {[]string{"--dhchap-secret", wrong}, "the target refuses host " + host},
		"wrong target":        {[]string{"--dhchap-secret", secret, "--dhchap-ctrl-secret", wrong}, host + " refuses the target"},
		"the target's secret": {[]string{"--dhchap-ctrl-secret", ctrl}, "none of this host"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, state := b.run(t, "spdk", target, flags(append(c.keys, "--name", "refused")...), "sh", "-c", "echo x >/nvmecr/f")
			assert.False(t, state.Success())
			assert.Contains(t, stderr, "authentication failed")
			assert.Contains(t, stderr, c.want)
			silent(t, stdout, stderr)
		})
	}
	for _, body := range bodies {
		kept, _ := exec.Command("grep", "-rlaF", body, b.Dir).Output() // status 1: no file has it
		assert.Empty(t, string(kept), "no file of the run has the key")
	}
	silent(t, strings.Join(job.Stdout.Lines(), "\n"))
}
