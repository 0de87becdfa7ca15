package dhchap

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSecret(t *testing.T) {
	for h, size := range map[Hash]int{NoHash: 32, SHA256: 32, SHA384: 48, SHA512: 64} {
		s := NewSecret(h)
		assert.Len(t, *s.key, size)
		again, err := ParseSecret(s.Reveal())
		require.NoError(t, err)
		assert.True(t, fmt.Sprintf("%x", *s.key) == fmt.Sprintf("%x", *again.key) && s.hash == again.hash)
		assert.NotEqual(t, s.Reveal(), NewSecret(h).Reveal())
		assert.False(t, s.IsZero())
	}
	assert.True(t, Secret{}.IsZero())
}

// TestSecretText parses a secret made with Python's zlib and base64, and invalid
// variants of it.
func TestSecretText(t *testing.T) {
	const good = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
	edit := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	s, err := ParseSecret(good)
	require.NoError(t, err)
	assert.Equal(t, good, s.Reveal())
	assert.EqualValues(t, 31, (*s.key)[31])
	for text, wrong := range map[string]string{
		"":                   "looks like",
		"DHHC-1:":            "looks like",
		"DHHC-1:01:":         "looks like",
		"DHHC-1:01::":        "has 0",
		" " + good:           "looks like",
		good + "\n":          "looks like",
		good[:len(good)-1]:   "colon at its end",
		edit(":01:", ":04:"): "the hash",
		edit(":01:", ":11:"): "the hash",
		edit(":01:", ":1:"):  "looks like",
		edit("AAEC", "AAED"): "CRC",
		edit("AAEC", "AA=C"): "base64",
		edit("AAEC", ""):     "has 29",
	} {
		_, err := ParseSecret(text)
		require.ErrorContains(t, err, wrong, text)
		assert.NotContains(t, err.Error(), "AwQFBgcI", "the error shows the secret")
	}
}

// TestSecretIsNotShown checks that no usual way to print or log a value shows a
// secret.
func TestSecretIsNotShown(t *testing.T) {
	s, err := ParseSecret("DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:")
	require.NoError(t, err)
	keys := Keys{Host: s}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%T", "%p"} {
		fmt.Fprintf(&out, verb+verb+verb+verb, s, &s, keys, []any{s, &keys})
	}
	fmt.Fprintln(&out, s, keys, Config{Keys: keys}, NewHost(Config{Keys: keys}), struct{ k Keys }{keys})
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("key", "secret", s, "keys", keys)
	}
	b, err := json.Marshal(keys)
	require.NoError(t, err)
	out.Write(b)
	for _, shown := range []string{"AAEC", "AwQF", "000102", "0 1 2", "0x0, 0x1", "[0"} {
		assert.NotContains(t, out.String(), shown)
	}
	assert.Contains(t, out.String(), "DHHC-1:01:(32 bytes, not shown):")
	assert.Equal(t, "no secret", Secret{}.String())
}
