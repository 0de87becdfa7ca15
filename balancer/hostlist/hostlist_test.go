package hostlist

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExpand(t *testing.T) {
	for _, c := range []struct{ list, want, again string }{
		{"", "", ""},
		{"cn1", "cn1", "cn1"},
		{"cn1,cn2,login", "cn1 cn2 login", "cn[1-2],login"},
		{"cn[1-3,7],a", "cn1 cn2 cn3 cn7 a", "cn[1-3,7],a"},
		{"cn[008-011]", "cn008 cn009 cn010 cn011", "cn[008-011]"},
		{"tux[0-1]x[1-2]", "tux0x1 tux0x2 tux1x1 tux1x2", "tux0x[1-2],tux1x[1-2]"},
		{"rack[1-2].site", "rack1.site rack2.site", "rack1.site,rack2.site"},
		{"n18446744073709551615", "n18446744073709551615", "n18446744073709551615"},
	} {
		names, err := Expand(c.list)
		require.NoError(t, err, c.list)
		assert.Equal(t, c.want, strings.Join(names, " "), c.list)
		short := Compress(names)
		assert.Equal(t, c.again, short)
		again, err := Expand(short)
		require.NoError(t, err)
		assert.ElementsMatch(t, names, again, short)
	}
}

func TestExpandRefuses(t *testing.T) {
	for list, says := range map[string]string{
		"cn[1-":                             "bracket",
		"cn1]":                              "not the name",
		"cn[[1]]":                           "bracket",
		"cn[a]":                             "neither a number",
		"cn[3-1]":                           "neither a number",
		"cn[]":                              "neither a number",
		"cn1,,cn2":                          "empty name",
		"a b":                               "not the name",
		"cn[1-9999999]":                     "more than",
		"cn[1-2000]x[1-2000]":               "more than",
		"cn[0-18446744073709551615]":        "neither",
		"cn[0-9223372036854775807]":         "more than",
		"a[1-99999],b[1-99999],c[1-999999]": "more than",
	} {
		_, err := Expand(list)
		assert.ErrorContains(t, err, says, list)
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"cn[1-3,7]", "a[01-02]b[1]", "[", "]", ",", "a[1-2]c,b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		names, err := Expand(list)
		if err != nil || len(names) > 1000 {
			return
		}
		again, err := Expand(Compress(names))
		require.NoError(t, err)
		for _, n := range names {
			require.Contains(t, again, n)
		}
	})
}
