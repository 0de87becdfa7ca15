package pdu_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf/pdu"
)

var le = binary.LittleEndian

// decode validates a header as a receiver does.
func decode(r *pdu.Rules, b []byte) (pdu.Header, error) {
	h, err := r.Common(b)
	if err != nil || h.Size() > len(b) {
		return h, err
	}
	return h, r.Header(h, b)
}

// put returns a PDU with n zero bytes of data.
func put(r *pdu.Rules, t pdu.Type, flags uint8, n int, rest func(b []byte)) []byte {
	b := make([]byte, pdu.MaxHeaderSize)
	head := r.Put(b, t, flags, n)
	if rest != nil {
		rest(b)
	}
	r.Seal(b)
	b = append(b[:head], make([]byte, n)...)
	if t != pdu.TypeC2HTermReq && t != pdu.TypeH2CTermReq {
		b = append(b, make([]byte, r.TrailerSize(n))...)
	}
	return b
}

// TestRefused checks that a receiver refuses invalid PDUs with the right status.
func TestRefused(t *testing.T) {
	host := &pdu.Rules{FromHost: true, MaxData: 4096, MaxCapsuleData: 8192}
	ctrl := &pdu.Rules{MaxData: 1 << 20}
	digests := &pdu.Rules{HeaderDigest: true, DataDigest: true, MaxData: 1 << 20}
	data := func(off, n uint32) func([]byte) {
		return func(b []byte) { pdu.PutData(b, pdu.Data{CID: 1, Offset: off, Length: n}) }
	}
	set := func(at int, v ...byte) func([]byte) { return func(b []byte) { copy(b[at:], v) } }
	for _, c := range []struct {
		name  string
		rules *pdu.Rules
		pdu   []byte
		spoil func([]byte)
		fes   pdu.FES
		fei   uint32
	}{
		{"unknown type", ctrl, put(ctrl, pdu.TypeCapsuleResp, 0, 0, nil), set(0, 8), pdu.InvalidHeaderField, 0},
		{"type beyond the table", ctrl, put(ctrl, pdu.TypeCapsuleResp, 0, 0, nil), set(0, 0xff), pdu.InvalidHeaderField, 0},
		{"wrong direction", ctrl, put(host, pdu.TypeCapsuleCmd, 0, 0, nil), nil, pdu.InvalidHeaderField, 0},
		{"wrong header length", ctrl, put(ctrl, pdu.TypeCapsuleResp, 0, 0, nil), set(2, 28), pdu.InvalidHeaderField, 2},
		{"shorter than its header", ctrl, put(ctrl, pdu.TypeCapsuleResp, 0, 0, nil), set(4, 23), pdu.InvalidHeaderField, 4},
		{"response with data", ctrl, put(ctrl, pdu.TypeCapsuleResp, 0, 0, nil), set(4, 25), pdu.InvalidHeaderField, 4},
		{"digest flag in ICResp", ctrl, put(ctrl, pdu.TypeICResp, 1, 0, nil), nil, pdu.InvalidHeaderField, 1},
		{"no header digest", digests, put(ctrl, pdu.TypeCapsuleResp, 0, 0, nil), nil, pdu.InvalidHeaderField, 1},
		{"unexpected header digest", ctrl, put(digests, pdu.TypeCapsuleResp, 0, 0, nil), nil, pdu.InvalidHeaderField, 1},
		{"wrong header digest", digests, put(digests, pdu.TypeCapsuleResp, 0, 0, nil), set(8, 1), pdu.HeaderDigestError, 0},
		{"data inside the header", ctrl, put(ctrl, pdu.TypeC2HData, 4, 16, data(0, 16)), set(3, 20), pdu.InvalidHeaderField, 3},
		{"data behind the end", ctrl, put(ctrl, pdu.TypeC2HData, 4, 16, data(0, 16)), set(3, 44), pdu.InvalidHeaderField, 3},
		{"data not aligned", &pdu.Rules{MaxData: 99, Align: 16}, put(ctrl, pdu.TypeC2HData, 4, 16, data(0, 16)), nil, pdu.InvalidHeaderField, 3},
		{"no data digest", &pdu.Rules{MaxData: 99, DataDigest: true}, put(ctrl, pdu.TypeC2HData, 4, 16, data(0, 16)), nil, pdu.InvalidHeaderField, 1},
		{"only a data digest", digests, put(digests, pdu.TypeC2HData, 4, 16, data(0, 16)), set(4, 32), pdu.InvalidHeaderField, 4},
		{"too much data", host, put(host, pdu.TypeH2CData, 4, 4100, data(0, 4100)), nil, pdu.InvalidHeaderField, 4},
		{"too much data in the capsule", host, put(host, pdu.TypeCapsuleCmd, 0, 8196, nil), nil, pdu.InvalidHeaderField, 4},
		{"length differs from the data", ctrl, put(ctrl, pdu.TypeC2HData, 4, 16, data(0, 20)), nil, pdu.InvalidHeaderField, 16},
		{"no data", ctrl, put(ctrl, pdu.TypeC2HData, 4, 0, data(0, 0)), nil, pdu.InvalidHeaderField, 16},
		{"odd offset", ctrl, put(ctrl, pdu.TypeC2HData, 4, 16, data(2, 16)), nil, pdu.InvalidHeaderField, 12},
		{"offset wraps", ctrl, put(ctrl, pdu.TypeC2HData, 4, 16, data(0xfffffffc, 16)), nil, pdu.InvalidHeaderField, 12},
		{"SUCCESS before the last", ctrl, put(ctrl, pdu.TypeC2HData, 8, 16, data(0, 16)), nil, pdu.InvalidHeaderField, 1},
		{"R2T for nothing", ctrl, put(ctrl, pdu.TypeR2T, 0, 0, data(0, 0)), nil, pdu.InvalidHeaderField, 12},
		{"R2T wraps", ctrl, put(ctrl, pdu.TypeR2T, 0, 0, data(0xfffffffc, 16)), nil, pdu.InvalidHeaderField, 12},
		{"another version", ctrl, put(ctrl, pdu.TypeICResp, 0, 0, set(8, 1, 0, 0, 0, 0, 16)), nil, pdu.UnsupportedParameter, 8},
		{"impossible alignment", ctrl, put(ctrl, pdu.TypeICResp, 0, 0, set(10, 32, 0, 0, 16)), nil, pdu.InvalidHeaderField, 10},
		{"tiny MAXH2CDATA", ctrl, put(ctrl, pdu.TypeICResp, 0, 0, set(12, 0, 8)), nil, pdu.InvalidHeaderField, 12},
		{"endless TermReq", ctrl, put(ctrl, pdu.TypeC2HTermReq, 0, 132, nil), nil, pdu.InvalidHeaderField, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.spoil != nil {
				c.spoil(c.pdu)
			}
			_, err := decode(c.rules, c.pdu)
			var e *pdu.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, c.fes, e.FES, "%v", err)
			if c.fes != pdu.HeaderDigestError {
				assert.Equal(t, c.fei, e.FEI, "%v", err)
			}
		})
	}
	_, err := ctrl.Common(make([]byte, 7))
	assert.Error(t, err)
}

// TestRoundTrip encodes and decodes PDUs of every type under every combination of
// rules.
func TestRoundTrip(t *testing.T) {
	for bits := range 4 {
		for _, align := range []uint32{0, 4, 16, 60, 128} {
			for _, n := range []int{0, 4, 512, 4097} {
				for ty := pdu.TypeCapsuleCmd; ty <= pdu.TypeR2T; ty++ {
					r := &pdu.Rules{HeaderDigest: bits&1 != 0, DataDigest: bits&2 != 0, Align: align, MaxData: 1 << 20, MaxCapsuleData: 1 << 20}
					r.FromHost = ty == pdu.TypeCapsuleCmd || ty == pdu.TypeH2CData
					carries := ty == pdu.TypeCapsuleCmd || ty == pdu.TypeH2CData || ty == pdu.TypeC2HData
					if ty == 8 || (!carries && n > 0) || (n == 0 && (ty == pdu.TypeH2CData || ty == pdu.TypeC2HData)) {
						continue
					}
					name := fmt.Sprintf("%s, %d bytes, alignment %d, digests %02b", ty, n, align, bits)
					b := put(r, ty, 0, n, func(b []byte) {
						if ty >= pdu.TypeH2CData {
							pdu.PutData(b, pdu.Data{CID: 7, Length: uint32(max(n, 4))})
						}
					})
					h, err := decode(r, b)
					require.NoError(t, err, name)
					assert.Equal(t, uint32(n), h.Data, name)
					assert.Equal(t, n > 0 && r.DataDigest, h.Digest, name)
					assert.Len(t, b, int(h.Offset)+n+r.TrailerSize(n), name)
					if n > 0 {
						assert.Zero(t, uint32(h.Offset)%max(4, align), name)
					}
				}
			}
		}
	}
}

// TestTermReq checks that a TermReq contains the error and no more of the offending PDU than the specification allows.
func TestTermReq(t *testing.T) {
	for _, fromHost := range []bool{true, false} {
		offending := make([]byte, 200)
		offending[5] = 77
		b := make([]byte, pdu.MaxHeaderSize)
		n := pdu.PutTermReq(b, fromHost, pdu.Violation(pdu.TransferOutOfRange, 12, "x"), offending)
		assert.Equal(t, pdu.TermReqSize+pdu.MaxTermReqData, n)
		r := &pdu.Rules{FromHost: fromHost, HeaderDigest: true}
		h, err := decode(r, b[:n])
		require.NoError(t, err)
		assert.EqualValues(t, pdu.MaxTermReqData, h.Data)
		assert.Equal(t, byte(77), b[int(h.Offset)+5])
		assert.Equal(t, pdu.TermReq{FES: pdu.TransferOutOfRange, FEI: 12}, pdu.TermReqOf(b))
	}
}
