package posixshim

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/hostile"
	"nvmecr/microfs"
	"nvmecr/nvmf/memdev"
)

// servedOverAndOver returns a function that calls talk with a new process for each input of a fuzz test.
func servedOverAndOver(f *testing.F) func(t *testing.T, talk func(p *Process)) {
	const size = 8 << 20
	dev, err := memdev.New(size, 4096, memdev.Options{})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, dev.Close()) })
	partition := &partition{dev: dev, seg: microfs.Segment{Length: size}}
	return func(t *testing.T, talk func(p *Process)) {
		require.NoError(t, microfs.Format(context.Background(), dev, partition.seg, microfs.FormatOptions{Generation: 1, Size: 1, LogPages: 16}))
		hostile.Bounded(t, 256<<20, 30*time.Second, func() {
			p := New(partition.open, func(string, ...any) {})
			talk(p)
			require.NoError(t, p.Finish())
		})
	}
}

// FuzzRequestBytes sends arbitrary bytes, in two pieces. The server must send a whole reply or close the connection,
// and must serve the next connection.
func FuzzRequestBytes(f *testing.F) {
	f.Add(request(callOpen, []int64{0, create, 0o600}, "f"), uint8(70))
	f.Add(request(callLock, []int64{1, 1, unix.F_SETLK, 32}, "lock"), uint8(3))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint8(1))
	serve := servedOverAndOver(f)
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		serve(t, func(p *Process) {
			c := p.client(t)
			n := min(int(cut), len(b))
			c.send(b[:n])
			c.send(b[n:])
			c.close()
			next := p.client(t)
			_, socket := next.open("f")
			require.NoError(t, unix.Close(socket))
			next.close()
		})
	})
}

// requestScript is the number of bytes that encode a request.
const requestScript = 12

// FuzzRequests sends well-formed requests with arbitrary calls, numbers, paths and data. Each must get a reply with a
// plausible result.
func FuzzRequests(f *testing.F) {
	for call := range uint8(50) {
		f.Add([]byte{callByte, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, call, 128, 1, 2, 3, 4, 5, 6, 2, 1, 2, 200})
	}
	serve := servedOverAndOver(f)
	f.Fuzz(func(t *testing.T, script []byte) {
		serve(t, func(p *Process) {
			c := p.client(t)
			handles := []int64{0, -1, int64(lost), 1 << 62, 1<<62 | 1, 1 << 32, 1<<32 | 1}
			for n := 0; len(script) >= requestScript && n < 100; n++ {
				b := script[:requestScript]
				script = script[requestScript:]
				call, numbers, data := scripted(b, handles)
				c.send(request(call, numbers, data...))
				result, body, flags, descriptor := c.answer()
				require.GreaterOrEqual(t, result, int64(pathGone))
				require.LessOrEqual(t, len(body), maxMessage)
				require.Equal(t, descriptor != 0, flags&replyDescriptor != 0)
				if call == callOpen && result > 0 {
					handles = append(handles, result)
				}
				if descriptor != 0 && b[11]&1 == 0 {
					require.NoError(t, unix.Close(descriptor))
				} else if descriptor != 0 {
					defer unix.Close(descriptor)
				}
			}
			c.close()
		})
	})
}

// callByte is callOpen, as the first byte of a script.
const callByte = uint8(callOpen)

// scripted decodes a request from 12 bytes: the call, a handle, five numbers, the number of strings, and three
// strings.
func scripted(b []byte, handles []int64) (call uint32, numbers []int64, data []string) {
	numbers = []int64{handles[int(b[1])%len(handles)]}
	for _, v := range b[2:7] {
		switch n := int(v) % (len(offsets) + 64); {
		case v == 0:
			numbers = append(numbers, create)
		case n < len(offsets):
			numbers = append(numbers, offsets[n])
		default:
			numbers = append(numbers, int64(n-len(offsets))) // includes the sizes of structures
		}
	}
	if b[1] >= 128 {
		numbers[1] = structStat
	}
	for _, v := range b[8 : 8+int(b[7]%4)] {
		if v < 200 {
			data = append(data, paths[int(v)%len(paths)])
		} else {
			data = append(data, string(binary.NativeEndian.AppendUint64(make([]byte, 24), uint64(v))))
		}
	}
	return uint32(b[0]) % 50, numbers, data
}
