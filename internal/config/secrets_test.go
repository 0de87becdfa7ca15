package config

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/tlspsk"
)

// keep writes a file of secrets.
func keep(t *testing.T, text string, mode os.FileMode) string {
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, []byte(text), mode))
	require.NoError(t, os.Chmod(path, mode))
	return path
}

func TestSecrets(t *testing.T) {
	host, target := dhchap.NewSecret(dhchap.SHA256).Reveal(), dhchap.NewSecret(dhchap.SHA512).Reveal()
	clearEnv(t)
	t.Setenv("NVMECR_DHCHAP_CTRL_SECRET", keep(t, "# the target's\n\n  "+target+" # and no other\r\n", 0o400))
	c, err := resolve(t, "--dhchap-secret", keep(t, host, 0o600))
	require.NoError(t, err)
	keys, err := c.Secrets()
	require.NoError(t, err)
	assert.True(t, keys.Host.Reveal() == host && keys.Controller.Reveal() == target)
	for _, v := range c.Exports() {
		assert.NotContains(t, v, "DHHC", "an environment with a secret")
	}

	keys, err = Default().Secrets()
	require.NoError(t, err)
	assert.True(t, keys.Host.IsZero() && keys.Controller.IsZero())

	t.Chdir(filepath.Dir(c.Secret))
	c, err = resolve(t, "--dhchap-secret", "key")
	require.NoError(t, err)
	assert.True(t, filepath.IsAbs(c.Secret), "the application runs elsewhere")
	require.NoError(t, os.Symlink("key", "link"))
	_, err = readSecret("link")
	assert.NoError(t, err)
}

func TestTLSPSK(t *testing.T) {
	text := tlspsk.New(true).Reveal()
	clearEnv(t)
	t.Setenv("NVMECR_TLS_PSK", keep(t, text+"\n", 0o600))
	c, err := resolve(t)
	require.NoError(t, err)
	key, err := c.TLSPSK()
	require.NoError(t, err)
	assert.True(t, key.Reveal() == text)
	for _, v := range c.Exports() {
		assert.NotContains(t, v, "NVMeTLSkey", "an environment with a key")
	}
	key, err = Default().TLSPSK()
	require.NoError(t, err)
	assert.True(t, key.IsZero())

	for path, want := range map[string]string{
		keep(t, text, 0o640): "mode 0640",
		keep(t, dhchap.NewSecret(dhchap.SHA256).Reveal(), 0o600):        "looks like NVMeTLSkey-1",
		keep(t, "#\n"+strings.Replace(text, ":02:", ":02:A", 1), 0o600): "line 2",
		keep(t, text+" "+text, 0o600):                                   "one key and nothing else",
	} {
		_, err := (&Config{TLSKey: path}).TLSPSK()
		require.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "--tls-psk: ")
		assert.NotContains(t, err.Error(), text[18:40])
	}
	t.Chdir(filepath.Dir(c.TLSKey))
	c, err = resolve(t, "--tls-psk", "key")
	require.NoError(t, err)
	assert.True(t, filepath.IsAbs(c.TLSKey), "the application runs elsewhere")
}

func TestSecretFilesThatAreRefused(t *testing.T) {
	secret := dhchap.NewSecret(dhchap.SHA256).Reveal()
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for name, x := range map[string]struct {
		path string
		text []string
	}{
		"missing":            {filepath.Join(dir, "none"), []string{"no such file"}},
		"read by the group":  {keep(t, secret, 0o640), []string{"mode 0640", "chmod 600 "}},
		"read by others":     {keep(t, secret, 0o604), []string{"mode 0604", "chmod 600 "}},
		"written by others":  {keep(t, secret, 0o602), []string{"mode 0602", "chmod 600 "}},
		"directory":          {dir, []string{"not a regular file"}},
		"pipe":               {pipe, []string{"not a regular file"}},
		"empty":              {keep(t, "\n# nothing\n", 0o600), []string{"one key", "nvmecr keygen"}},
		"two":                {keep(t, secret+"\n"+secret, 0o600), []string{"one key"}},
		"with an NQN":        {keep(t, "nqn.2014-08.org.example:host "+secret, 0o600), []string{"one key"}},
		"mistyped":           {keep(t, "\n"+strings.Replace(secret, ":01:", ":01:A", 1), 0o600), []string{"line 2", "base64"}},
		"larger than can be": {keep(t, strings.Repeat("#\n", maxSecretFile), 0o600), []string{"larger"}},
		"a binary file":      {keep(t, "\x7fELF\x00\x00", 0o600), []string{"looks like DHHC-1"}},
		"one long line":      {keep(t, strings.Repeat("x", maxSecretFile), 0o600), []string{"looks like DHHC-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readSecret(x.path)
			require.Error(t, err)
			for _, text := range append(x.text, x.path) {
				assert.ErrorContains(t, err, text)
			}
			assert.NotContains(t, err.Error(), secret[12:30])
		})
	}
	t.Run("of another user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root can give a file away")
		}
		path := keep(t, secret, 0o600)
		require.NoError(t, os.Chown(path, 1234, -1))
		_, err := readSecret(path)
		assert.ErrorContains(t, err, "belongs to user 1234")
	})
	_, err := (&Config{ControllerSecret: pipe}).Secrets()
	assert.ErrorContains(t, err, "--dhchap-ctrl-secret: ")

	for _, key := range []string{secret, filepath.Join(dir, secret), tlspsk.New(false).Reveal()} {
		_, err := readSecret(key)
		require.ErrorContains(t, err, "a key itself")
		assert.NotContains(t, err.Error(), key[len(key)-20:])
		_, err = ReadKeys(key)
		require.ErrorContains(t, err, "a key itself")
	}
}

func TestReadKeys(t *testing.T) {
	const a, b = "nqn.2014-08.org.example:a", "nqn.2014-08.org.example:b"
	one, two := dhchap.NewSecret(dhchap.NoHash).Reveal(), dhchap.NewSecret(dhchap.SHA384).Reveal()
	keys, err := ReadKeys(keep(t, "# hosts\n"+a+" "+one+" "+two+"\n\n\t"+b+"   "+two+" # no key of ours\n", 0o600))
	require.NoError(t, err)
	assert.Len(t, keys, 2)
	assert.True(t, keys[a].Host.Reveal() == one && keys[a].Controller.Reveal() == two)
	assert.True(t, keys[b].Host.Reveal() == two && keys[b].Controller.IsZero())

	keys, err = ReadKeys(keep(t, a+"#1 "+one+" #"+two+"\n", 0o600))
	require.NoError(t, err)
	assert.True(t, keys[a+"#1"].Host.Reveal() == one && keys[a+"#1"].Controller.IsZero())

	for text, wrong := range map[string]string{
		"":                                   "nobody could connect",
		a:                                    "line 1: it has to be HOSTNQN HOSTKEY",
		a + " " + one + " " + two + " x":     "line 1: it has to be",
		"\n" + one + " " + two:               "line 2: it does not begin with an NQN",
		a + " " + one[1:]:                    "line 1: the host's key: ",
		a + " " + one + " " + two[:40]:       "line 1: the target's key: ",
		a + " " + one + "\n" + a + " " + two: "line 2: host " + a + " has a line already",
	} {
		_, err := ReadKeys(keep(t, text, 0o600))
		require.ErrorContains(t, err, wrong)
		assert.NotContains(t, err.Error(), one[12:30])
	}
	_, err = ReadKeys(keep(t, a+" "+one, 0o644))
	assert.ErrorContains(t, err, "chmod 600")
}

// FuzzReadKeys checks that errors contain nothing of the file's content.
func FuzzReadKeys(f *testing.F) {
	f.Add("nqn.2014-08.org.example:a DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:")
	f.Add("DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR: x # y")
	path := filepath.Join(f.TempDir(), "keys")
	f.Fuzz(func(t *testing.T, text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		keys, err := ReadKeys(path)
		require.Equal(t, err == nil, len(keys) > 0)
		if err != nil {
			require.NotContains(t, err.Error(), "AwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh")
		}
		for nqn, k := range keys {
			require.NoError(t, CheckNQN(nqn))
			require.False(t, k.Host.IsZero())
		}
	})
}
