package index

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/hostile"
	"nvmecr/tree/wire"
)

// headerSize and the layout of the header are in docs/dev/tree.md.
const headerSize = 28

// sealed returns a request with a valid checksum.
func sealed(op uint16, body []byte) []byte {
	le := binary.LittleEndian
	b := append([]byte("NVTX\x01\x00"), make([]byte, headerSize-6)...)
	le.PutUint16(b[6:], op)
	le.PutUint32(b[8:], uint32(len(body)))
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	le.PutUint32(b[24:], crc32.Update(crc32.Checksum(b[:24], castagnoli), castagnoli, body))
	return append(b, body...)
}

// script returns the input format of FuzzServe: operation and length, 16 bits each, and the body.
func script(t testing.TB) (all [][]byte) {
	golden, err := os.ReadFile("../wire/testdata/messages.hex")
	require.NoError(t, err)
	for line := range strings.Lines(string(golden)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "> "); ok {
			b, err := hex.DecodeString(text)
			require.NoError(t, err)
			le := binary.LittleEndian
			one := le.AppendUint16(le.AppendUint16(nil, le.Uint16(b[6:])), uint16(len(b)-headerSize))
			all = append(all, append(one, b[headerSize:]...))
		}
	}
	return all
}

// FuzzServe sends well-formed requests with any content to an index on which another client has files open.
func FuzzServe(f *testing.F) {
	var together []byte
	for _, s := range script(f)[2:] { // the test itself sends Hello and Goodbye
		f.Add(s)
		together = append(together, s...)
	}
	f.Add(together)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<14 {
			return
		}
		r := newRig(t)
		r.opts.Timeout = time.Millisecond
		other := r.connect(1)
		file := other.open("f", unix.O_RDWR|unix.O_CREAT)
		other.put(file, 0, "bytes")
		hostile.Bounded(t, 64<<20, testTimeout, func() {
			u := r.connect(0)
			u.open("f", unix.O_RDWR)
			far := u.stream
			go io.Copy(io.Discard, far)
			sendScript(far, b)
			far.Close()
			<-u.served
		})
		other.ok(wire.OpSync, nil, nil)
	})
}

func sendScript(to net.Conn, b []byte) {
	for len(b) >= 4 {
		op, n := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		n = min(n, len(b)-4)
		if _, err := to.Write(sealed(op, b[4:][:n])); err != nil {
			return
		}
		b = b[4+n:]
	}
}
