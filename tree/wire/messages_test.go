package wire

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
)

var update = flag.Bool("update", false, "write the golden file anew")

func at(ns int64) time.Time { return time.Unix(0, ns) }

func ptr[T any](v T) *T { return &v }

var (
	sampleAttr = Attr{
		Attr: microfs.Attr{Ino: 0x1122334455667788, Mode: 0o100644, Nlink: 2, UID: 3, GID: 4, Size: 5, Blocks: 6,
			Atime: at(7), Mtime: at(8), Ctime: at(9), Btime: at(10), Closed: true, Birth: 11, Cut: 12},
	}
	sampleIndex  = uuid.MustParse("ffeeddcc-bbaa-9988-7766-554433221100")
	sampleCred   = microfs.Cred{UID: 1000, GID: 100, Groups: []uint32{4, 27}}
	samplePlace  = Name{Dir: 17, Path: "d/file"}
	sampleRanges = []Range{{Off: 0, Len: 4096}, {Off: 1 << 40, Len: 1}}
	sampleFile   = &File{Attr: sampleAttr, More: true, Segments: []Segment{
		{Off: 0, Len: 1, Kind: Hole}, {Off: 1, Len: 2, Kind: Own}, {Off: 3, Len: 4, Kind: Mapped, Partition: 5, Cut: 6}}}
	samplePublication = Publication{Ino: 1, Birth: 2, Cut: 3, Size: 4, Mtime: at(5), Durable: true, Ranges: sampleRanges}
)

// exchanges has every operation, and the two kinds of errors that have more than an errno.
var exchanges = []struct {
	op              Op
	request, answer Body
	err             error
}{
	{op: OpHello, request: &Hello{Format: 2, Run: uuid.MustParse("00112233-4455-6677-8899-aabbccddeeff"),
		Partition: NoPartition, PID: 42, Host: "node7", Cred: sampleCred, Before: sampleIndex},
		answer: &Welcome{Timeout: time.Minute, Partitions: 448, Index: sampleIndex, DataCRC: true}},
	{op: OpGoodbye},
	{op: OpOpen, request: &Open{Name: samplePlace, Flags: 0o102, Mode: 0o640}, answer: sampleFile},
	{op: OpOpenIno, request: &OpenIno{Ino: 7, Flags: 2}, answer: sampleFile},
	{op: OpClose, request: &Close{Writer: true, Publication: samplePublication}},
	{op: OpPublish, request: &samplePublication, answer: &AttrAnswer{Attr: sampleAttr}},
	{op: OpMap, request: &Map{Ino: 1, Off: 2, Len: 3}, answer: sampleFile},
	{op: OpAppend, request: &Append{Ino: 1, Len: 2, Limit: 1<<63 - 1}, answer: &Space{Off: 3, Len: 4}},
	{op: OpWrite, request: &Write{Ino: 1, Off: AtEnd, Limit: 3, Data: []byte("bytes")}, answer: &Written{Off: 6, N: 5, Attr: sampleAttr}},
	{op: OpRead, request: &Read{Ino: 1, Off: 2, Len: 3}, answer: &Data{Bytes: []byte("own")}},
	{op: OpStat, request: &Stat{Name: samplePlace, Follow: true}, answer: &AttrAnswer{Attr: sampleAttr}},
	{op: OpSetAttr, request: &SetAttr{Name: samplePlace, Follow: true, What: microfs.SetAttr{
		Mode: ptr(uint32(0o600)), GID: ptr(uint32(5)), Mtime: ptr(at(6)), TimesNow: true}}, answer: &AttrAnswer{Attr: sampleAttr}},
	{op: OpTruncate, request: &Truncate{Name: samplePlace, Size: 9}, answer: &AttrAnswer{Attr: sampleAttr}},
	{op: OpAllocate, request: &Allocate{Ino: 1, Mode: ZeroKeepSize, Off: 2, Len: 3}, answer: &AttrAnswer{Attr: sampleAttr}},
	{op: OpReadDir, request: &ReadDir{Ino: 1, After: "a", N: 2},
		answer: &Entries{List: []microfs.Dirent{{Name: "b", Ino: 3, Mode: 0o040000}, {Name: "c", Ino: 4, Mode: 0o100000}}}},
	{op: OpAccess, request: &Access{Name: samplePlace, Mode: 6, Follow: true, Who: sampleCred}},
	{op: OpMkdir, request: &Mkdir{Name: samplePlace, Mode: 0o755}},
	{op: OpUnlink, request: &Unlink{Name: samplePlace, Directory: true}},
	{op: OpRename, request: &Rename{From: samplePlace, To: Name{Dir: 18, Path: "e"}, Flags: 1}},
	{op: OpLink, request: &Link{From: samplePlace, To: Name{Dir: 18, Path: "e"}, Follow: true}},
	{op: OpSymlink, request: &Symlink{Target: "../to", Name: samplePlace}},
	{op: OpReadlink, request: &Readlink{Name: samplePlace}, answer: &Text{Text: "../to"}},
	{op: OpPath, request: &Path{Name: Name{Dir: 17}}, answer: &Text{Text: "/d"}},
	{op: OpStatFS, answer: &StatFS{StatFS: microfs.StatFS{Hugeblock: 32768, Blocks: 2, Free: 3, Avail: 1, Files: 4, FilesFree: 5, LogPages: 6,
		LogFree: 7, StateBytes: 8, StateMax: 9, OpenFiles: 10, Generation: 11, Checkpoints: 12, Ranges: true}}},
	{op: OpSync},
	{op: OpLock, request: &Lock{Ino: 1, Kind: FileLock, Start: 2, End: 9, Hold: []Locked{{Start: 2, End: 3}, {Start: 4, End: 9, Write: true}}, Test: true},
		answer: &Conflict{There: true, Locked: Locked{Start: 5, End: 1<<63 - 1, Write: true}, PID: 42}},
	{op: OpShards, request: &Shards{List: []Shard{{Ino: 1, Birth: 2, Cut: 3}, {Ino: 4, Birth: 5, Cut: 6}}}},
	{op: OpGrow, request: &Grow{Partitions: 3}, answer: &Grow{Partitions: 4}},
	{op: OpSetCred, request: &Cred{Cred: sampleCred}},
	{op: OpReopen, request: &Reopen{Ino: 1, Birth: 2, Opens: 4, Writers: 3}},
	{op: OpReadCopy, request: &Read{Ino: 1, Off: 2, Len: 3}, answer: &Data{Bytes: []byte("abc")}},
	{op: OpKeep, request: &Keep{Ino: 7}},
	{op: OpLeave, request: &Leave{Ino: 7}},
	{op: OpStat, request: &Stat{Name: samplePlace}, err: syscall.ENOENT},
	{op: OpStat, request: &Stat{Name: samplePlace}, err: &microfs.EscapeError{Path: "/etc"}},
	{op: OpMkdir, request: &Mkdir{Name: samplePlace}, err: &Error{Errno: syscall.ENOSPC, Text: "there is no room for another name"}},
}

var sampleReleases = []Shard{{Ino: 0x55, Birth: 0x66, Cut: 0x77}}

// blank returns an empty body of the type of one, or nil.
func blank(b Body) Body {
	if b == nil {
		return nil
	}
	return reflect.New(reflect.TypeOf(b).Elem()).Interface().(Body)
}

// conversation has the bytes sent in both directions.
type conversation struct {
	*bytes.Reader
	sent []byte
}

func (c *conversation) Write(b []byte) (int, error) {
	c.sent = append(c.sent, b...)
	return len(b), nil
}

func (*conversation) Close() error { return nil }

func request(t testing.TB, op Op, number uint64, body Body) []byte {
	b, err := new(codec).encode(nil, &header{kind: kindRequest, op: op, number: number}, nil, body)
	require.NoError(t, err)
	return b
}

func TestGoldenMessages(t *testing.T) {
	var text strings.Builder
	for i, e := range exchanges {
		asked := request(t, e.op, 1, e.request)
		s := &conversation{Reader: bytes.NewReader(asked)}
		p := NewPeer(s)
		op, err := p.Next()
		require.NoError(t, err)
		require.Equal(t, e.op, op)
		got := blank(e.request)
		require.NoError(t, p.Body(got))
		require.Equal(t, e.request, got)
		require.NoError(t, p.Answer(e.err, sampleReleases, e.answer))

		var list []Shard
		c := NewConn(&conversation{Reader: bytes.NewReader(s.sent)}, 0, func(l []Shard) { list = append(list, l...) })
		answer := blank(e.answer)
		require.Equal(t, e.err, c.Call(e.op, e.request, answer))
		require.Equal(t, e.answer, answer, "exchange %d", i)
		require.Equal(t, sampleReleases, list)
		require.Equal(t, asked, c.stream.(*conversation).sent)
		fmt.Fprintf(&text, "= %v\n> %s\n< %s\n", e.op, hex.EncodeToString(asked), hex.EncodeToString(s.sent))
	}
	const golden = "testdata/messages.hex"
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(text.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), text.String(), "the messages have changed: they need another version")
}

func TestEveryOperationIsInTheGoldenFile(t *testing.T) {
	there := map[Op]bool{}
	for _, e := range exchanges {
		there[e.op] = true
	}
	for op, name := range opNames {
		assert.Equal(t, name != "", there[Op(op)], "%v", Op(op))
	}
	assert.Equal(t, "operation 34", Op(34).String())
	assert.Equal(t, "operation 1000", Op(1000).String())
}

func TestShardNames(t *testing.T) {
	s := Shard{Ino: 0x1f, Birth: 0xabc, Cut: 3}
	assert.Equal(t, "000000000000001f-abc-3", s.Name())
	for name, ok := range map[string]bool{
		s.Name():                 true,
		"000000000000001f-abc-0": true,
		"ffffffffffffffff-ffffffffffffffff-ffffffff": true,
		"000000000000001f-abc-100000000":             false,
		"000000000000001F-abc-3":                     false,
		"1f-abc-3":                                   false,
		"000000000000001f-0abc-3":                    false,
		"000000000000001f-abc-3 ":                    false,
		"000000000000001f-abc":                       false,
		"checkpoint.3":                               false,
		"":                                           false,
	} {
		got, parsed := ParseShard(name)
		assert.Equal(t, ok, parsed, name)
		if ok {
			assert.Equal(t, name, got.Name())
		}
	}
}

func TestWhatCannotBeSent(t *testing.T) {
	s := &conversation{Reader: bytes.NewReader(nil)}
	c := NewConn(s, 0, nil)
	for name, body := range map[string]Body{
		"path":   &Stat{Name: Name{Path: strings.Repeat("x", 1<<16)}},
		"data":   &Write{Data: make([]byte, MaxData+1)},
		"ranges": &Publication{Ranges: make([]Range, MaxRanges+1)},
		"shards": &Shards{List: make([]Shard, MaxShards+1)},
		"locks":  &Lock{Hold: make([]Locked, MaxLocks+1)},
	} {
		assert.ErrorIs(t, c.Call(OpStat, body, nil), errProtocol, name)
	}
	assert.Empty(t, s.sent)
}

func TestLargestMessages(t *testing.T) {
	for _, body := range []Body{
		&Write{Data: make([]byte, MaxData)}, &Publication{Ranges: make([]Range, MaxRanges)}, &Shards{List: make([]Shard, MaxShards)},
	} {
		_, err := new(codec).encode(nil, &header{}, nil, body)
		assert.NoError(t, err)
	}
	entries := make([]microfs.Dirent, MaxEntries)
	for i := range entries {
		entries[i].Name = strings.Repeat("x", 255)
	}
	releases := make([]Shard, MaxReleases)
	for _, body := range []Body{
		&Data{Bytes: make([]byte, MaxData)}, &File{Segments: make([]Segment, MaxSegments)}, &Entries{List: entries}, nil,
	} {
		_, err := new(codec).encode(nil, &header{}, &releases, body)
		assert.NoError(t, err)
	}
}
