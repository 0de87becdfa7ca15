package target_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/tcp"
)

// discover makes h the admin queue of a discovery controller.
func (h *client) discover(kato uint32) {
	s, d := h.connectCommand(0, nvme.CNTLIDDynamic)
	s.SetConnect(nvme.Connect{SQSize: 1023, KATO: kato})
	d.Set([16]byte{1}, nvme.CNTLIDDynamic, nvme.DiscoveryNQN, testHost)
	h.capsule(s, d[:])
	require.Zero(h.t, h.response().Status())
	h.setProperty(nvme.PropertyCC, nvme.CCFabrics)
}

// TestGuestsTakeNobodysPlace checks that many silent, discovery or unauthenticated
// connections neither keep a host from connecting nor end connections of hosts.
func TestGuestsTakeNobodysPlace(t *testing.T) {
	for name, guest := range map[string]func(t *testing.T, addr net.Addr){
		"silent":    func(t *testing.T, addr net.Addr) { connect(t, addr) },
		"discovery": func(t *testing.T, addr net.Addr) { dial(t, addr, 0).discover(0) },
		"barred":    func(t *testing.T, addr net.Addr) { dial(t, addr, 0).connectBarred(0, nvme.CNTLIDDynamic) },
	} {
		for _, keyed := range []bool{true, false} {
			if !keyed && name == "barred" {
				continue
			}
			t.Run(name, func(t *testing.T) {
				c, keys := guardedConfig(t)
				if !keyed {
					c.Subsystems[0].Keys, keys = nil, dhchap.Keys{}
				}
				c.MaxConnections = 16
				_, addr := serve(t, c)
				open := func() nvmf.Device {
					d, err := tcp.Open(t.Context(), id(t, addr, 1), tcp.Options{HostNQN: testHost, Keys: keys})
					require.NoError(t, err)
					return d
				}
				first := open()
				defer first.Close()
				q, err := first.OpenQueue(t.Context(), 4)
				require.NoError(t, err)
				defer q.Close()
				for range 3 * c.MaxConnections {
					guest(t, addr)
				}
				second := open()
				defer second.Close()
				assert.NoError(t, q.Wait(submit(q, &nvmf.Command{Opcode: nvmf.Flush})), "who was let in stays")
			})
		}
	}
}

// TestGuestsOfOneAddress checks that unauthenticated connections of one address have only a
// part of the places, and that a new connection of that address ends the oldest one.
func TestGuestsOfOneAddress(t *testing.T) {
	c, _ := guardedConfig(t)
	c.MaxConnections = 16
	_, addr := serve(t, c)
	var guests []*client
	for range 16/4 + 2 {
		guest := dial(t, addr, 0)
		guest.discover(0) // a connected guest does not time out
		guests = append(guests, guest)
	}
	for _, g := range guests[:2] {
		_, _ = g.c.Write(g.encode(g.command(nvme.AdminKeepAlive), nil)) // fails, or is not answered
		_, _, _, err := g.next()
		assert.Error(t, err)
	}
	dial(t, addr, 0).discover(0)
}

func submit(q nvmf.Queue, cmds ...*nvmf.Command) []*nvmf.Command {
	q.Submit(cmds)
	return cmds
}

// TestDiscoveryIsBounded checks that a discovery controller has a bounded keep-alive
// time-out whatever the host asks for, and that it accepts no commands with data.
func TestDiscoveryIsBounded(t *testing.T) {
	_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	for kato, want := range map[uint32]uint64{0: 120_000, 5000: 5000, 1 << 31: 120_000} {
		h := dial(t, addr, 0)
		h.discover(kato)
		s := h.command(nvme.AdminGetFeatures)
		s.SetCDW(10, nvme.FeatureKeepAliveTimer)
		h.capsule(s, nil)
		r := h.response()
		require.Zero(t, r.Status())
		assert.Equal(t, want, r.Result()&0xffffffff)
	}
	h := dial(t, addr, 0)
	h.discover(0)
	s := h.command(nvme.AdminSetFeatures)
	s.SetCDW(10, nvme.FeatureHostID)
	s.SetCDW(11, 1)
	s.SGL().Set(nvme.SGLTransport, 0, 16)
	h.capsule(s, nil)
	assert.Equal(t, nvme.StatusInvalidField, h.response().Status().Code())
	// All commands are answered, although the controller executes only a few at a time.
	var all []byte
	const commands = 200
	for range commands {
		s := h.command(nvme.AdminKeepAlive)
		all = append(all, h.encode(s, nil)...)
	}
	h.write(all)
	for range commands {
		require.Zero(t, h.response().Status())
	}
}
