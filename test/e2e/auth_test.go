package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAuthentication runs jobs on a target that requires authentication, with keys of `nvmecr keygen`.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const host = "nqn.2014-08.org.example:host"
	key := func(hash string) string {
		r := call(t, s, "keygen", "--hash", hash)
		r.ok(t)
		return strings.TrimSpace(r.stdout)
	}
	dir := t.TempDir()
	keep := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), mode))
		require.NoError(t, os.Chmod(path, mode), "whatever the umask")
		return path
	}
	ours, theirs, other := key("256"), key("512"), key("384")
	secret, ctrl := keep("secret", ours, 0o600), keep("ctrl", theirs, 0o400)
	wrong, loose := keep("wrong", other, 0o600), keep("loose", ours, 0o644)
	keys := keep("keys", "# one host\n"+host+" "+ours+" "+theirs, 0o600)
	_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:64M", "--dhchap-keys", keys)
	_, open := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:64M")

	r := call(t, s, "keygen", "--tls")
	r.ok(t)
	tlsKey := strings.TrimSpace(r.stdout)
	psk := keep("psk", tlsKey, 0o600)

	secrets := []string{"--hostnqn", host, "--dhchap-secret", secret, "--dhchap-ctrl-secret", ctrl}
	r = sh(t, s, "seq 1000 > /nvmecr/a; env", append(secrets, "--name", "kept", "--target", target)...)
	r.ok(t)
	assert.NotContains(t, r.stdout, "DHHC", "no secret is in the environment")
	r = sh(t, s, "wc -l < /nvmecr/a", "--name", "kept")
	r.ok(t)
	assert.Equal(t, "1000\n", r.stdout, "the next run has the same secrets")
	r = call(t, s, append([]string{"ls", "--name", "kept", "--target", target}, secrets...)...)
	r.ok(t)
	assert.Contains(t, r.stdout, "/a")

	// The embedded target requires authentication, too.
	r = sh(t, s, "echo > /nvmecr/a", append(secrets, "--name", "own", "--size", "64M")...)
	r.ok(t)
	kept, _ := exec.Command("grep", "-rlaF", ours, s.Dir).Output() // status 1: no file has it
	assert.Empty(t, string(kept), "no file of the run has the secret")

	for name, c := range map[string]struct {
		flags []string
		words []string
	}{
		"no secret":         {[]string{"--hostnqn", host, "--target", target}, []string{"authentication failed", host, "--dhchap-secret"}},
		"wrong secret":      {[]string{"--hostnqn", host, "--target", target, "--dhchap-secret", wrong}, []string{"the target refuses host " + host}},
		"wrong target":      {[]string{"--hostnqn", host, "--target", target, "--dhchap-secret", secret, "--dhchap-ctrl-secret", wrong}, []string{host + " refuses the target"}},
		"stranger":          {[]string{"--hostnqn", host + "2", "--target", target, "--dhchap-secret", secret}, []string{"does not allow", host + "2"}},
		"target not asking": {append(secrets, "--target", open), []string{"does not authenticate"}},
		"readable by all":   {[]string{"--hostnqn", host, "--target", target, "--dhchap-secret", loose}, []string{"mode 0644", "chmod 600 " + loose}},
		"no TLS there":      {[]string{"--target", open, "--tls-psk", psk}, []string{"--tls-psk", "TLS at this address"}},
		"TLS and no target": {[]string{"--tls-psk", psk}, []string{"--tls-psk", "a target of its own"}},
		"secret for TLS":    {[]string{"--target", open, "--tls-psk", secret}, []string{"--tls-psk", "looks like NVMeTLSkey-1"}},
		"no such file":      {[]string{"--target", target, "--dhchap-secret", dir + "/none"}, []string{"--dhchap-secret", dir + "/none"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := call(t, s, append(append([]string{"run", "--name", "refused"}, c.flags...), "--", "echo", "started")...)
			r.refused(t, c.words...)
			assert.NotContains(t, r.stdout+r.stderr, "DHHC")
			assert.NotContains(t, r.stdout+r.stderr, tlsKey[17:])
		})
	}
	for name, c := range map[string]struct {
		flags []string
		words []string
	}{
		"keys readable by all": {[]string{"--dhchap-keys", loose}, []string{"mode 0644"}},
		"keys without an NQN":  {[]string{"--dhchap-keys", secret}, []string{"line 1", "begin with an NQN"}},
		"host without a key":   {[]string{"--dhchap-keys", keys, "--allow-host", host + "2"}, []string{"no line for host " + host + "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := call(t, s, append([]string{"target", "--listen", "127.0.0.1:0", "--namespace", "mem:64M"}, c.flags...)...)
			r.refused(t, c.words...)
		})
	}
}

// TestTLS runs a job on a target whose connections all use TLS.
func TestTLS(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const host = "nqn.2014-08.org.example:host"
	dir := t.TempDir()
	key := func(bits string) string {
		r := call(t, s, "keygen", "--tls", "--hash", bits)
		r.ok(t)
		return strings.TrimSpace(r.stdout)
	}
	keep := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
		return path
	}
	for _, bits := range []string{"256", "384"} {
		ours := key(bits)
		psk, other := keep("psk"+bits, ours), keep("other"+bits, key(bits))
		_, target := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:64M", "--tls-keys", keep("keys"+bits, host+" "+ours))
		flags := []string{"--name", "tls" + bits, "--hostnqn", host, "--tls-psk", psk}
		sh(t, s, "seq 100000 > /nvmecr/a", append(flags, "--target", target)...).ok(t)
		r := sh(t, s, "wc -l < /nvmecr/a", "--name", "tls"+bits)
		r.ok(t)
		assert.Equal(t, "100000\n", r.stdout, "the next run has the same key")
		r = call(t, s, append([]string{"ls", "--target", target}, flags...)...)
		r.ok(t)
		assert.Contains(t, r.stdout, "/a")
		for name, c := range map[string]struct {
			flags []string
			words []string
		}{
			"no key":      {[]string{"--hostnqn", host}, []string{"--tls-psk"}},
			"another key": {[]string{"--hostnqn", host, "--tls-psk", other}, []string{"authentication failed", "check that --tls-psk"}},
			"stranger":    {[]string{"--hostnqn", host + "2", "--tls-psk", psk}, []string{"authentication failed", host + "2"}},
		} {
			r := call(t, s, append([]string{"run", "--name", "refused", "--target", target}, append(c.flags, "--", "echo", "started")...)...)
			r.refused(t, c.words...)
			assert.NotContains(t, r.stdout+r.stderr, ours[17:], name)
		}
	}
}

// TestOwnTargetAsksForKeys checks that the embedded target refuses a host with the right NQN but without the key of the run, and accepts
// processes of the job. The key is removed with the run.
func TestOwnTargetAsksForKeys(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	r := sh(t, s, `echo data > /nvmecr/a
		`+s.Nvmecr+` ls || exit 1
		test "$(stat -c %a "$NVMECR_DHCHAP_SECRET")" = 600 || exit 2
		echo "$NVMECR_DHCHAP_SECRET" >&2
		unset NVMECR_DHCHAP_SECRET
		`+s.Nvmecr+` ls && exit 3
		`+s.Nvmecr+` keygen > "$PWD/wrong" && chmod 600 "$PWD/wrong" || exit 4
		`+s.Nvmecr+` ls --dhchap-secret "$PWD/wrong" && exit 5
		true`, "--name", "keys")
	r.ok(t)
	assert.Equal(t, 1, strings.Count(r.stdout, "/a"))
	assert.Contains(t, r.stderr, "authentication failed")
	assert.Contains(t, r.stderr, "--dhchap-secret")
	assert.Contains(t, r.stderr, "the target refuses host")
	for line := range strings.Lines(r.stderr) {
		if strings.HasSuffix(line, "run.key\n") {
			assert.NoFileExists(t, strings.TrimSpace(line))
		}
	}
}

// TestTargetDeniesByDefault checks that a target which other hosts reach needs a list of permitted hosts.
func TestTargetDeniesByDefault(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for name, c := range map[string]struct {
		flags []string
		words []string
	}{
		"everywhere":         {[]string{"--listen", "0.0.0.0:0"}, []string{"--allow-host", "--allow-any-host", "127.0.0.1"}},
		"everywhere, IPv6":   {[]string{"--listen", "[::]:0"}, []string{"--allow-any-host"}},
		"one of several":     {[]string{"--listen", "127.0.0.1:0", "--listen", "10.1.2.3:0"}, []string{"10.1.2.3", "--allow-any-host"}},
		"a name":             {[]string{"--listen", "example.org:0"}, []string{"--allow-any-host"}},
		"nobody":             {[]string{"--listen", "127.0.0.1:0", "--allow-host", ""}, []string{"--allow-host is empty"}},
		"an unknown hash":    {[]string{"--listen", "127.0.0.1:0", "--dhchap-digests", "md5"}, []string{"--dhchap-digests", "sha256"}},
		"an unknown group":   {[]string{"--listen", "127.0.0.1:0", "--dhchap-dhgroups", "ffdhe1"}, []string{"--dhchap-dhgroups", "ffdhe2048"}},
		"an address without": {[]string{"--listen", "::1"}, []string{"[::1]:4420"}},
	} {
		r := call(t, s, append([]string{"target", "--namespace", "mem:16M"}, c.flags...)...)
		r.refused(t, c.words...)
		assert.NotContains(t, r.stdout, "trtype", name)
	}
	for _, flags := range [][]string{
		{"--listen", "[::1]:0"}, {"--listen", "0.0.0.0:0", "--allow-any-host"}, {"--listen", "0.0.0.0:0", "--allow-host", "nqn.2014-08.org.example:h"},
	} {
		serve(t, s, append(flags, "--namespace", "mem:16M")...)
	}
}
