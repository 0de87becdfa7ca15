package spdk_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTLS runs programs on a target with TLS, whose key must not be visible. Data written at the end of a program arrives, with or
// without OpenSSL in the program.
func TestTLS(t *testing.T) {
	target := os.Getenv("NVMECR_TEST_SPDK_TLS")
	text, err := os.ReadFile(os.Getenv("NVMECR_TEST_SPDK_TLS_KEYS"))
	if err != nil {
		t.Skip("NVMECR_TEST_SPDK_TLS is not set to the transport id of a target with TLS, and NVMECR_TEST_SPDK_TLS_KEYS to a file of keys")
	}
	b := newBench(t)
	words := strings.Fields(string(text)) // the first line
	dir := t.TempDir()
	psk := filepath.Join(dir, "psk")
	require.NoError(t, os.WriteFile(psk, []byte(words[1]+"\n"), 0o600))
	flags := append([]string{"--hostnqn", words[0], "--tls-psk", psk}, fresh...)

	stdout, stderr, state := b.run(t, "spdk", target, flags, "sh", "-c", `seq 1000 >/nvmecr/f
		for p in self $PPID; do tr '\0' '\n' </proc/$p/cmdline; tr '\0' '\n' </proc/$p/environ; done
		sh -c 'wc -l </nvmecr/f; for f in /proc/self/fd/*; do readlink $f; done; true'`)
	require.True(t, state.Success(), "%s\n%s%s", state, stdout, stderr)
	assert.Empty(t, stderr)
	assert.Contains(t, stdout, "1000\n")
	assert.NotContains(t, stdout, words[1][17:])
	assert.NotContains(t, stdout, "socket:", "in a program that is executed")

	for name, begin := range map[string]string{"": "", "OpenSSL": "import ssl, hashlib; ssl.create_default_context(); hashlib.sha256(b'x').digest()\n"} {
		stdout, stderr, state = b.run(t, "spdk", target, flags, "python3", "-c", begin+`
import atexit
f = open("/nvmecr/g", "w")  # flushed when the interpreter ends
f.write("x" * 1000)
def last():
    with open("/nvmecr/h", "w") as h: h.write("last")
atexit.register(last)
print(open("/nvmecr/g").read())
`)
		require.True(t, state.Success(), "%s: %s\n%s%s", name, state, stdout, stderr)
		assert.Empty(t, stderr)
		stdout, stderr, state = b.run(t, "spdk", target, flags[:4], "sh", "-c", "wc -c </nvmecr/g; cat /nvmecr/h")
		require.True(t, state.Success(), "%s: %s\n%s%s", name, state, stdout, stderr)
		assert.Equal(t, "1000\nlast", stdout)
	}

	// The driver go supports TLS, too.
	stdout, stderr, state = b.run(t, "go", target, flags[:4], "sh", "-c", "cat /nvmecr/h; seq 1000 >/nvmecr/g; wc -l </nvmecr/g")
	require.True(t, state.Success(), "%s\n%s%s", state, stdout, stderr)
	assert.Equal(t, "last1000\n", stdout)
}
