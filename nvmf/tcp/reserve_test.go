package tcp_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
)

// restartable is a target in this process that can be started anew at the
// same address, with a namespace of the same UUID.
type restartable struct {
	backing target.Backing
	target  *target.Target
	addr    string
}

// lasting is a Backing that outlives its target.
type lasting struct{ target.Backing }

func (lasting) Close() error { return nil }

func (r *restartable) start(t *testing.T, inCapsule nvmf.Bytes) {
	var err error
	r.target, err = target.New(target.Config{InCapsule: inCapsule, Subsystems: []target.Subsystem{{
		NQN: targetNQN, Namespaces: []target.Namespace{{NSID: 1, Backing: lasting{r.backing}}},
	}}})
	require.NoError(t, err)
	var addr net.Addr
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		addr, err = r.target.Listen(r.addr)
		require.NoError(t, err)
	}, 5*time.Second, 10*time.Millisecond)
	r.addr = addr.String()
}

func (r *restartable) stop(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	assert.NoError(t, r.target.Close(ctx))
}

func TestReservations(t *testing.T) {
	for _, c := range []struct {
		name               string
		lbaSize, inCapsule nvmf.Bytes
		options            tcp.Options
	}{
		{"in capsule", 4096, 0, tcp.Options{}},
		{"R2T", 512, 512, tcp.Options{}},
		{"digests", 4096, 8192, tcp.Options{HeaderDigest: true, DataDigest: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &restartable{addr: "127.0.0.1:0"}
			var err error
			r.backing, err = target.NewMemory(64*nvmf.MiB, c.lbaSize)
			require.NoError(t, err)
			r.start(t, c.inCapsule)
			t.Cleanup(func() {
				r.stop(t)
				assert.NoError(t, r.backing.Close())
			})
			blocktest.RunReserver(t, blocktest.Reservers{
				Open: func(t *testing.T, host uuid.UUID) nvmf.Reserver {
					o := c.options
					o.HostID = host
					return openDevice(t, addressID(t, r.addr), o)
				},
				Restart: func(t *testing.T) {
					r.stop(t)
					r.start(t, c.inCapsule)
				},
			})
		})
	}
}
