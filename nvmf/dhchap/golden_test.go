package dhchap

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGolden repeats recorded authentications with SPDK. Given the same random values,
// nvmecr's end must send the same messages, and accept those of SPDK.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/spdk-*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var head []string
		var body [][2]string
		for line := range strings.Lines(string(text) + "end\n") {
			f := strings.Fields(line)
			switch f[0] {
			case "#":
			case "host", "controller", "end":
				if head != nil {
					repeat(t, head, body)
				}
				head, body = f, nil
			default:
				body = append(body, [2]string(f))
			}
		}
	}
}

// repeat runs nvmecr's end of a recorded authentication. head[0] is the role of the
// peer, host or controller.
func repeat(t *testing.T, head []string, body [][2]string) {
	c := Config{HostNQN: head[1], SubNQN: head[2]}
	var err error
	c.Keys.Host, err = ParseSecret(head[3])
	require.NoError(t, err)
	c.Keys.Controller, err = ParseSecret(head[4])
	require.NoError(t, err)

	var values [][]byte
	var sequence uint32
	var messages [][2]string
	for _, line := range body {
		switch line[0] {
		case "random":
			values = append(values, unhex(t, line[1]))
		case "sequence":
			sequence = uint32(number(t, line[1]))
		default:
			messages = append(messages, line)
		}
	}
	if head[0] == "host" {
		ours := NewController(c)
		ours.random, ours.sequence = script(t, values...), func() uint32 { return sequence }
		for _, m := range messages {
			if m[0] == "peer" {
				ours.Take(unhex(t, m[1]))
			} else {
				assert.Equal(t, m[1], hex.EncodeToString(ours.Give(MaxMessage)))
			}
		}
		require.NoError(t, ours.Err())
		assert.True(t, ours.Authenticated())
		return
	}
	var offered negotiate
	require.Nil(t, offered.decode(unhex(t, messages[0][1])))
	c.Offer = offered.offer
	ours := NewHost(c)
	ours.random, ours.sequence = script(t, values...), func() uint32 { return sequence }
	next := ours.Start()
	for _, m := range messages {
		if m[0] == "ours" {
			assert.Equal(t, m[1], hex.EncodeToString(next))
		} else {
			next, err = ours.Answer(unhex(t, m[1]))
			require.NoError(t, err)
		}
	}
	assert.True(t, ours.Done())
}

func unhex(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}
