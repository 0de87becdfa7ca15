package pdu_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf/pdu"
)

// FuzzDecode decodes arbitrary bytes. It checks that the decoder does not panic, and
// that it accepts no inconsistent lengths.
func FuzzDecode(f *testing.F) {
	for _, g := range loadGolden(f) {
		r := g.rules()
		f.Add(g.bytes[:min(len(g.bytes), 160)], r.FromHost, r.HeaderDigest, r.DataDigest, uint8(0))
	}
	f.Fuzz(func(t *testing.T, b []byte, fromHost, hd, dd bool, pda uint8) {
		b = bytes.Clone(b)
		r := &pdu.Rules{FromHost: fromHost, HeaderDigest: hd, DataDigest: dd, Align: pdu.Alignment(pda), MaxData: 1 << 17, MaxCapsuleData: 1 << 13}
		h, err := r.Common(b)
		if err != nil {
			requireViolation(t, err)
			return
		}
		total := uint32(h.Offset) + h.Data
		if h.Digest {
			total += pdu.DigestSize
		}
		if plen := le.Uint32(b[4:]); total != plen || h.Size() > int(h.Offset) || h.Size() < pdu.CommonSize || h.Data > r.MaxData {
			t.Fatalf("%+v of a PDU of %d bytes", h, plen)
		}
		// The header digest is made valid, so that the checks after it are reached.
		if h.Flags&pdu.FlagHeaderDigest != 0 && len(b) >= h.Size() {
			le.PutUint32(b[h.HLen:], pdu.Digest(0, b[:h.HLen]))
		}
		if err = r.Header(h, b); err != nil {
			requireViolation(t, err)
			return
		}
		if len(b) < h.Size() {
			t.Fatalf("%+v accepted from %d bytes", h, len(b))
		}
		sendAgain(t, r, h, b)
	})
}

func requireViolation(t *testing.T, err error) {
	var e *pdu.Error
	require.ErrorAs(t, err, &e, "what a TermReq can answer")
}

// sendAgain encodes the decoded PDU, and decodes the result. The result may be
// shorter, since its padding is minimal.
func sendAgain(t *testing.T, r *pdu.Rules, h pdu.Header, b []byte) {
	again := make([]byte, pdu.MaxHeaderSize+pdu.ICSize)
	n := r.Put(again, h.Type, h.Flags&(pdu.FlagLast|pdu.FlagSuccess), int(h.Data))
	copy(again[pdu.CommonSize:], b[pdu.CommonSize:h.HLen])
	r.Seal(again)
	g, err := r.Common(again)
	require.NoError(t, err)
	require.NoError(t, r.Header(g, again))
	require.Equal(t, [...]any{h.Type, h.HLen, h.Data, h.Digest, h.Last(), h.Success()}, [...]any{g.Type, g.HLen, g.Data, g.Digest, g.Last(), g.Success()})
	require.LessOrEqual(t, g.Offset, h.Offset)
	require.LessOrEqual(t, int(g.Offset), n)
	require.Equal(t, again[pdu.CommonSize:h.HLen], b[pdu.CommonSize:h.HLen])
}
