package tlspsk

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Keys made with Python's zlib, base64 and hmac.
const (
	short = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
	long  = "NVMeTLSkey-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:"
	plain = "NVMeTLSkey-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
)

// TestText checks that Parse accepts the text of valid keys, and refuses texts with
// each kind of mistake without showing the key.
func TestText(t *testing.T) {
	for _, text := range []string{short, long, plain} {
		k, err := Parse(text)
		require.NoError(t, err)
		assert.Equal(t, text, k.Reveal())
		assert.False(t, k.IsZero())
	}
	for _, long := range []bool{false, true} {
		k := New(long)
		again, err := Parse(k.Reveal())
		require.NoError(t, err)
		assert.True(t, bytes.Equal(*k.key, *again.key) && len(*k.key) == map[bool]int{false: 32, true: 48}[long])
		assert.NotEqual(t, k.Reveal(), New(long).Reveal())
	}
	assert.True(t, Key{}.IsZero())
	edit := func(old, new string) string { return strings.Replace(short, old, new, 1) }
	for text, wrong := range map[string]string{
		"":                         "looks like",
		prefix:                     "looks like",
		prefix + "01:":             "looks like",
		prefix + "01::":            "has 0",
		" " + short:                "looks like",
		short + "\n":               "looks like",
		short[:len(short)-1]:       "colon at its end",
		edit("NVMeTLSkey", "DHHC"): "looks like NVMeTLSkey",
		edit(":01:", ":03:"):       "the hash",
		edit(":01:", ":11:"):       "the hash",
		edit(":01:", ":1:"):        "looks like",
		edit(":01:", ":02:"):       "32 with 02",
		edit("AAEC", "AAED"):       "CRC",
		edit("AAEC", "AA=C"):       "base64",
		edit("AAEC", "AAE\n"):      "base64",
		edit("AAEC", ""):           "has 29",
	} {
		_, err := Parse(text)
		require.ErrorContains(t, err, wrong, text)
		assert.NotContains(t, err.Error(), "AwQFBgcI", "the error shows the key")
	}
}

// TestKeyIsNotShown checks that no usual way to print or log a value shows a key.
func TestKeyIsNotShown(t *testing.T) {
	k, err := Parse(short)
	require.NoError(t, err)
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("key", "key", k)
	asJSON, err := json.Marshal(struct{ K Key }{k})
	require.NoError(t, err)
	for _, text := range []string{
		fmt.Sprint(k), fmt.Sprintf("%v %+v %#v %s %q %x %d", k, k, k, k, k, k, k),
		fmt.Sprintf("%v %+v %#v", struct{ k Key }{k}, struct{ k *Key }{&k}, []any{k}), log.String(), string(asJSON),
	} {
		for _, shown := range []string{"AAECAwQ", "00010203", "0 1 2 3", "0x0, 0x1"} {
			assert.NotContains(t, text, shown)
		}
	}
	assert.Contains(t, k.String(), "32 bytes, not shown")
	assert.Equal(t, "no TLS key", Key{}.String())
}

// TestDerive checks derived identities and TLS keys against known values.
func TestDerive(t *testing.T) {
	const host, sub = "nqn.2014-08.org.example:host", "nqn.2014-08.org.example:sub"
	for text, want := range map[string][2]string{
		short: {"NVMe0R01 " + host + " " + sub, "9d0887afe7250f0914099ba1865eb14c96bdef0edcd2d6d3033f351d45fc11b1"},
		long:  {"NVMe0R02 " + host + " " + sub, "f3dfec600526a72c237887684231b8bc949c459681a2affa62569e63df2699fe0ecf668fe1c1658f519696ab38e05e8c"},
		plain: {"NVMe0R01 " + host + " " + sub, "506d400146724c8ae171dd34530893392b5ccd3a199013b9671c4dc61256d127"},
	} {
		k, err := Parse(text)
		require.NoError(t, err)
		identity, key, err := k.Derive(host, sub)
		require.NoError(t, err)
		assert.Equal(t, want[0], identity)
		assert.Equal(t, want[1], hex.EncodeToString(key))
		_, _, err = k.Derive(host, strings.Repeat("n", 223))
		assert.ErrorContains(t, err, "too long for TLS")
	}
}
