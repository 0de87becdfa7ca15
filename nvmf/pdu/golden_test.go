package pdu_test

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf/pdu"
)

// golden is a recorded PDU.
type golden struct {
	name  string
	bytes []byte
}

// rules returns the rules that the PDU was sent with.
func (g *golden) rules() pdu.Rules {
	t := pdu.Type(g.bytes[0])
	digests := strings.Contains(g.name, "-digests-") && t != pdu.TypeICReq && t != pdu.TypeICResp
	return pdu.Rules{
		FromHost:     t == pdu.TypeICReq || t == pdu.TypeCapsuleCmd || t == pdu.TypeH2CData,
		HeaderDigest: digests, DataDigest: digests, MaxData: 1 << 20, MaxCapsuleData: 1 << 20,
	}
}

// loadGolden reads the files of testdata, whose first lines describe the format.
func loadGolden(tb testing.TB) []golden {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(tb, err)
	var list []golden
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(tb, err)
		for _, part := range strings.Split(string(text), "\n= ")[1:] {
			name, body, _ := strings.Cut(part, "\n")
			list = append(list, golden{name, unhex(tb, body)})
		}
	}
	require.NotEmpty(tb, list)
	return list
}

func unhex(tb testing.TB, body string) []byte {
	var out []byte
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if zeros, ok := strings.CutPrefix(line, "* "); ok {
			n, err := strconv.Atoi(zeros)
			require.NoError(tb, err)
			out = append(out, make([]byte, 32*n)...)
		} else if !strings.HasPrefix(line, "#") {
			b, err := hex.DecodeString(line)
			require.NoError(tb, err)
			out = append(out, b...)
		}
	}
	return out
}

// TestGolden decodes recorded PDUs of other implementations. Encoding them must give
// the same bytes.
func TestGolden(t *testing.T) {
	for _, g := range loadGolden(t) {
		t.Run(g.name, func(t *testing.T) {
			r := g.rules()
			h, err := r.Common(g.bytes)
			require.NoError(t, err)
			require.NoError(t, r.Header(h, g.bytes))
			assert.Contains(t, g.name, h.Type.String())

			data := g.bytes[h.Offset:][:h.Data]
			if h.Digest {
				assert.Equal(t, g.bytes[len(g.bytes)-pdu.DigestSize:], digestOf(data), "data digest")
			}
			assert.Len(t, g.bytes, int(h.Offset)+int(h.Data)+r.TrailerSize(int(h.Data)))
			assert.Equal(t, hex.Dump(normal(g.bytes[:h.Offset], h)), hex.Dump(encode(&r, h, g.bytes)))
		})
	}
}

// normal clears the fields that have no meaning in a PDU without data: PDO and the
// data digest flag.
func normal(head []byte, h pdu.Header) []byte {
	head = append([]byte(nil), head...)
	if h.Data == 0 && (head[3] != 0 || head[1]&pdu.FlagDataDigest != 0) {
		head[1] &^= pdu.FlagDataDigest
		head[3] = 0
		if h.Flags&pdu.FlagHeaderDigest != 0 {
			copy(head[h.HLen:], digestOf(head[:h.HLen]))
		}
	}
	return head
}

// encode encodes the decoded golden PDU.
func encode(r *pdu.Rules, h pdu.Header, in []byte) []byte {
	b := make([]byte, pdu.MaxHeaderSize)
	ic := pdu.ICOf(in[:16])
	switch h.Type {
	case pdu.TypeICReq:
		pdu.PutICReq(b, ic.PDA, ic.Digest, ic.Max+1)
		return b[:pdu.ICSize]
	case pdu.TypeICResp:
		pdu.PutICResp(b, ic.PDA, ic.Digest, ic.Max)
		return b[:pdu.ICSize]
	}
	n := r.Put(b, h.Type, h.Flags&(pdu.FlagLast|pdu.FlagSuccess), int(h.Data))
	switch h.Type {
	case pdu.TypeCapsuleCmd:
		*pdu.SQEOf(b) = *pdu.SQEOf(in)
	case pdu.TypeCapsuleResp:
		*pdu.CQEOf(b) = *pdu.CQEOf(in)
	case pdu.TypeH2CData, pdu.TypeC2HData:
		pdu.PutData(b, pdu.DataOf(in))
	case pdu.TypeR2T:
		pdu.PutR2T(b, pdu.R2TOf(in))
	}
	r.Seal(b)
	return b[:n]
}

func digestOf(b []byte) []byte {
	d := pdu.Digest(0, b)
	return []byte{byte(d), byte(d >> 8), byte(d >> 16), byte(d >> 24)}
}

// TestGoldenFlippedBits checks that the header digest detects every flipped bit of a
// header.
func TestGoldenFlippedBits(t *testing.T) {
	for _, g := range loadGolden(t) {
		r := g.rules()
		if !r.HeaderDigest {
			continue
		}
		for bit := range 8 * (int(g.bytes[2]) + pdu.DigestSize) {
			b := append([]byte(nil), g.bytes...)
			b[bit/8] ^= 1 << (bit % 8)
			h, err := r.Common(b)
			if err == nil {
				err = r.Header(h, b)
			}
			require.Error(t, err, "%s, bit %d", g.name, bit)
		}
	}
}
