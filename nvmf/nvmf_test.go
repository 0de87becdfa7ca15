package nvmf_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

func TestParseTransportID(t *testing.T) {
	long := "trtype:TCP adrfam:IPv4 traddr:10.0.0.5 trsvcid:4420 subnqn:nqn.2014-08.org.example:a ns:1"
	for _, c := range []struct{ in, want string }{
		{long, long},
		{"  trtype=tcp   traddr=10.0.0.5 subnqn=nqn.2014-08.org.example:a ", long},
		{"TRTYPE:tcp ADRFAM:ipv4 TRADDR:10.0.0.5 TRSVCID:4420 SUBNQN:nqn.2014-08.org.example:a NSID:1", long},
		{"trtype:TCP traddr:[::1] subnqn:nqn.x ns:1", "trtype:TCP adrfam:IPv6 traddr:::1 trsvcid:4420 subnqn:nqn.x ns:1"},
		{"trtype:TCP traddr:fe80::1 trsvcid:1 subnqn:nqn.x ns:4294967294", "trtype:TCP adrfam:IPv6 traddr:fe80::1 trsvcid:1 subnqn:nqn.x ns:4294967294"},
		{"trtype:RDMA traddr:h subnqn:q", "trtype:RDMA adrfam:IPv4 traddr:h trsvcid:4420 subnqn:q ns:1"},
		{"trtype:PCIe traddr:0000:01:00.0", "trtype:PCIe traddr:0000:01:00.0 ns:1"},
		{"file:/a path/with spaces", "file:/a path/with spaces"},
		{"mem:64M", "mem:67108864"},
		{"mem:1GiB", "mem:1073741824"},
		{"mem:4096", "mem:4096"},
	} {
		id, err := nvmf.ParseTransportID(c.in)
		require.NoError(t, err, c.in)
		assert.Equal(t, c.want, id.String())
		again, err := nvmf.ParseTransportID(id.String())
		require.NoError(t, err)
		assert.Equal(t, id, again, "what String prints is read back")
	}
}

func TestParseTransportIDRefuses(t *testing.T) {
	for in, text := range map[string]string{
		"":                                  "trtype is missing",
		"file:":                             "no path",
		"mem:":                              "not a size",
		"mem:lots":                          "not a size",
		"mem:0":                             "not a size",
		"trtype:FC traddr:a subnqn:b":       `trtype "FC"`,
		"trtype:TCP subnqn:b":               "traddr is missing",
		"trtype:TCP traddr:a":               "subnqn is missing",
		"trtype:TCP traddr:a subnqn:":       "subnqn:",
		"trtype:TCP traddr:a subnqn:b ns:0": `ns "0"`,
		"trtype:TCP traddr:a subnqn:b ns:x": `ns "x"`,
		"trtype:TCP traddr:a subnqn:b nx:1": `unknown key "nx"`,
		"trtype:TCP adrfam:IPX":             `adrfam "IPX"`,
		"10.0.0.5":                          "not key:value",
		"trtype:TCP subnqn:" + strings.Repeat("x", 224): "224 bytes long",
		"trtype:TCP traddr:a subnqn:b ns:4294967295":    "not a namespace id",
		"trtype:TCP traddr:a subnqn:b trsvcid:99999":    "trsvcid",
		"trtype:TCP traddr:a subnqn:b trsvcid:http":     "trsvcid",
	} {
		_, err := nvmf.ParseTransportID(in)
		if assert.Error(t, err, in) {
			assert.ErrorContains(t, err, text)
		}
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]nvmf.Bytes{
		"1": 1, "4k": 4096, "4K": 4096, "4KB": 4096, "4KiB": 4096, "1g": 1 << 30, "2T": 2 << 40, " 1.5M ": 3 << 19,
	} {
		n, err := nvmf.ParseSize(in)
		require.NoError(t, err, in)
		assert.Equal(t, want, n, in)
	}
	for _, in := range []string{"", "0", "-1", "x", "4Q"} {
		_, err := nvmf.ParseSize(in)
		assert.Error(t, err, in)
	}
}

func TestCheck(t *testing.T) {
	id := &nvmf.Identity{LBASize: 512, Blocks: 100, MaxTransfer: 4096}
	rw := func(op nvmf.Opcode, lba, blocks nvmf.LBA, n int) *nvmf.Command {
		return &nvmf.Command{Opcode: op, LBA: lba, Blocks: blocks, Data: [][]byte{make([]byte, n/2), make([]byte, n-n/2)}}
	}
	for _, c := range []struct {
		name string
		cmd  *nvmf.Command
		want error
	}{
		{"first", rw(nvmf.Write, 0, 1, 512), nil},
		{"last", rw(nvmf.Read, 99, 1, 512), nil},
		{"largest", rw(nvmf.Read, 0, 8, 4096), nil},
		{"too large", rw(nvmf.Read, 0, 9, 4608), nvmf.ErrBadLength},
		{"nothing", rw(nvmf.Read, 0, 0, 0), nvmf.ErrOutOfRange},
		{"behind the end", rw(nvmf.Write, 100, 1, 512), nvmf.ErrOutOfRange},
		{"across the end", rw(nvmf.Write, 99, 2, 1024), nvmf.ErrOutOfRange},
		{"wraps", rw(nvmf.Write, 99, 1<<64-1, 512), nvmf.ErrOutOfRange},
		{"too little data", rw(nvmf.Write, 0, 2, 1023), nvmf.ErrBadLength},
		{"too much data", rw(nvmf.Write, 0, 2, 1025), nvmf.ErrBadLength},
		{"flush", &nvmf.Command{Opcode: nvmf.Flush}, nil},
		{"deallocate all", &nvmf.Command{Opcode: nvmf.Deallocate, Blocks: 100}, nil},
		{"deallocate more", &nvmf.Command{Opcode: nvmf.Deallocate, Blocks: 101}, nvmf.ErrOutOfRange},
	} {
		err := c.cmd.Check(id)
		if c.want == nil {
			assert.NoError(t, err, c.name)
		} else {
			assert.ErrorIs(t, err, c.want, c.name)
		}
	}
}

func TestCommandLife(t *testing.T) {
	var c nvmf.Command
	assert.True(t, c.Done())
	c.Begin()
	assert.False(t, c.Done())
	c.Finish(nvmf.ErrClosed)
	assert.True(t, c.Done())
	other := errors.New("other")
	assert.Equal(t, nvmf.ErrClosed, nvmf.FirstError([]*nvmf.Command{{}, &c, {Err: other}}))
	assert.NoError(t, nvmf.FirstError(nil))
	c.Begin()
	assert.NoError(t, c.Err)
}

func TestStatusError(t *testing.T) {
	e := &nvmf.StatusError{Opcode: nvmf.Write, LBA: 9, SC: 0x81}
	assert.Equal(t, "Write at LBA 9: Capacity Exceeded (status type 0x0 code 0x81)", e.Error())
	assert.ErrorIs(t, e, syscall.ENOSPC)
	e = &nvmf.StatusError{Name: "Connect", SCT: 1, SC: 0x84}
	assert.Equal(t, "Connect: Connect Invalid Host (status type 0x1 code 0x84)", e.Error())
	assert.ErrorIs(t, e, syscall.EACCES)
	e = &nvmf.StatusError{SCT: 7, SC: 0xff}
	assert.ErrorIs(t, e, syscall.EIO, "an unknown status")
	assert.Contains(t, e.Error(), "unknown status")
}

func TestIdentity(t *testing.T) {
	a := &nvmf.Identity{UUID: uuid.New(), LBASize: 4096, Blocks: 10}
	assert.EqualValues(t, 40960, a.Capacity())
	for _, change := range []func(*nvmf.Identity){
		func(b *nvmf.Identity) { b.UUID = uuid.New() },
		func(b *nvmf.Identity) { b.LBASize = 512 },
		func(b *nvmf.Identity) { b.Blocks++ },
	} {
		b := *a
		assert.True(t, a.Same(&b))
		change(&b)
		assert.False(t, a.Same(&b))
	}
}

func TestBytes(t *testing.T) {
	assert.Equal(t, nvmf.Bytes(8192), nvmf.Bytes(4097).AlignUp(4096))
	assert.Equal(t, nvmf.Bytes(4096), nvmf.Bytes(8191).AlignDown(4096))
	for n, want := range map[nvmf.Bytes]string{
		0: "0 bytes", 1000: "1000 bytes", 4096: "4 KiB", 3 << 20: "3 MiB", 20<<20 + 1<<19 + 1: "20.5 MiB", 1 << 40: "1 TiB",
	} {
		assert.Equal(t, want, n.String())
	}
}

func TestReservationStatuses(t *testing.T) {
	conflict := &nvmf.StatusError{Opcode: nvmf.Write, SC: 0x83, DNR: true}
	aborted := &nvmf.StatusError{Opcode: nvmf.Write, SC: 0x14}
	other := &nvmf.StatusError{Opcode: nvmf.Write, SCT: 1, SC: 0x83}
	wrapped := fmt.Errorf("file a: %w", conflict)
	assert.True(t, nvmf.IsConflict(wrapped) && !nvmf.IsPreempted(wrapped))
	assert.True(t, nvmf.IsPreempted(aborted) && !nvmf.IsConflict(aborted))
	assert.False(t, nvmf.IsPreempted(other) || nvmf.IsConflict(other))
	assert.False(t, nvmf.IsPreempted(nil) || nvmf.IsConflict(nil))
	assert.ErrorContains(t, aborted, "Preempt and Abort")
}
