package wire

import (
	"bytes"
	"testing"
	"time"

	"nvmecr/internal/hostile"
)

const (
	fuzzMemory = 32 << 20
	fuzzTime   = 20 * time.Second
)

// FuzzRequest decodes any bytes as the body of a request.
func FuzzRequest(f *testing.F) {
	for i, e := range exchanges {
		f.Add(uint8(i), request(f, e.op, 1, e.request)[headerSize:])
	}
	f.Fuzz(func(t *testing.T, i uint8, body []byte) {
		e := exchanges[int(i)%len(exchanges)]
		b := sealed(header{kind: kindRequest, op: e.op, number: 1}, body)
		hostile.Bounded(t, fuzzMemory, fuzzTime, func() {
			p := NewPeer(&conversation{Reader: bytes.NewReader(b)})
			if _, err := p.Next(); err != nil {
				return
			}
			got := blank(e.request)
			if p.Body(got) == nil && got != nil { // a decoded body encodes to the same bytes
				if again := request(t, e.op, 1, got); !bytes.Equal(again, b) {
					t.Errorf("%x became %x", b, again)
				}
			}
		})
	})
}

// FuzzAnswer decodes any bytes as the body of an answer.
func FuzzAnswer(f *testing.F) {
	for i, e := range exchanges {
		s := &conversation{Reader: bytes.NewReader(request(f, e.op, 1, e.request))}
		p := NewPeer(s)
		_, _ = p.Next()
		_ = p.Answer(e.err, sampleReleases, e.answer)
		f.Add(uint8(i), s.sent[headerSize:])
	}
	f.Fuzz(func(t *testing.T, i uint8, body []byte) {
		e := exchanges[int(i)%len(exchanges)]
		h := header{kind: kindAnswer, op: e.op, number: 1}
		if e.err != nil {
			h.errno, _ = failed(e.err)
		}
		b := sealed(h, body)
		hostile.Bounded(t, fuzzMemory, fuzzTime, func() {
			c := NewConn(&conversation{Reader: bytes.NewReader(b)}, 0, func([]Shard) {})
			_ = c.Call(e.op, e.request, blank(e.answer))
		})
	})
}

func sealed(h header, body []byte) []byte {
	b := append(make([]byte, headerSize), body...)
	h.seal(b)
	return b
}
