package posixshim

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Hang is a time-out that no operation reaches, also on a busy machine.
const Hang = 5 * time.Minute

// GoldenMessages is the name of a file with the messages between testdata/messages.c and its server, byte by byte.
// Lines of requests begin with ">", lines of their replies with "<".
const GoldenMessages = "testdata/messages.hex"

// GoldenLayout is the message of a test that finds a changed byte in the messages.
const GoldenLayout = "the messages have changed: raise layout in internal/gen/remote.go, unless calls.txt has changed too"

// exchanges are the calls of testdata/messages.c with their results.
var exchanges = []struct {
	name    string
	call    uint32
	numbers []int64
	data    []string
	result  int64
	flags   uint32
	body    string
}{
	{name: "write", call: callWrite, numbers: []int64{0x1_0000_0002, NoLimit}, data: []string{"content"}, result: 7},
	{name: "pread", call: callPread, numbers: []int64{0x1_0000_0002, 5, 0x0102030405060708}, result: 3, body: "ent"},
	{name: "open", call: callOpen, numbers: []int64{0, syscall.O_RDWR | syscall.O_CREAT, 0o640}, data: []string{"a"},
		result: 0x3_0000_0004, flags: replyDescriptor},
	{name: "rename", call: callRename, numbers: []int64{0, 0, 1}, data: []string{"from", "to"}, result: -int64(syscall.EEXIST)},
	{name: "access", call: callAccess, numbers: []int64{0, 0, 0}, data: []string{"out"}, result: pathOutside, body: "/"},
	{name: "access, asked again since it leads out", call: callAccess, numbers: []int64{0, 0, 0}, data: []string{"out"}, result: pathOutside, body: "/"},
	{name: "fstatvfs", call: callFstatvfs, numbers: []int64{0x1_0000_0002, 112}, body: string(structure(&statvfs{
		Bsize: 1, Frsize: 2, Blocks: 3, Bfree: 4, Bavail: 5, Files: 6, Ffree: 7, Favail: 8, Fsid: 9, Flag: 10, Namemax: 11}))},
	{name: "chmod", call: callFchmod, numbers: []int64{0x1_0000_0002, 0o600}},
	{name: "no descriptor left", call: callFsync, numbers: []int64{0x1_0000_0002}, result: -int64(syscall.EMFILE), flags: replyLast},
}

func structure[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

func dump(b *strings.Builder, mark string, message []byte) {
	for i := 0; i < len(message); i += 16 {
		fmt.Fprintf(b, "%s %02x %s\n", mark, i, hex.EncodeToString(message[i:min(i+16, len(message))]))
	}
}

// TestGoldenMessages compares the messages that Go code encodes and decodes with the golden file. TestGoldenSender
// does so for the C code.
func TestGoldenMessages(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the file is of a little-endian machine")
	}
	var b strings.Builder
	for _, e := range exchanges {
		raw := request(e.call, e.numbers, e.data...)
		fmt.Fprintf(&b, "= %s\n", e.name)
		dump(&b, ">", raw)
		var m message
		require.NoError(t, m.receive(bytes.NewReader(raw)))
		assert.Equal(t, e.call, m.call)
		for _, n := range e.numbers {
			assert.Equal(t, n, m.number(), e.name)
		}
		for _, d := range e.data {
			assert.Equal(t, d, m.string(), e.name)
		}
		assert.True(t, m.complete(), e.name)
		if e.body != "" {
			m.reply = []byte(e.body)
		}
		head, body := m.answer(e.result, e.flags)
		dump(&b, "<", append(head, body...))
	}
	if *update {
		require.NoError(t, os.WriteFile(GoldenMessages, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(GoldenMessages)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), GoldenLayout)
}
