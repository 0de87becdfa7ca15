package target_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
)

// guarded serves one namespace to testHost, which has to authenticate with the
// returned keys.
func guarded(t testing.TB) (net.Addr, dhchap.Keys) {
	c, keys := guardedConfig(t)
	_, addr := serve(t, c)
	return addr, keys
}

func guardedConfig(t testing.TB) (target.Config, dhchap.Keys) {
	keys := dhchap.Keys{Host: dhchap.NewSecret(dhchap.SHA256), Controller: dhchap.NewSecret(dhchap.SHA512)}
	c := one(memory(t, 1<<20, 4096))
	c.Subsystems[0].Keys = map[string]dhchap.Keys{testHost: keys}
	return c, keys
}

// connectBarred sends a Connect, and expects success with a request for
// authentication.
func (h *client) connectBarred(qid, cntlid uint16) uint16 {
	s, d := h.connectCommand(qid, cntlid)
	h.capsule(s, d[:])
	r := h.response()
	require.Zero(h.t, r.Status())
	assert.EqualValues(h.t, nvme.ConnectAuthTransaction, r.Result()&0xffff0000)
	return uint16(r.Result())
}

func (h *client) security(fctype uint8, c nvme.Security) *nvme.SQE {
	h.cid++
	s := new(nvme.SQE)
	s.ResetFabrics(fctype, h.cid)
	s.SetSecurity(c)
	s.SGL().Set(nvme.SGLTransport, 0, c.Length)
	return s
}

func securityOf(length int) nvme.Security {
	return nvme.Security{Protocol: nvme.SecurityProtocolNVMe, Specific: nvme.SecuritySpecificAuth, Length: uint32(length)}
}

func (h *client) authSend(message []byte) nvme.Status {
	h.capsule(h.security(nvme.FabricsAuthSend, securityOf(len(message))), message)
	return h.response().Status()
}

func (h *client) authReceive() ([]byte, nvme.Status) {
	h.capsule(h.security(nvme.FabricsAuthReceive, securityOf(dhchap.MaxMessage)), nil)
	var data []byte
	for {
		x, b, d, err := h.next()
		require.NoError(h.t, err)
		data = append(data, d...)
		if x.Type == pdu.TypeCapsuleResp {
			return data, pdu.CQEOf(b).Status()
		}
	}
}

func hostSide(keys dhchap.Keys) *dhchap.Host { return hostOffering(keys, dhchap.NullGroup) }

func hostOffering(keys dhchap.Keys, group dhchap.Group) *dhchap.Host {
	return dhchap.NewHost(dhchap.Config{HostNQN: testHost, SubNQN: testNQN, Keys: keys,
		Offer: dhchap.Offer{Groups: []dhchap.Group{group}}})
}

// authenticate authenticates as the host and returns the messages of both sides.
// It stops early if the target reports a failure.
func (h *client) authenticate(keys dhchap.Keys) (messages [][]byte, err error) {
	host := hostSide(keys)
	next := host.Start()
	for next != nil {
		require.Zero(h.t, h.authSend(next))
		messages = append(messages, next)
		if host.Done() {
			break
		}
		answer, status := h.authReceive()
		require.Zero(h.t, status)
		assert.Len(h.t, answer, dhchap.MaxMessage, "all of it is filled")
		messages = append(messages, answer)
		if next, err = host.Answer(answer); err != nil {
			return messages, err
		}
	}
	return messages, nil
}

// TestBarred checks that the target refuses all commands but those of the
// authentication, on the admin queue and on I/O queues, before the host has
// authenticated.
func TestBarred(t *testing.T) {
	addr, keys := guarded(t)
	commands := func(h *client) []*nvme.SQE {
		get, set, leave := new(nvme.SQE), new(nvme.SQE), new(nvme.SQE)
		get.ResetFabrics(nvme.FabricsPropertyGet, 101)
		set.ResetFabrics(nvme.FabricsPropertySet, 102)
		set.SetProperty(nvme.PropertyCC, nvme.CCFabrics)
		leave.ResetFabrics(nvme.FabricsDisconnect, 103)
		list := []*nvme.SQE{get, set, leave, h.rw(nvme.IORead, 0, 1, 4096), h.rw(nvme.IOWrite, 0, 1, 4096), h.rw(nvme.IOReservationReg, 0, 1, 16)}
		for _, op := range []uint8{nvme.AdminIdentify, nvme.AdminKeepAlive, nvme.AdminGetLogPage, nvme.AdminAsyncEvent, nvme.AdminSetFeatures, 0xc0} {
			list = append(list, h.command(op))
		}
		return list
	}
	refused := func(h *client) {
		for _, s := range commands(h) {
			h.capsule(s, nil)
			assert.Equal(t, nvme.StatusAuthRequired|nvme.DNR, h.response().Status(), "opcode %#x type %#x", s.Opcode(), s.FabricsType())
		}
	}
	admin := dial(t, addr, 0)
	cntlid := admin.connectBarred(0, nvme.CNTLIDDynamic)
	refused(admin)
	// The target refuses I/O queues before the admin queue has authenticated.
	queue := dial(t, addr, 0)
	s, d := queue.connectCommand(1, cntlid)
	queue.capsule(s, d[:])
	assert.Equal(t, nvme.StatusCommandSequence|nvme.DNR, queue.response().Status())

	_, err := admin.authenticate(keys)
	require.NoError(t, err)
	admin.setProperty(nvme.PropertyCC, nvme.CCFabrics)
	queue.connectBarred(1, cntlid)
	refused(queue)
	_, err = queue.authenticate(dhchap.Keys{Host: keys.Host})
	require.NoError(t, err)
	_, status := queue.readBlocks(0, 1, 4096)
	assert.Zero(t, status)

	// Authenticate again, with commands between the messages.
	host := hostSide(keys)
	require.Zero(t, queue.authSend(host.Start()))
	_, status = queue.readBlocks(0, 1, 4096)
	assert.Zero(t, status)
	challenge, status := queue.authReceive()
	require.Zero(t, status)
	_, err = host.Answer(challenge)
	require.NoError(t, err)
	queue.capsule(queue.command(nvme.IOFlush), nil)
	assert.Zero(t, queue.response().Status())
	// A failed authentication ends the connection.
	require.Zero(t, queue.authSend(host.Start()))
	answer, _ := queue.authReceive()
	assert.Equal(t, []byte{0, 0xf1, 1, byte(dhchap.IncorrectMessage)}, []byte{answer[0], answer[1], answer[6], answer[7]})
	queue.ends(0)
}

// TestWrongProof checks that a host receives the failure message of a failed
// authentication, and that the connection ends after it.
func TestWrongProof(t *testing.T) {
	addr, keys := guarded(t)
	h := dial(t, addr, 0)
	h.connectBarred(0, nvme.CNTLIDDynamic)
	captured, err := h.authenticate(keys)
	require.NoError(t, err)

	for name, attempt := range map[string]func(h *client) error{
		"stolen NQN": func(h *client) error {
			_, err := h.authenticate(dhchap.Keys{Host: dhchap.NewSecret(dhchap.SHA256)})
			return err
		},
		"replay": func(h *client) error {
			require.Zero(t, h.authSend(captured[0]))
			challenge, _ := h.authReceive()
			assert.NotEqual(t, captured[1], challenge)
			require.Zero(t, h.authSend(captured[2]))
			answer, _ := h.authReceive()
			host := hostSide(keys)
			host.Start()
			_, err := host.Answer(answer)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := dial(t, addr, 0)
			h.connectBarred(0, nvme.CNTLIDDynamic)
			var e *dhchap.Error
			require.ErrorAs(t, attempt(h), &e)
			assert.Equal(t, []any{dhchap.Failed, true}, []any{e.Reason, e.Peer})
			h.ends(0)
		})
	}
	t.Run("the host refuses", func(t *testing.T) {
		h := dial(t, addr, 0)
		h.connectBarred(0, nvme.CNTLIDDynamic)
		host := hostSide(dhchap.Keys{Host: keys.Host, Controller: keys.Host})
		require.Zero(t, h.authSend(host.Start()))
		challenge, _ := h.authReceive()
		reply, err := host.Answer(challenge)
		require.NoError(t, err)
		require.Zero(t, h.authSend(reply))
		proof, _ := h.authReceive()
		failure, err := host.Answer(proof)
		require.ErrorContains(t, err, "the controller's proof is wrong")
		require.Zero(t, h.authSend(failure))
		h.ends(0)
	})
	t.Run("TLS", func(t *testing.T) {
		h := dial(t, addr, 0)
		h.connectBarred(0, nvme.CNTLIDDynamic)
		first := hostSide(keys).Start()
		first[6] = 1
		require.Zero(t, h.authSend(first))
		answer, _ := h.authReceive()
		assert.Equal(t, []byte{1, byte(dhchap.ConcatMismatch)}, answer[6:8])
		h.ends(0)
	})
}

// TestSecurityFields checks that the target refuses authentication commands with
// invalid fields.
func TestSecurityFields(t *testing.T) {
	addr, _ := guarded(t)
	h := dial(t, addr, 0)
	h.connectBarred(0, nvme.CNTLIDDynamic)
	for name, x := range map[string]nvme.Security{
		"protocol":  {Protocol: 0xea, Specific: nvme.SecuritySpecificAuth, Length: 512},
		"specific":  {Protocol: nvme.SecurityProtocolNVMe, Specific: 1, Length: 512},
		"no length": securityOf(0),
		"too long":  securityOf(8193),
		"huge":      securityOf(1<<31 - 1),
	} {
		for _, fctype := range []uint8{nvme.FabricsAuthSend, nvme.FabricsAuthReceive} {
			h.capsule(h.security(fctype, x), nil)
			assert.Equal(t, nvme.StatusInvalidField|nvme.DNR, h.response().Status(), name)
		}
	}
	s := h.security(nvme.FabricsAuthSend, securityOf(100))
	h.capsule(s, make([]byte, 96))
	assert.Equal(t, nvme.StatusInvalidField|nvme.DNR, h.response().Status(), "two lengths")
	_, status := h.authReceive()
	assert.Equal(t, nvme.StatusCommandSequence|nvme.DNR, status, "nothing was sent")
	require.Zero(t, h.authSend([]byte{0}))
	h.capsule(h.security(nvme.FabricsAuthReceive, securityOf(4)), nil)
	assert.Equal(t, nvme.StatusInvalidField|nvme.DNR, h.response().Status(), "no space for a failure")
	h.ends(0)

	_, open := serve(t, one(memory(t, 1<<20, 4096)))
	h = dial(t, open, 0)
	h.admin()
	assert.Equal(t, nvme.StatusInvalidOpcode|nvme.DNR, h.authSend(make([]byte, 72)), "no host has a key")
}

// TestAuthenticationTimeout checks that the connection of a host ends that does not
// complete its authentication in time.
func TestAuthenticationTimeout(t *testing.T) {
	c, keys := guardedConfig(t)
	tgt, err := target.New(c)
	require.NoError(t, err)
	defer tgt.Close(context.Background())
	target.SetPatience(tgt, 2*time.Second) // long enough for the first host on a busy machine
	proved := pair(t, tgt)
	proved.initialise(0)
	proved.connectBarred(0, nvme.CNTLIDDynamic)
	_, err = proved.authenticate(keys)
	require.NoError(t, err)
	var stopped []*client
	for steps := range 3 {
		h := pair(t, tgt)
		stopped = append(stopped, h)
		h.initialise(0)
		h.connectBarred(0, nvme.CNTLIDDynamic)
		if steps > 0 {
			require.Zero(t, h.authSend(hostSide(keys).Start()))
		}
		if steps > 1 {
			_, status := h.authReceive()
			require.Zero(t, status)
		}
	}
	start := time.Now()
	for _, h := range stopped {
		h.ends(0)
	}
	assert.Less(t, time.Since(start), hang/2)
	proved.setProperty(nvme.PropertyCC, nvme.CCFabrics)
}

// TestExpensiveInTurn checks a connection whose Diffie-Hellman computation waits for
// those of other connections. It counts as asleep, and can be ended in all ways.
func TestExpensiveInTurn(t *testing.T) {
	for name, end := range map[string]func(*target.Target) error{
		"Cut":             func(tgt *target.Target) error { tgt.Cut(func(target.Host) bool { return true }); return nil },
		"SetHosts":        func(tgt *target.Target) error { return tgt.SetHosts(testNQN, []string{testNQN}) },
		"RemoveSubsystem": func(tgt *target.Target) error { return tgt.RemoveSubsystem(testNQN) },
		"Close":           func(tgt *target.Target) error { return tgt.Close(context.Background()) },
		"overdue":         nil,
		"its turn":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			c, keys := guardedConfig(t)
			tgt, err := target.New(c)
			require.NoError(t, err)
			if name == "overdue" {
				target.SetPatience(tgt, 2*time.Second)
			}
			release := sync.OnceFunc(target.OccupyExchanges(tgt))
			defer func() { release(); assert.NoError(t, tgt.Close(context.Background())) }()
			h := pair(t, tgt)
			h.initialise(0)
			h.connectBarred(0, nvme.CNTLIDDynamic)
			require.Zero(t, h.authSend(hostOffering(keys, dhchap.FFDHE2048).Start()))
			h.capsule(h.security(nvme.FabricsAuthReceive, securityOf(dhchap.MaxMessage)), nil)
			assert.Eventually(t, func() bool { return target.Running(tgt) == 0 }, hang, time.Millisecond)
			switch {
			case end != nil:
				done := make(chan error, 1)
				go func() { done <- end(tgt) }()
				select {
				case err := <-done:
					require.NoError(t, err)
				case <-time.After(hang):
					require.Fail(t, "it waits for the turn of a host that is cut off")
				}
			case name == "its turn":
				release()
				x, _ := h.read()
				assert.Equal(t, pdu.TypeC2HData, x.Type)
				return
			}
			require.NoError(t, h.c.SetDeadline(time.Now().Add(hang)))
			h.ends(0)
		})
	}
}

// TestLargeGroups checks that a target without a policy refuses the two largest
// Diffie-Hellman groups.
func TestLargeGroups(t *testing.T) {
	addr, keys := guarded(t)
	for _, group := range []dhchap.Group{dhchap.FFDHE6144, dhchap.FFDHE8192} {
		h := dial(t, addr, 0)
		h.connectBarred(0, nvme.CNTLIDDynamic)
		require.Zero(t, h.authSend(hostOffering(keys, group).Start()))
		answer, _ := h.authReceive()
		assert.Equal(t, []byte{1, byte(dhchap.GroupUnusable)}, answer[6:8])
		h.ends(0)
	}
}

// TestOneCommandAtATime checks that a second command that waits for data ends the
// connection of a host that has not authenticated. After the authentication the
// host can use its whole queue.
func TestOneCommandAtATime(t *testing.T) {
	addr, keys := guarded(t)
	h := dial(t, addr, 0)
	h.connectBarred(0, nvme.CNTLIDDynamic)
	message := hostSide(keys).Start()
	first, second := h.security(nvme.FabricsAuthSend, securityOf(len(message))), h.security(nvme.FabricsAuthSend, securityOf(len(message)))
	h.capsule(first, nil)
	h.capsule(second, nil)
	x, b := h.read()
	require.Equal(t, pdu.TypeR2T, x.Type)
	require.Equal(t, first.CID(), pdu.R2TOf(b).CID)
	h.ends(pdu.SequenceError)

	h = dial(t, addr, 0)
	h.connectBarred(0, nvme.CNTLIDDynamic)
	_, err := h.authenticate(keys)
	require.NoError(t, err)
	for range 2 {
		h.capsule(h.security(nvme.FabricsAuthSend, securityOf(len(message))), nil)
	}
	for range 2 {
		x, _ = h.read()
		assert.Equal(t, pdu.TypeR2T, x.Type)
	}
}

// TestImpostorsQueue checks that a host that knows the names of another host, but
// not its key, cannot prevent that host from connecting its queues.
func TestImpostorsQueue(t *testing.T) {
	addr, keys := guarded(t)
	admin := dial(t, addr, 0)
	cntlid := admin.connectBarred(0, nvme.CNTLIDDynamic)
	_, err := admin.authenticate(keys)
	require.NoError(t, err)
	admin.setProperty(nvme.PropertyCC, nvme.CCFabrics)

	impostor, second, queue := dial(t, addr, 0), dial(t, addr, 0), dial(t, addr, 0)
	impostor.connectBarred(1, cntlid)
	second.connectBarred(1, cntlid)
	queue.connectBarred(1, cntlid)
	_, err = queue.authenticate(keys)
	require.NoError(t, err)
	_, err = impostor.authenticate(dhchap.Keys{Host: keys.Controller})
	require.Error(t, err)
	impostor.ends(0)
	// A second connection for the same queue is refused, even with the key.
	host := hostSide(dhchap.Keys{Host: keys.Host})
	require.Zero(t, second.authSend(host.Start()))
	challenge, _ := second.authReceive()
	reply, err := host.Answer(challenge)
	require.NoError(t, err)
	require.Zero(t, second.authSend(reply))
	_, status := second.authReceive()
	assert.Equal(t, nvme.StatusCommandSequence|nvme.DNR, status)
	second.ends(0)
	_, status = queue.readBlocks(0, 1, 4096)
	assert.Zero(t, status)
}

// TestKeysAreChecked checks that New refuses keys without a secret, and keys of a
// host whose name is no NQN.
func TestKeysAreChecked(t *testing.T) {
	for nqn, keys := range map[string]dhchap.Keys{testHost: {}, "host": {Host: dhchap.NewSecret(dhchap.SHA256)}} {
		_, err := target.New(target.Config{Subsystems: []target.Subsystem{{NQN: testNQN, Keys: map[string]dhchap.Keys{nqn: keys}}}})
		assert.ErrorContains(t, err, nqn)
	}
}

// TestKeysOfAll checks that the keys of the target apply to subsystems without keys
// of their own, also to subsystems that are added later.
func TestKeysOfAll(t *testing.T) {
	c, _ := guardedConfig(t)
	c.Keys, c.Subsystems[0].Keys = c.Subsystems[0].Keys, nil
	later := c.Subsystems[0]
	later.NQN, later.Namespaces = testNQN+":later", []target.Namespace{{Backing: memory(t, 1<<20, 4096)}}
	tgt, err := target.New(c)
	require.NoError(t, err)
	defer tgt.Close(context.Background())
	require.NoError(t, tgt.AddSubsystem(later))
	for _, nqn := range []string{testNQN, later.NQN} {
		h := pair(t, tgt)
		h.initialise(0)
		s, d := h.connectCommand(0, nvme.CNTLIDDynamic)
		d.Set([16]byte{1}, nvme.CNTLIDDynamic, nqn, testHost)
		h.capsule(s, d[:])
		r := h.response()
		require.Zero(t, r.Status())
		assert.EqualValues(t, nvme.ConnectAuthTransaction, r.Result()&0xffff0000, nqn)
	}
}

// TestReplacedKeys checks that new keys end the connections of exactly those hosts
// whose key has changed.
func TestReplacedKeys(t *testing.T) {
	keys := func() dhchap.Keys { return dhchap.Keys{Host: dhchap.NewSecret(dhchap.SHA256)} }
	old, mine := keys(), keys()
	own := func(tgt *target.Target, k dhchap.Keys) error {
		return tgt.SetAccess(testNQN, []string{testHost}, map[string]dhchap.Keys{testHost: k})
	}
	whole := func(tgt *target.Target, k dhchap.Keys) error {
		return tgt.SetKeys(map[string]dhchap.Keys{testHost: k})
	}
	for name, c := range map[string]struct {
		config func(*target.Config)
		set    func(*target.Target, dhchap.Keys) error
	}{
		"of the target":    {func(c *target.Config) { c.Keys = map[string]dhchap.Keys{testHost: old} }, whole},
		"of the subsystem": {func(c *target.Config) { c.Subsystems[0].Keys = map[string]dhchap.Keys{testHost: old} }, own},
	} {
		t.Run(name, func(t *testing.T) {
			config := one(memory(t, 1<<20, 4096))
			c.config(&config)
			tgt, addr := serve(t, config)
			assert.True(t, tgt.Authenticates(testNQN))
			assert.False(t, tgt.Authenticates(testNQN+"x"))
			open := func(k dhchap.Keys) (*tcp.Device, error) {
				return tcp.Open(t.Context(), id(t, addr, 1), tcp.Options{HostNQN: testHost, Keys: k})
			}
			h := dial(t, addr, 0)
			h.connectBarred(0, nvme.CNTLIDDynamic)
			_, err := h.authenticate(old)
			require.NoError(t, err)
			require.NoError(t, c.set(tgt, old))
			h.setProperty(nvme.PropertyCC, nvme.CCFabrics)
			require.NoError(t, c.set(tgt, mine))
			h.ends(0)
			_, err = open(old)
			require.ErrorIs(t, err, nvmf.ErrAuthentication)
			d, err := open(mine)
			require.NoError(t, err)
			require.NoError(t, d.Close())
			require.ErrorContains(t, c.set(tgt, dhchap.Keys{}), "has no key")
		})
	}
	// Keys of the target do not apply to a subsystem with keys of its own.
	config, theirs := guardedConfig(t)
	tgt, addr := serve(t, config)
	h := dial(t, addr, 0)
	h.connectBarred(0, nvme.CNTLIDDynamic)
	_, err := h.authenticate(theirs)
	require.NoError(t, err)
	require.NoError(t, whole(tgt, mine))
	h.setProperty(nvme.PropertyCC, nvme.CCFabrics)
}

// TestHostsOfARun checks hosts with different NQNs and keys but with the same host
// identifier, as the hosts of one run. They share one reservation.
func TestHostsOfARun(t *testing.T) {
	hosts := map[string]dhchap.Keys{}
	for _, nqn := range []string{testHost, testHost + "2"} {
		hosts[nqn] = dhchap.Keys{Host: dhchap.NewSecret(dhchap.SHA256)}
	}
	c := one(memory(t, 1<<20, 4096))
	c.Subsystems[0].Keys = hosts
	_, addr := serve(t, c)
	run := uuid.New()
	for nqn, keys := range hosts {
		d, err := tcp.Open(t.Context(), id(t, addr, 1), tcp.Options{HostNQN: nqn, HostID: run, Keys: keys})
		require.NoError(t, err)
		defer func() { assert.NoError(t, d.Close()) }()
		require.NoError(t, d.Reserve(t.Context(), 7))
		q, err := d.OpenQueue(t.Context(), 8)
		require.NoError(t, err)
		defer func() { assert.NoError(t, q.Close()) }()
		w := []*nvmf.Command{{Opcode: nvmf.Write, Blocks: 1, Data: [][]byte{make([]byte, 4096)}}}
		q.Submit(w)
		require.NoError(t, q.Wait(w))
	}
}

// TestHostWithoutKey checks that a subsystem with keys refuses a host without a key,
// even if the subsystem has no list of hosts.
func TestHostWithoutKey(t *testing.T) {
	c, _ := guardedConfig(t)
	c.Subsystems[0].Hosts = nil
	_, addr := serve(t, c)
	h := dial(t, addr, 0)
	s, d := h.connectCommand(0, nvme.CNTLIDDynamic)
	d.Set([16]byte{1}, nvme.CNTLIDDynamic, testNQN, testHost+"x")
	h.capsule(s, d[:])
	assert.Equal(t, nvme.StatusConnectInvalidHost, h.response().Status().Code())
}
