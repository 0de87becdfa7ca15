package dhchap

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestParseOffer(t *testing.T) {
	hashes, err := ParseHashes("sha512, SHA384")
	assert.NoError(t, err)
	assert.Equal(t, []Hash{SHA512, SHA384}, hashes)
	groups, err := ParseGroups("ffdhe3072,null")
	assert.NoError(t, err)
	assert.Equal(t, []Group{FFDHE3072, NullGroup}, groups)
	groups, err = ParseGroups("")
	assert.NoError(t, err)
	assert.Empty(t, groups)
	for text, want := range map[string]string{
		"md5": `"md5" is none of sha256, sha384, sha512`, "sha256,": `"" is none of`, "sha256,sha256": "twice",
	} {
		_, err := ParseHashes(text)
		assert.ErrorContains(t, err, want)
	}
	_, err = ParseGroups("ffdhe1024")
	assert.ErrorContains(t, err, "is none of null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144, ffdhe8192")
}
