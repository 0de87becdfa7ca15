package mirror

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
)

// held is a namespace whose large write does not end before the large write of the other namespace has begun.
type held struct {
	target.Backing
	begun, other chan struct{}
}

func (h *held) Memory() []byte { return nil }

func (h *held) WriteAt(p []byte, offset int64) error {
	if len(p) >= int(nvmf.MiB/2) {
		close(h.begun)
		<-h.other
	}
	return h.Backing.WriteAt(p, offset)
}

// TestTogether checks that a write sends its data to both targets at the same time. Each target asks for the data with an R2T, and
// answers only when the other target has received its data.
func TestTogether(t *testing.T) {
	t.Parallel()
	begun := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	var dials [2]Dial
	for s := range dials {
		const nqn = "nqn.2014-08.org.example:together"
		memory, err := target.NewMemory(16*nvmf.MiB, 4096)
		require.NoError(t, err)
		tgt, err := target.New(target.Config{InCapsule: 4096, Subsystems: []target.Subsystem{{
			NQN: nqn, Namespaces: []target.Namespace{{Backing: &held{memory, begun[s], begun[1-s]}}},
		}}})
		require.NoError(t, err)
		addr, err := tgt.Listen("127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, tgt.Close(context.Background())) })
		_, port, err := net.SplitHostPort(addr.String())
		require.NoError(t, err)
		id := nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: "127.0.0.1", Service: port, SubNQN: nqn, NSID: 1}
		dials[s] = func(ctx context.Context) (nvmf.Device, error) { return tcp.Open(ctx, id, tcp.Options{}) }
	}
	dev, err := Open(context.Background(), dials, Options{Patience: time.Second})
	require.NoError(t, err)
	q, err := dev.OpenQueue(context.Background(), 4)
	require.NoError(t, err)
	cmds := []*nvmf.Command{{Opcode: nvmf.Write, Blocks: 256, Data: [][]byte{make([]byte, nvmf.MiB)}}}
	q.Submit(cmds)
	require.NoError(t, q.Wait(cmds))
	_, alone := dev.Alone()
	require.False(t, alone)
	require.NoError(t, q.Close())
	require.NoError(t, dev.Close())
}
