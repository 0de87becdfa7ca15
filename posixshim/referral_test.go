package posixshim

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRefer redirects children to the process that the environment of each one says.
func TestRefer(t *testing.T) {
	processes := map[string]*Process{"a": newPartition(t).process(t), "b": newPartition(t).process(t)}
	var random [8]byte
	_, err := rand.Read(random[:])
	require.NoError(t, err)
	number := binary.NativeEndian.Uint64(random[:]) >> 2
	var said atomic.Int32
	r, err := Refer(number, func(getenv func(string) string) (*Process, error) {
		if p := processes[getenv("WHICH")]; p != nil {
			return p, nil
		}
		if getenv("WHICH") == "panic" {
			panic("which?")
		}
		return nil, fmt.Errorf("WHICH is %q: %w", getenv("WHICH"), syscall.EINVAL)
	}, func(format string, args ...any) { said.Add(1); t.Logf(format, args...) })
	require.NoError(t, err)
	defer r.Close()
	refer := func(requests ...[]byte) (int64, string, uint32) {
		c := connect(t, number)
		for _, b := range requests {
			c.send(b)
		}
		result, body, flags, _ := c.answer()
		return result, string(body), flags
	}
	open := request(callOpen, []int64{0, create, 0o600}, "f")
	for name := range processes {
		result, address, flags := refer(request(callHello, nil, "OTHER=x\x00WHICH="+name+"\x00WHICH=later\x00"), open)
		require.EqualValues(t, pathRedirect, result, name)
		assert.EqualValues(t, replyLast, flags)
		to, err := strconv.ParseUint(address, 16, 64)
		require.NoError(t, err)
		h, _ := connect(t, to).open(name)
		_, err = processes[name].files.get(h)
		assert.NoError(t, err, "the file is in the process of %s", name)
	}
	assert.Zero(t, said.Load())
	for _, c := range []struct {
		requests [][]byte
		want     error
	}{
		{[][]byte{request(callHello, nil, "WHICH=c\x00"), open}, syscall.EINVAL},
		{[][]byte{request(callHello, nil, ""), open}, syscall.EINVAL},
		{[][]byte{request(callHello, nil, "WHICH=panic\x00"), open}, syscall.EIO},
		{[][]byte{open}, syscall.EPROTO},
		{[][]byte{request(callHello, nil, "WHICH=a\x00", "more")}, syscall.EPROTO},
		{[][]byte{request(callHello, nil)}, syscall.EPROTO},
		{[][]byte{make([]byte, requestHead)}, syscall.EPROTO},
	} {
		before := said.Load()
		result, _, flags := refer(c.requests...)
		assert.EqualValues(t, -int64(c.want.(syscall.Errno)), result, "%q", c.requests)
		assert.EqualValues(t, replyLast, flags)
		assert.EqualValues(t, before+1, said.Load(), "one line is printed")
	}
	before := said.Load()
	connect(t, number).send(request(callHello, nil, "WHICH=a\x00")[:70]) // the child ends
	_, err = Refer(number, nil, nil)
	assert.True(t, errors.Is(err, syscall.EADDRINUSE), "%v", err)
	require.NoError(t, r.Close())
	assert.Equal(t, before, said.Load())
}
