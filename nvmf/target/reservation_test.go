package target_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/target"
)

// guest returns an I/O queue of a host with the host identifier id.
func guest(t testing.TB, addr net.Addr, id byte) *client {
	admin, q := guest2(t, addr, id)
	t.Cleanup(func() { _ = admin.c.Close() })
	return q
}

// guest2 returns the admin queue and an I/O queue of a host with the host identifier id.
func guest2(t testing.TB, addr net.Addr, id byte) (admin, queue *client) {
	admin, queue = dial(t, addr, 0), dial(t, addr, 0)
	become(t, admin, queue, id)
	return admin, queue
}

// paired is guest through socket pairs instead of TCP.
func paired(t testing.TB, tgt *target.Target, id byte) *client {
	admin, queue := pair(t, tgt), pair(t, tgt)
	admin.initialise(0)
	queue.initialise(0)
	become(t, admin, queue, id)
	return queue
}

// become connects two connections as the admin queue and I/O queue of a host.
func become(t testing.TB, admin, queue *client, id byte) {
	connect := func(h *client, qid, cntlid uint16) uint16 {
		s, d := h.connectCommand(qid, cntlid)
		d.Set([16]byte{id}, cntlid, testNQN, fmt.Sprintf("%s-%d", testHost, id))
		h.capsule(s, d[:])
		r := h.response()
		require.Zero(t, r.Status())
		return uint16(r.Result())
	}
	cntlid := connect(admin, 0, nvme.CNTLIDDynamic)
	admin.setProperty(nvme.PropertyCC, nvme.CCFabrics)
	connect(queue, 1, cntlid)
}

// reservation returns a reservation command with its data.
func (h *client) reservation(opcode uint8, r nvme.ReservationCommand, current, other uint64) (*nvme.SQE, []byte) {
	s := h.command(opcode)
	s.SetReservation(r)
	if opcode == nvme.IOReservationRelease {
		var k nvme.ReservationKey
		k.Set(current)
		return s, k[:]
	}
	var k nvme.ReservationKeys
	k.Set(current, other)
	return s, k[:]
}

func (h *client) reserve(opcode uint8, r nvme.ReservationCommand, current, other uint64) nvme.Status {
	s, data := h.reservation(opcode, r, current, other)
	h.capsule(s, data)
	return h.response().Status().Code()
}

func (h *client) register(key uint64) nvme.Status {
	return h.reserve(nvme.IOReservationReg, nvme.ReservationCommand{}, 0, key)
}

func (h *client) acquire(action uint8, kind nvme.ReservationType, current, other uint64) nvme.Status {
	return h.reserve(nvme.IOReservationAcquire, nvme.ReservationCommand{Action: action, Type: kind}, current, other)
}

// status returns the reservation report.
func (h *client) status() nvme.ReservationStatus {
	s := h.command(nvme.IOReservationReport)
	s.SetReservationReport(8192, true)
	s.SGL().Set(nvme.SGLTransport, 0, 8192)
	h.capsule(s, nil)
	x, _, data, err := h.next()
	require.NoError(h.t, err)
	require.EqualValues(h.t, 8192, x.Data)
	require.Zero(h.t, h.response().Status())
	r, total, ok := nvme.ReservationStatusOf(data)
	require.True(h.t, ok)
	require.Len(h.t, r.Registrants, total)
	return r
}

// TestReservationRules executes lists of reservation commands. The hosts have the
// numbers 1 to 3. The key of a host is its number times 0x10 unless a step says otherwise.
func TestReservationRules(t *testing.T) {
	const (
		we, ea, wero, earo, wear, eaar = nvme.WriteExclusive, nvme.ExclusiveAccess, nvme.WriteExclusiveRegistrantsOnly,
			nvme.ExclusiveAccessRegistrantsOnly, nvme.WriteExclusiveAllRegistrants, nvme.ExclusiveAccessAllRegistrants
		conflict, invalid = nvme.StatusReservation, nvme.StatusInvalidField
		reg, acq, rel     = nvme.IOReservationReg, nvme.IOReservationAcquire, nvme.IOReservationRelease
	)
	type command = nvme.ReservationCommand
	type step struct {
		host    int
		opcode  uint8
		command command
		current uint64 // key
		other   uint64
		want    nvme.Status
	}
	register := func(hosts ...int) (list []step) {
		for _, h := range hosts {
			list = append(list, step{h, reg, command{}, 0, uint64(h) * 0x10, 0})
		}
		return list
	}
	join := func(lists ...[]step) (all []step) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	take := func(host int, kind nvme.ReservationType) []step {
		return []step{{host, acq, command{Type: kind}, uint64(host) * 0x10, 0, 0}}
	}
	replace, replaceAnyway := command{Action: nvme.ReservationReplace}, command{Action: nvme.ReservationReplace, IgnoreKey: true}
	unregister, unregisterAnyway := command{Action: nvme.ReservationUnregister}, command{Action: nvme.ReservationUnregister, IgnoreKey: true}
	preempt := func(kind nvme.ReservationType) command {
		return command{Action: nvme.ReservationPreempt, Type: kind}
	}
	for _, x := range []struct {
		name    string
		steps   []step
		kind    nvme.ReservationType
		holders []int // hosts
		keys    map[int]uint64
	}{
		{"register", join(register(1, 2), []step{
			{1, reg, command{}, 0, 0x10, 0},
			{1, reg, command{}, 0, 0x11, conflict},
			{1, reg, command{IgnoreKey: true}, 0, 0x11, conflict},
			{3, reg, command{}, 0, 0, invalid},
			{3, reg, command{Action: 3}, 0, 0x30, invalid},
			{3, reg, command{Persist: nvme.PersistOn}, 0, 0x30, invalid},
			{3, reg, command{Persist: 1}, 0, 0x30, invalid},
			{3, reg, command{Persist: nvme.PersistOff}, 0, 0x10, 0},
		}), 0, nil, map[int]uint64{1: 0x10, 2: 0x20, 3: 0x10}},
		{"replace", join(register(1, 2), []step{
			{1, reg, replace, 0x11, 0x12, conflict},
			{1, reg, replace, 0x10, 0, invalid},
			{1, reg, replace, 0x10, 0x12, 0},
			{2, reg, replaceAnyway, 0x99, 0x22, 0},
			{3, reg, replace, 0, 0x30, conflict},
			{3, reg, replaceAnyway, 0, 0x33, 0},
		}), 0, nil, map[int]uint64{1: 0x12, 2: 0x22, 3: 0x33}},
		{"unregister", join(register(1, 2), []step{
			{1, reg, unregister, 0x11, 0, conflict},
			{1, reg, unregister, 0x10, 0, 0},
			{1, reg, unregister, 0x10, 0, conflict},
			{1, reg, unregisterAnyway, 0x10, 0, conflict},
			{2, reg, unregisterAnyway, 0x10, 0, 0},
		}), 0, nil, nil},
		{"acquire", join(register(1, 2), []step{
			{3, acq, command{Type: we}, 0, 0, conflict},
			{3, acq, command{Type: we}, 0x10, 0, conflict},
			{1, acq, command{Type: we}, 0x11, 0, conflict},
			{1, acq, command{Type: we, IgnoreKey: true}, 0x10, 0, invalid},
			{1, acq, command{Type: 0}, 0x10, 0, invalid},
			{1, acq, command{Type: 7}, 0x10, 0, invalid},
			{1, acq, command{Type: we, Action: 3}, 0x10, 0, invalid},
			{1, acq, command{Type: we}, 0x10, 0, 0},
			{1, acq, command{Type: we}, 0x10, 0, 0},
			{1, acq, command{Type: ea}, 0x10, 0, conflict},
			{2, acq, command{Type: we}, 0x20, 0, conflict},
		}), we, []int{1}, map[int]uint64{1: 0x10, 2: 0x20}},
		{"registrants only has one holder", join(register(1, 2), take(1, wero), []step{
			{2, acq, command{Type: wero}, 0x20, 0, conflict},
			{2, rel, command{Type: wero}, 0x20, 0, 0},
		}), wero, []int{1}, map[int]uint64{1: 0x10, 2: 0x20}},
		{"its holder unregisters", join(register(1, 2), take(1, earo), []step{
			{1, reg, unregister, 0x10, 0, 0},
		}), 0, nil, map[int]uint64{2: 0x20}},
		{"all registrants hold", join(register(1, 2), take(1, wear), []step{
			{2, acq, command{Type: wear}, 0x20, 0, 0},
			{2, acq, command{Type: we}, 0x20, 0, conflict},
			{1, reg, unregister, 0x10, 0, 0},
		}), wear, []int{2}, map[int]uint64{2: 0x20}},
		{"until the last one unregisters", join(register(1, 2), take(1, eaar), []step{
			{1, reg, unregister, 0x10, 0, 0},
			{2, reg, unregister, 0x20, 0, 0},
		}), 0, nil, nil},
		{"or any one releases", join(register(1, 2), take(1, eaar), []step{
			{2, rel, command{Type: eaar}, 0x20, 0, 0},
		}), 0, nil, map[int]uint64{1: 0x10, 2: 0x20}},
		{"replacing a key keeps the reservation", join(register(1), take(1, we), []step{
			{1, reg, replace, 0x10, 0x11, 0},
			{1, acq, command{Type: we}, 0x10, 0, conflict},
			{1, acq, command{Type: we}, 0x11, 0, 0},
		}), we, []int{1}, map[int]uint64{1: 0x11}},
		{"release", join(register(1, 2), take(1, we), []step{
			{2, rel, command{Type: we}, 0x20, 0, 0}, // without effect
			{1, rel, command{Type: we}, 0x11, 0, conflict},
			{3, rel, command{Type: we}, 0x10, 0, conflict},
			{1, rel, command{Type: ea}, 0x10, 0, invalid},
			{1, rel, command{Type: we, IgnoreKey: true}, 0x10, 0, invalid},
			{1, rel, command{Type: we, Action: 2}, 0x10, 0, invalid},
			{1, rel, command{Type: we}, 0x10, 0, 0},
			{1, rel, command{Type: we}, 0x10, 0, 0},
			{2, acq, command{Type: ea}, 0x20, 0, 0},
		}), ea, []int{2}, map[int]uint64{1: 0x10, 2: 0x20}},
		{"clear", join(register(1, 2), take(1, we), []step{
			{2, rel, command{Action: nvme.ReservationClear}, 0x21, 0, conflict},
			{2, rel, command{Action: nvme.ReservationClear}, 0x20, 0, 0},
		}), 0, nil, nil},
		{"preempt the holder", join(register(1, 2, 3), take(1, we), []step{
			{2, acq, preempt(we), 0x21, 0x10, conflict},
			{2, acq, preempt(we), 0x20, 0x99, conflict},
			{2, acq, preempt(we), 0x20, 0, invalid},
			{2, acq, preempt(0), 0x20, 0x10, invalid},
			{2, acq, preempt(ea), 0x20, 0x10, 0},
			{1, acq, preempt(we), 0x10, 0x20, conflict},
		}), ea, []int{2}, map[int]uint64{2: 0x20, 3: 0x30}},
		{"preempt another registrant", join(register(1, 2, 3), take(1, we), []step{
			{2, acq, preempt(we), 0x20, 0x30, 0},
		}), we, []int{1}, map[int]uint64{1: 0x10, 2: 0x20}},
		{"preempt without a reservation", join(register(1, 2, 3), []step{
			{2, acq, preempt(we), 0x20, 0x30, 0},
			{2, acq, preempt(we), 0x20, 0x30, conflict},
		}), 0, nil, map[int]uint64{1: 0x10, 2: 0x20}},
		{"preempt oneself", join(register(1, 2), take(1, we), []step{
			{1, acq, preempt(ea), 0x10, 0x10, 0},
		}), ea, []int{1}, map[int]uint64{1: 0x10, 2: 0x20}},
		{"preempt all with a key", join(register(1), []step{
			{2, reg, command{}, 0, 0x10, 0},
			{3, reg, command{}, 0, 0x30, 0},
			{2, acq, command{Type: we}, 0x10, 0, 0},
			{3, acq, preempt(wero), 0x30, 0x10, 0},
		}), wero, []int{3}, map[int]uint64{3: 0x30}},
		{"preempt all registrants", join(register(1, 2, 3), take(1, wear), []step{
			{2, acq, preempt(we), 0x20, 0, 0},
		}), we, []int{2}, map[int]uint64{2: 0x20}},
		{"preempt one of all registrants", join(register(1, 2, 3), take(1, wear), []step{
			{2, acq, preempt(we), 0x20, 0x99, conflict},
			{2, acq, preempt(we), 0x20, 0x10, 0},
		}), wear, []int{2, 3}, map[int]uint64{2: 0x20, 3: 0x30}},
		{"preempt and abort", join(register(1, 2), take(1, we), []step{
			{2, acq, command{Action: nvme.ReservationPreemptAbort, Type: we}, 0x20, 0x10, 0},
		}), we, []int{2}, map[int]uint64{2: 0x20}},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
			hosts := []*client{nil, guest(t, addr, 1), guest(t, addr, 2), guest(t, addr, 3)}
			for i, s := range x.steps {
				h := hosts[s.host]
				before := h.status()
				got := h.reserve(s.opcode, s.command, s.current, s.other)
				require.Equal(t, s.want, got, "step %d: status %#x, not %#x", i, got, s.want)
				after := h.status()
				if s.want != 0 {
					require.Equal(t, before, after, "step %d failed and has changed something", i)
				}
				counts := s.opcode == reg || s.opcode == acq && s.command.Action != nvme.ReservationAcquire ||
					s.opcode == rel && s.command.Action == nvme.ReservationClear
				assert.Equal(t, s.want == 0 && counts, before.Generation != after.Generation, "generation after step %d", i)
			}
			got := hosts[1].status()
			assert.Equal(t, x.kind, got.Type)
			assert.False(t, got.Persists)
			var holders []int
			keys := map[int]uint64{}
			for _, r := range got.Registrants {
				assert.EqualValues(t, nvme.CNTLIDDynamic, r.CNTLID)
				keys[int(r.HostID[0])] = r.Key
				if r.Holder {
					holders = append(holders, int(r.HostID[0]))
				}
			}
			assert.Equal(t, x.holders, holders)
			if len(x.keys) == 0 {
				assert.Empty(t, keys)
			} else {
				assert.Equal(t, x.keys, keys)
			}
		})
	}
}

// TestReservationAccess tries every command as holder (1), as registrant (2)
// and as neither (3), under every type of reservation.
func TestReservationAccess(t *testing.T) {
	commands := []struct {
		name   string
		writes bool
		do     func(h *client) nvme.Status
	}{
		{"read", false, func(h *client) nvme.Status { _, s := h.readBlocks(0, 1, 4096); return s.Code() }},
		{"write", true, func(h *client) nvme.Status {
			h.capsule(h.rw(nvme.IOWrite, 0, 1, 0), make([]byte, 4096))
			return h.response().Status().Code()
		}},
		{"write by R2T", true, func(h *client) nvme.Status {
			h.capsule(h.rw(nvme.IOWrite, 0, 1, 4096), nil)
			x, b := h.read()
			if x.Type.String() == "R2T" {
				h.answerR2T(b, make([]byte, 4096))
				return h.response().Status().Code()
			}
			return cqe(b).Status().Code()
		}},
		{"verify", false, func(h *client) nvme.Status {
			h.capsule(h.rw(nvme.IOVerify, 0, 1, 0), nil)
			return h.response().Status().Code()
		}},
		{"write zeroes", true, func(h *client) nvme.Status {
			h.capsule(h.rw(nvme.IOWriteZeroes, 0, 1, 0), nil)
			return h.response().Status().Code()
		}},
		{"flush", true, func(h *client) nvme.Status {
			h.capsule(h.command(nvme.IOFlush), nil)
			return h.response().Status().Code()
		}},
		{"flush of all namespaces", true, func(h *client) nvme.Status {
			s := h.command(nvme.IOFlush)
			s.Reset(nvme.IOFlush, s.CID(), 0xffffffff)
			h.capsule(s, nil)
			return h.response().Status().Code()
		}},
		{"deallocate", true, func(h *client) nvme.Status {
			s := h.command(nvme.IODSM)
			s.SetDSM(1, nvme.DSMDeallocate)
			var r nvme.DSMRange
			r.Set(0, 1)
			h.capsule(s, r[:])
			return h.response().Status().Code()
		}},
	}
	for kind := nvme.WriteExclusive; kind <= nvme.ExclusiveAccessAllRegistrants; kind++ {
		t.Run(kind.String(), func(t *testing.T) {
			_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
			hosts := []*client{nil, guest(t, addr, 1), guest(t, addr, 2), guest(t, addr, 3)}
			require.Zero(t, hosts[1].register(1))
			require.Zero(t, hosts[2].register(2))
			require.Zero(t, hosts[1].acquire(nvme.ReservationAcquire, kind, 1, 0))
			for i, h := range hosts[1:] {
				for _, c := range commands {
					// The rules of the specification's table.
					allowed := i == 0
					switch kind {
					case nvme.WriteExclusive:
						allowed = allowed || !c.writes
					case nvme.WriteExclusiveRegistrantsOnly, nvme.WriteExclusiveAllRegistrants:
						allowed = allowed || i == 1 || !c.writes
					case nvme.ExclusiveAccessRegistrantsOnly, nvme.ExclusiveAccessAllRegistrants:
						allowed = allowed || i == 1
					}
					want := nvme.StatusReservation
					if allowed {
						want = 0
					}
					assert.Equal(t, want, c.do(h), "%s of host %d", c.name, i+1)
				}
			}
			require.Zero(t, hosts[1].reserve(nvme.IOReservationRelease, nvme.ReservationCommand{Type: kind}, 1, 0))
			for _, c := range commands {
				assert.Zero(t, c.do(hosts[3]), "%s without a reservation", c.name)
			}
		})
	}
}

func TestReservationsAreAnnounced(t *testing.T) {
	for _, without := range []bool{false, true} {
		c := one(memory(t, nvmf.MiB, 4096))
		c.NoReservations = without
		_, addr := serve(t, c)
		admin, q := guest2(t, addr, 1)
		oncs := (*nvme.IdentifyController)(admin.identify(nvme.CNSController)).ONCS()
		assert.Equal(t, !without, oncs&nvme.ONCSReservation != 0)
		want := uint8(0xfe)
		if without {
			want = 0
		}
		assert.Equal(t, want, (*nvme.IdentifyNamespace)(admin.identify(nvme.CNSNamespace)).RESCAP())
		assert.Equal(t, want, admin.identify(nvme.CNSIndependentNamespace)[2])
		if without {
			assert.Equal(t, nvme.StatusInvalidOpcode, q.register(1))
		}
	}
}

// TestReservationNonsense checks that the target refuses reservation commands with invalid
// fields.
func TestReservationNonsense(t *testing.T) {
	_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	q := guest(t, addr, 1)
	require.Zero(t, q.register(1))
	for _, opcode := range []uint8{nvme.IOReservationReg, nvme.IOReservationAcquire, nvme.IOReservationRelease} {
		s := q.command(opcode)
		q.capsule(s, nil)
		assert.Equal(t, nvme.StatusSGLLengthInvalid, q.response().Status().Code(), "without data")
		q.capsule(q.command(opcode), make([]byte, 7))
		assert.Equal(t, nvme.StatusSGLLengthInvalid, q.response().Status().Code(), "data too short")
		q.capsule(q.command(opcode), make([]byte, 9000))
		assert.Equal(t, nvme.StatusSGLLengthInvalid, q.response().Status().Code(), "data too long")
		s, data := q.reservation(opcode, nvme.ReservationCommand{Type: nvme.WriteExclusive}, 1, 1)
		copy(s[4:], []byte{9})
		q.capsule(s, data)
		assert.Equal(t, nvme.StatusInvalidNamespace, q.response().Status().Code())
	}
	report := func(length, capacity uint32, extended bool) ([]byte, nvme.Status) {
		s := q.command(nvme.IOReservationReport)
		s.SetReservationReport(length, extended)
		s.SGL().Set(nvme.SGLTransport, 0, capacity)
		q.capsule(s, nil)
		x, b, data, err := q.next()
		require.NoError(t, err)
		if x.Data == 0 {
			return nil, cqe(b).Status().Code()
		}
		return data, q.response().Status().Code()
	}
	_, status := report(4096, 4096, false)
	assert.Equal(t, nvme.StatusHostIDInconsistent, status, "64-bit host identifiers")
	for _, x := range []struct{ length, capacity, want uint32 }{
		{4, 4, 4}, {64, 64, 64}, {100, 4096, 100}, {4096, 100, 100}, {128, 128, 128},
		{1 << 20, 1 << 20, 64 + 127*64}, {0, ^uint32(0), 64 + 127*64}, // length 0 is 16 GiB
	} {
		data, status := report(x.length, x.capacity, true)
		assert.Zero(t, status)
		assert.Len(t, data, int(x.want), "%d bytes into %d", x.length, x.capacity)
	}
	nobody := guest(t, addr, 0)
	assert.Equal(t, nvme.StatusOperationDenied, nobody.register(5), "no host identifier")
}

// TestReservationManyRegistrants registers as many hosts as a namespace allows.
func TestReservationManyRegistrants(t *testing.T) {
	_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	for i := range 127 {
		admin, q := guest2(t, addr, byte(i+1))
		require.Zero(t, q.register(uint64(i+1)))
		require.NoError(t, admin.c.Close())
		require.NoError(t, q.c.Close())
	}
	q := guest(t, addr, 200)
	assert.Equal(t, nvme.StatusInternalError, q.register(200))
	assert.Len(t, q.status().Registrants, 127)
	one := guest(t, addr, 1)
	require.Zero(t, one.reserve(nvme.IOReservationRelease, nvme.ReservationCommand{Action: nvme.ReservationClear}, 1, 0))
	assert.Zero(t, q.register(200))
}

func TestReservationFeatures(t *testing.T) {
	_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	admin, _ := guest2(t, addr, 1)
	feature := func(opcode, fid uint8, nsid, value uint32) (nvme.Status, uint64) {
		s := admin.command(opcode)
		s.Reset(opcode, s.CID(), nsid)
		s.SetCDW(10, uint32(fid))
		s.SetCDW(11, value)
		admin.capsule(s, nil)
		r := admin.response()
		return r.Status().Code(), r.Result()
	}
	for _, x := range []struct {
		opcode, fid uint8
		nsid, value uint32
		status      nvme.Status
		result      uint64
	}{
		{nvme.AdminGetFeatures, nvme.FeatureReservationNotice, 1, 0, 0, 0xe},
		{nvme.AdminGetFeatures, nvme.FeatureReservationPersist, 1, 0, 0, 0},
		{nvme.AdminGetFeatures, nvme.FeatureReservationPersist, 2, 0, nvme.StatusInvalidNamespace, 0},
		{nvme.AdminSetFeatures, nvme.FeatureReservationNotice, 0xffffffff, 0xe, 0, 0},
		{nvme.AdminSetFeatures, nvme.FeatureReservationNotice, 1, 0, nvme.StatusFeatureNotChangable, 0},
		{nvme.AdminSetFeatures, nvme.FeatureReservationPersist, 1, 0, 0, 0},
		{nvme.AdminSetFeatures, nvme.FeatureReservationPersist, 1, 1, nvme.StatusFeatureNotChangable, 0},
		{nvme.AdminSetFeatures, nvme.FeatureReservationPersist, 0, 0, nvme.StatusInvalidNamespace, 0},
	} {
		status, result := feature(x.opcode, x.fid, x.nsid, x.value)
		assert.Equal(t, x.status, status, "%+v", x)
		assert.Equal(t, x.result, result, "%+v", x)
	}
}

// TestReservationChaos has several hosts send random reservation commands and writes at
// the same time. The target answers every command. At any time at most one host can
// write under a Write Exclusive reservation.
func TestReservationChaos(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	type outcome struct{ answered, conflicts int }
	results := make(chan outcome, 4)
	for i := range 4 {
		q := guest(t, addr, byte(i+1))
		go func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			var o outcome
			for range 600 {
				var s nvme.Status
				key := func() uint64 { return uint64(random.IntN(6)) }
				r := nvme.ReservationCommand{Action: uint8(random.IntN(4)), Type: nvme.ReservationType(random.IntN(8)),
					IgnoreKey: random.IntN(4) == 0}
				switch random.IntN(6) {
				case 0:
					s = q.reserve(nvme.IOReservationReg, r, key(), key())
				case 1, 2:
					s = q.reserve(nvme.IOReservationAcquire, r, key(), key())
				case 3:
					s = q.reserve(nvme.IOReservationRelease, r, key(), 0)
				case 4:
					_, s = q.readBlocks(0, 1, 4096)
					s = s.Code()
				default:
					q.capsule(q.rw(nvme.IOWrite, uint64(i), 1, 0), make([]byte, 4096))
					s = q.response().Status().Code()
				}
				o.answered++
				if s == nvme.StatusReservation {
					o.conflicts++
				}
			}
			results <- o
		}()
	}
	for range 4 {
		select {
		case o := <-results:
			assert.Equal(t, 600, o.answered)
			assert.NotZero(t, o.conflicts)
		case <-time.After(hang):
			require.FailNow(t, "a command was not answered")
		}
	}
}
