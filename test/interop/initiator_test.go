//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/tcp"
)

type options = tcp.Options

func open(t testing.TB, id nvmf.TransportID, o options) *tcp.Device {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	d, err := tcp.Open(ctx, id, o)
	require.NoError(t, err)
	return d
}

// TestInitiator tests our initiator against every target.
func TestInitiator(t *testing.T) {
	forPeers(t, func(t *testing.T, r *running) {
		for lba, id := range r.subsystems {
			t.Run(fmt.Sprintf("%d-byte blocks", lba), func(t *testing.T) { testSubsystem(t, id, lba, len(r.subsystems) > 1) })
		}
		t.Run("authentication", func(t *testing.T) {
			if r.auth == nil {
				t.Skip("this target has no in-band authentication")
			}
			testAuthentication(t, r.auth)
		})
	})
}

func testSubsystem(t *testing.T, id nvmf.TransportID, lba nvmf.Bytes, several bool) {
	for _, o := range []struct {
		name string
		options
	}{
		{"no digests", options{}},
		{"header digest", options{HeaderDigest: true}},
		{"data digest", options{DataDigest: true}},
		{"both digests", options{HeaderDigest: true, DataDigest: true}},
	} {
		t.Run(o.name, func(t *testing.T) {
			blocktest.Run(t, func(t *testing.T) nvmf.Device {
				d := open(t, id, o.options)
				require.Equal(t, lba, d.Identity().LBASize)
				return d
			})
		})
	}
	t.Run("several namespaces", func(t *testing.T) {
		if !several {
			t.Skip("this target was given with one namespace")
		}
		testNamespaces(t, id)
	})
	t.Run("refusals", func(t *testing.T) { testRefusals(t, id) })
	t.Run("discovery", func(t *testing.T) { testDiscovery(t, id) })
	t.Run("reservations", func(t *testing.T) { testReservations(t, id) })
}

// testNamespaces writes different data to each namespace of a subsystem, with all of them open.
func testNamespaces(t *testing.T, id nvmf.TransportID) {
	var queues []nvmf.Queue
	identities := map[uuid.UUID]bool{}
	content := func(i, lba nvmf.Bytes) []byte { return []byte(strings.Repeat(string(rune('a'+i)), int(lba))) }
	command := func(q nvmf.Queue, c nvmf.Command) {
		c.LBA, c.Blocks = 11, 1
		q.Submit([]*nvmf.Command{&c})
		require.NoError(t, q.Wait([]*nvmf.Command{&c}))
	}
	var lba nvmf.Bytes
	for i, nsid := range nsids {
		id.NSID = nsid
		d := open(t, id, options{})
		q, err := d.OpenQueue(t.Context(), 4)
		require.NoError(t, err)
		defer func() {
			assert.NoError(t, q.Close())
			assert.NoError(t, d.Close())
		}()
		lba = d.Identity().LBASize
		identities[d.Identity().UUID] = true
		command(q, nvmf.Command{Opcode: nvmf.Write, Data: [][]byte{content(nvmf.Bytes(i), lba)}})
		queues = append(queues, q)
	}
	assert.Len(t, identities, len(nsids), "each namespace is one of its own")
	for i, q := range queues {
		got := make([]byte, lba)
		command(q, nvmf.Command{Opcode: nvmf.Read, Data: [][]byte{got}})
		assert.Equal(t, content(nvmf.Bytes(i), lba), got)
	}
}

func testRefusals(t *testing.T, id nvmf.TransportID) {
	other := id
	other.SubNQN = "nqn.2026-01.test:there-is-no-such-subsystem"
	_, err := tcp.Open(t.Context(), other, options{})
	assert.ErrorIs(t, err, nvmf.ErrNoSubsystem)
	other = id
	other.NSID = 31
	_, err = tcp.Open(t.Context(), other, options{})
	assert.ErrorIs(t, err, nvmf.ErrNoNamespace)
}

func testDiscovery(t *testing.T, id nvmf.TransportID) {
	entries, err := tcp.Discover(t.Context(), id, options{})
	require.NoError(t, err)
	var names []string
	for i := range entries {
		names = append(names, entries[i].SubNQN())
	}
	assert.Contains(t, names, id.SubNQN)
}

func testReservations(t *testing.T, id nvmf.TransportID) {
	d := open(t, id, options{})
	defer d.Close()
	if !d.Identity().Reservations {
		assert.ErrorIs(t, d.Reserve(t.Context(), 1), nvmf.ErrNoReservations)
		assert.ErrorIs(t, d.Unreserve(t.Context(), 1), nvmf.ErrNoReservations)
		t.Skip("this target has no reservations")
	}
	blocktest.RunReserver(t, blocktest.Reservers{Open: func(t *testing.T, host uuid.UUID) nvmf.Reserver {
		return open(t, id, options{HostID: host})
	}})
}

// testAuthentication tries every hash and group, with and without authentication of the target, and the refusals of each end.
func testAuthentication(t *testing.T, a *authenticating) {
	for _, mutual := range []bool{false, true} {
		for _, hash := range []dhchap.Hash{dhchap.SHA256, dhchap.SHA384, dhchap.SHA512} {
			for _, group := range a.groups {
				t.Run(fmt.Sprintf("%s %s mutual=%t", hash, group, mutual), func(t *testing.T) {
					if a.choose != nil {
						a.choose(t, hash, group)
					}
					o := options{HostNQN: a.host, Keys: a.keys,
						AuthOffer: dhchap.Offer{Hashes: []dhchap.Hash{hash}, Groups: []dhchap.Group{group}}}
					if a.choose != nil && group == dhchap.NullGroup {
						// Linux 6.12 with the NULL group refuses a host that offers only that.
						o.AuthOffer.Groups = nil
					}
					if !mutual {
						o.Keys.Controller = dhchap.Secret{}
					}
					use(t, open(t, a.id, o))
				})
			}
		}
	}
	if a.choose != nil {
		a.choose(t, dhchap.SHA256, dhchap.FFDHE2048)
	}
	other := dhchap.NewSecret(dhchap.SHA256)
	for text, wrong := range map[string]dhchap.Keys{
		"target refuses host":   {Host: other},
		"--dhchap-secret":       {},
		"target has a key":      {Host: other, Controller: a.keys.Controller},
		"refuses the target of": {Host: a.keys.Host, Controller: other},
	} {
		t.Run(text, func(t *testing.T) {
			_, err := tcp.Open(t.Context(), a.id, options{HostNQN: a.host, Keys: wrong})
			if errors.Is(err, nvmf.ErrUnreachable) { // Linux often disconnects a host with a wrong key before it sends the reason
				text = "the wrong key"
			} else {
				require.ErrorIs(t, err, nvmf.ErrAuthentication)
			}
			assert.ErrorContains(t, err, text)
		})
	}
}

// use writes and reads a block through another queue, and closes the device.
func use(t *testing.T, d *tcp.Device) {
	q, err := d.OpenQueue(t.Context(), 4)
	require.NoError(t, err)
	out, in := make([]byte, d.Identity().LBASize), make([]byte, d.Identity().LBASize)
	copy(out, t.Name())
	for _, c := range []*nvmf.Command{
		{Opcode: nvmf.Write, LBA: 7, Blocks: 1, Data: [][]byte{out}}, {Opcode: nvmf.Read, LBA: 7, Blocks: 1, Data: [][]byte{in}},
	} {
		q.Submit([]*nvmf.Command{c})
		require.NoError(t, q.Wait([]*nvmf.Command{c}))
	}
	assert.Equal(t, out, in)
	require.NoError(t, q.Close())
	require.NoError(t, d.Close())
}
