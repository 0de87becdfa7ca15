package provisiontest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
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
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/wiretest"
)

// Isolation attacks the namespace of one job as the host of another job, on a real
// target. The host tries to read and to change the namespace. reach converts an address
// of the target to one at which this process can reach it; nil means no conversion.
//
// For a target without keys, a host that uses another host's NQN is that host. So
// attacks with a stolen NQN are made with keys only.
func Isolation(t *testing.T, p provision.Provisioner, reach func(nvmf.TransportID) nvmf.TransportID) {
	for _, keyed := range []bool{false, true} {
		t.Run(fmt.Sprintf("keys=%t", keyed), func(t *testing.T) {
			s := newIsolation(t, p, reach, keyed)
			for _, a := range attacks {
				if a.keyed && !keyed {
					continue
				}
				t.Run(a.name, func(t *testing.T) {
					a.try(t, s)
					s.unharmed(t)
				})
			}
		})
	}
}

// isolation has a job, which is the victim, and the host of another job, which is the
// attacker.
type isolation struct {
	victim, own   identity // identities in Connect commands
	at, ownAt     nvmf.TransportID
	keys, ownKeys dhchap.Keys

	device  nvmf.Device
	queue   nvmf.Queue
	cntlid  uint16
	records *records
	content []byte
}

func newIsolation(t *testing.T, p provision.Provisioner, reach func(nvmf.TransportID) nvmf.TransportID, keyed bool) *isolation {
	s := &isolation{victim: identity{host: HostA, id: uuid.New()}, own: identity{host: HostB, id: uuid.New()}}
	var keys map[string]dhchap.Keys
	if keyed {
		make := func() dhchap.Keys {
			return dhchap.Keys{Host: dhchap.NewSecret(dhchap.SHA256), Controller: dhchap.NewSecret(dhchap.SHA256)}
		}
		s.keys, s.ownKeys = make(), make()
		keys = map[string]dhchap.Keys{HostA: s.keys, HostB: s.ownKeys}
	}
	for _, j := range []struct {
		job string
		who *identity
		at  *nvmf.TransportID
	}{{"victim", &s.victim, &s.at}, {"attacker", &s.own, &s.ownAt}} {
		n, err := p.Create(ctx, j.job, size)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, p.Delete(ctx, j.job)) })
		err = p.Expose(ctx, j.job, []string{j.who.host}, keys)
		if errors.Is(err, provision.ErrUnsupported) {
			t.Skip(err)
		}
		require.NoError(t, err)
		*j.at = n.Targets[0]
		if reach != nil {
			*j.at = reach(*j.at)
		}
		j.who.sub = j.at.SubNQN
	}
	s.enter(t)
	return s
}

// enter connects the victim, and records what the victim sends.
func (s *isolation) enter(t *testing.T) {
	proxy, err := wiretest.New(s.at.HostPort())
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	s.records = &records{sent: map[int][]byte{}}
	proxy.Script(s.records.take)
	d, err := tcp.Open(ctx, proxy.Through(s.at), tcp.Options{HostNQN: s.victim.host, HostID: s.victim.id, Keys: s.keys})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	q, err := d.OpenQueue(ctx, 8)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, q.Close()) })
	s.device, s.queue = d, q
	s.fill(t, 'r') // a replay would write these bytes again
	s.fill(t, 'v')
	s.cntlid = s.records.cntlid()
}

// fill writes a pattern to the whole namespace of the victim.
func (s *isolation) fill(t *testing.T, pattern byte) {
	s.content = bytes.Repeat([]byte{pattern}, int(s.device.Identity().Capacity()))
	require.NoError(t, s.move(nvmf.Write, s.content))
}

func (s *isolation) move(op nvmf.Opcode, data []byte) error {
	v := &volume{s.device, s.queue}
	_, err := v.move(op, data, 0)
	return err
}

// unharmed checks that the victim's data and connection are intact.
func (s *isolation) unharmed(t *testing.T) {
	got := make([]byte, len(s.content))
	require.NoError(t, s.move(nvmf.Read, got))
	require.True(t, bytes.Equal(s.content, got), "the victim's data has changed")
	block := int(s.device.Identity().LBASize)
	require.NoError(t, s.move(nvmf.Write, s.content[:block]))
	require.Equal(t, s.cntlid, s.records.cntlid(), "the victim had to connect again")
}

// records has the bytes that the victim has sent, by connection.
type records struct {
	mu     sync.Mutex
	sent   map[int][]byte
	admins []uint16 // controller ids, in order of creation
	waits  map[int]bool
}

func (r *records) take(p *wiretest.PDU) wiretest.Action {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.To == wiretest.ToTarget {
		if s := p.SQE(); s != nil && s.Opcode() == nvme.AdminFabrics && s.FabricsType() == nvme.FabricsConnect && s.Connect().QID == 0 {
			if r.waits == nil {
				r.waits = map[int]bool{}
			}
			r.waits[p.Conn] = true
		}
		r.sent[p.Conn] = append(r.sent[p.Conn], p.Bytes...)
	} else if c := p.CQE(); c != nil && r.waits[p.Conn] {
		r.waits[p.Conn] = false
		r.admins = append(r.admins, uint16(c.Result()))
	}
	return wiretest.Action{}
}

// cntlid returns the ID of the newest controller.
func (r *records) cntlid() uint16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.admins[len(r.admins)-1]
}

// attacks are the attacks. Those with keyed use the victim's NQN, so without keys the
// attacker would be the victim for the target.
var attacks = []struct {
	name  string
	keyed bool
	try   func(t *testing.T, s *isolation)
}{
	{"own name", false, ownName},
	{"stolen name", true, stolenName},
	{"stolen name in discovery", true, stolenDiscovery},
	{"controller of the victim", false, stolenController},
	{"direct nsid", false, directNSID},
	{"beyond the end", false, beyondTheEnd},
	{"admin commands", false, adminCommands},
	{"discovery", false, discovery},
	{"host identifier of the victim", false, stolenIdentifier},
	{"second Connect", false, secondConnect},
	{"replay", true, replay},
}

func (s *isolation) dial(t *testing.T, id nvmf.TransportID) *rawHost {
	h, err := dialRaw(id)
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// login connects the attacker to its own subsystem, with an admin queue and an I/O
// queue.
func (s *isolation) login(t *testing.T, who identity) (admin, queue *rawHost) {
	connect := func(qid, cntlid uint16) (*rawHost, uint16) {
		h := s.dial(t, s.ownAt)
		who.qid, who.cntlid = qid, cntlid
		result, err := h.connect(who)
		require.NoError(t, err)
		if result>>16 != 0 {
			require.NoError(t, h.prove(who, s.ownKeys))
		}
		return h, uint16(result)
	}
	admin, id := connect(0, nvme.CNTLIDDynamic)
	require.NoError(t, admin.enable())
	queue, _ = connect(1, id)
	require.NoError(t, queue.status(raw(nvme.IOFlush, 1, 0), nil), "the attacker can use its own namespace")
	return admin, queue
}

// ownName checks that the attacker cannot connect under its own NQN, since it is not
// listed.
func ownName(t *testing.T, s *isolation) {
	for _, id := range [][16]byte{s.own.id, s.victim.id} {
		who := identity{s.victim.sub, s.own.host, id, 0, nvme.CNTLIDDynamic}
		_, err := s.dial(t, s.at).connect(who)
		require.Error(t, err)
	}
	_, err := tcp.Open(ctx, s.at, tcp.Options{HostNQN: s.own.host, Keys: s.ownKeys})
	require.Error(t, err)
}

// stolenName checks that a host with the NQN and the identifier of the victim cannot do
// anything with wrong keys or without keys.
func stolenName(t *testing.T, s *isolation) {
	who := s.victim
	who.cntlid = nvme.CNTLIDDynamic
	for name, keys := range map[string]dhchap.Keys{"without": {}, "the attacker's": s.ownKeys} {
		h := s.dial(t, s.at)
		result, err := h.connect(who)
		require.NoError(t, err, "Connect succeeds with the victim's NQN")
		require.NotZero(t, result>>16, "the target requires authentication")
		if !keys.Host.IsZero() {
			require.Error(t, h.prove(who, dhchap.Keys{Host: keys.Host}), name)
		}
		_ = h.enable() // Linux lets any host enable a controller, but not use it
		s := raw(nvme.AdminIdentify, 1, nvme.IdentifySize)
		require.Error(t, h.status(s, nil), name)
	}
	for _, keys := range []dhchap.Keys{{}, s.ownKeys, {Host: s.ownKeys.Host}} {
		_, err := tcp.Open(ctx, s.at, tcp.Options{HostNQN: s.victim.host, HostID: s.victim.id, Keys: keys})
		require.Error(t, err)
	}
}

// stolenDiscovery runs discovery under the victim's NQN. Discovery succeeds, since it
// gives no access to the namespace.
func stolenDiscovery(t *testing.T, s *isolation) {
	_, err := tcp.Discover(ctx, s.at, tcp.Options{HostNQN: s.victim.host})
	require.NoError(t, err)
}

// stolenController tries to add a queue to the victim's controller, and to controllers
// with guessed IDs.
func stolenController(t *testing.T, s *isolation) {
	ids := []uint16{s.cntlid, s.cntlid + 1, s.cntlid - 1, 0, 1, 2, 3, 0xffef, nvme.CNTLIDDynamic, nvme.CNTLIDDynamic - 1}
	for _, who := range []identity{
		{sub: s.victim.sub, host: s.own.host, id: s.own.id},
		{sub: s.victim.sub, host: s.own.host, id: s.victim.id},
		{sub: s.own.sub, host: s.own.host, id: s.victim.id},
		{sub: s.own.sub, host: s.own.host, id: s.own.id},
		{sub: s.own.sub, host: s.victim.host, id: s.victim.id},
		{sub: s.victim.sub, host: s.victim.host, id: s.own.id},
		{sub: s.victim.sub, host: s.victim.host, id: s.victim.id},
	} {
		if who.sub == s.victim.sub && who.host == s.victim.host && s.keys.Host.IsZero() {
			continue // without keys this identity is the victim
		}
		for _, id := range ids {
			for _, qid := range []uint16{1, 9} {
				h, err := dialRaw(s.at)
				if err != nil {
					continue // refused as well
				}
				who.qid, who.cntlid = qid, id
				result, err := h.connect(who)
				if err == nil {
					assert.NotZero(t, result>>16, "%+v has a queue", who)
					assert.Error(t, h.status(raw(nvme.IORead, 1, 4096), nil), "%+v reads", who)
					assert.Error(t, h.status(raw(nvme.IOWrite, 1, 4096), make([]byte, 4096)), "%+v writes", who)
				}
				_ = h.Close()
			}
		}
	}
}

// directNSID sends commands on the attacker's own queue with namespace IDs that the
// victim's namespace may have. The attacker's namespace is 1.
func directNSID(t *testing.T, s *isolation) {
	_, q := s.login(t, s.own)
	ranges := make([]byte, nvme.DSMRangeSize)
	(*nvme.DSMRange)(ranges).Set(0, 1)
	keys := make([]byte, nvme.ReservationKeysSize)
	binary.LittleEndian.PutUint64(keys[8:], 7)
	block := make([]byte, 4096)
	for _, nsid := range []uint32{0, 2, 3, 4, 17, 0x100, 0x10001, 0xfffffffe, 0xffffffff} {
		for _, c := range []struct {
			opcode uint8
			data   []byte // data in the capsule
			length uint32 // length of data for the host
		}{
			{nvme.IORead, nil, 4096}, {nvme.IOWrite, block, 0}, {nvme.IOCompare, block, 0}, {nvme.IOWriteZeroes, nil, 0},
			{nvme.IOWriteUncorrectable, nil, 0}, {nvme.IODSM, ranges, 0}, {nvme.IOVerify, nil, 0},
			{nvme.IOReservationReg, keys, 0}, {nvme.IOReservationAcquire, keys, 0}, {nvme.IOReservationRelease, keys[:8], 0},
			{nvme.IOReservationReport, nil, 4096}, {nvme.IOFlush, nil, 0},
		} {
			if c.opcode == nvme.IOFlush && nsid == 0xffffffff {
				continue // all namespaces of the attacker's own subsystem
			}
			cmd := raw(c.opcode, nsid, c.length)
			if c.opcode == nvme.IODSM {
				cmd.SetDSM(1, nvme.DSMDeallocate)
			}
			answer, cqe, err := q.do(cmd, c.data)
			if err != nil { // the connection was lost; connect again for the next command
				_, q = s.login(t, s.own)
				continue
			}
			assert.NotZero(t, cqe.Status(), "opcode %#x of namespace %#x", c.opcode, nsid)
			assert.NotContains(t, string(answer), "vvvv")
		}
	}
	_ = q.status(raw(nvme.IOFlush, 0xffffffff, 0), nil)
}

// beyondTheEnd checks that no command accesses blocks after the last one. Linux
// computes byte offsets with 64 bits, so a larger LBA would wrap to the beginning of
// the namespace.
func beyondTheEnd(t *testing.T, s *isolation) {
	_, q := s.login(t, s.own)
	id := s.device.Identity()
	per := uint32(4096 / id.LBASize)
	for _, slba := range []uint64{uint64(id.Blocks), uint64(id.Blocks) - 1, uint64(id.Blocks) * 2, 1 << 62, ^uint64(0), ^uint64(0) - uint64(per) + 1} {
		blocks := per
		if slba == uint64(id.Blocks)-1 {
			blocks++
		}
		read, write := raw(nvme.IORead, 1, blocks*uint32(id.LBASize)), raw(nvme.IOWrite, 1, 0)
		for _, c := range []*nvme.SQE{read, write} {
			c.SetRange(slba, blocks, 0)
		}
		answer, cqe, err := q.do(read, nil)
		assert.NotContains(t, string(answer), "vvvv", "a read at %#x", slba)
		around := slba >= 1<<52
		assert.True(t, around || err != nil || cqe.Status() != 0, "a read at %#x", slba)
		if q.status(raw(nvme.IOFlush, 1, 0), nil) != nil {
			_, q = s.login(t, s.own)
		}
		err = q.status(write, make([]byte, blocks*uint32(id.LBASize)))
		assert.True(t, around || err != nil, "a write at %#x", slba)
		if q.status(raw(nvme.IOFlush, 1, 0), nil) != nil {
			_, q = s.login(t, s.own)
		}
	}
}

// adminCommands checks that commands which describe namespaces do not reveal the
// victim's, and that commands which change namespaces do not change it.
func adminCommands(t *testing.T, s *isolation) {
	admin, _ := s.login(t, s.own)
	again := func() {
		if admin.status(raw(nvme.AdminKeepAlive, 0, 0), nil) != nil {
			admin, _ = s.login(t, s.own)
		}
	}
	uid := s.device.Identity().UUID
	for _, nsid := range []uint32{0, 1, 2, 3, 17, 0xfffffffe, 0xffffffff} {
		for cns := range 0x20 {
			c := raw(nvme.AdminIdentify, nsid, nvme.IdentifySize)
			c.SetIdentify(uint8(cns))
			answer, cqe, err := admin.do(c, nil)
			assert.NotContains(t, string(answer), s.victim.sub)
			assert.NotContains(t, string(answer), string(uid[:]))
			if err == nil && cqe.Status() == 0 && cns == nvme.CNSNamespace && nsid != 1 && nsid != 0xffffffff {
				assert.Equal(t, make([]byte, len(answer)), answer, "namespace %#x", nsid)
			}
			again()
		}
		for lid := range 0x20 {
			c := raw(nvme.AdminGetLogPage, nsid, 4096)
			c.SetLogPage(uint8(lid), 0, 4096)
			answer, _, _ := admin.do(c, nil)
			assert.NotContains(t, string(answer), s.victim.host)
			assert.NotContains(t, string(answer), s.victim.sub)
			again()
		}
		// Firmware, namespace management and attachment, Format, Security, Sanitize, Abort, Delete
		// I/O queue, Directive, vendor specific.
		for _, op := range []uint8{0x00, 0x04, nvme.AdminAbort, 0x0d, 0x10, 0x15, 0x19, 0x80, 0x81, 0x84, 0xc0, 0xff} {
			for _, cdw10 := range []uint32{0, 1, 2, 0x00010001} {
				c := raw(op, nsid, 0)
				c.SetCDW(10, cdw10)
				_, _, _ = admin.do(c, nil) // any answer is acceptable
				again()
			}
		}
	}
}

// discovery checks that discovery shows no information about the victim to the
// attacker, and to a host that no job lists.
func discovery(t *testing.T, s *isolation) {
	for _, host := range []string{s.own.host, "nqn.2014-08.org.example:nobody"} {
		entries, err := tcp.Discover(ctx, s.ownAt, tcp.Options{HostNQN: host, HostID: s.victim.id})
		require.NoError(t, err)
		for i := range entries {
			assert.NotEqual(t, s.victim.sub, entries[i].SubNQN(), host)
		}
	}
}

// stolenIdentifier checks that an attacker with the victim's host identifier can
// reserve only its own namespace, not the victim's.
func stolenIdentifier(t *testing.T, s *isolation) {
	r, ok := s.device.(nvmf.Reserver)
	if !ok || !s.device.Identity().Reservations {
		t.Skip("this target has no reservations")
	}
	require.NoError(t, r.Reserve(ctx, 5))
	d, err := tcp.Open(ctx, s.ownAt, tcp.Options{HostNQN: s.own.host, HostID: s.victim.id, Keys: s.ownKeys})
	require.NoError(t, err)
	defer func() { assert.NoError(t, d.Close()) }()
	require.NoError(t, d.Reserve(ctx, 9))
	s.unharmed(t)
	require.NoError(t, d.Unreserve(ctx, 9))
	s.unharmed(t)
	require.NoError(t, r.Reserve(ctx, 5), "the victim still holds its reservation")
	require.NoError(t, r.Unreserve(ctx, 5))
}

// secondConnect sends a Connect for the victim's subsystem on an existing connection of
// the attacker.
func secondConnect(t *testing.T, s *isolation) {
	for _, who := range []identity{
		{s.victim.sub, s.victim.host, s.victim.id, 0, nvme.CNTLIDDynamic},
		{s.victim.sub, s.victim.host, s.victim.id, 1, s.cntlid},
		{s.victim.sub, s.own.host, s.own.id, 1, s.cntlid},
	} {
		admin, queue := s.login(t, s.own)
		for _, h := range []*rawHost{admin, queue} {
			_, err := h.connect(who)
			assert.Error(t, err)
		}
	}
}

// replay sends the victim's recorded bytes of each connection again.
func replay(t *testing.T, s *isolation) {
	s.records.mu.Lock()
	var all [][]byte
	for _, b := range s.records.sent {
		all = append(all, bytes.Clone(b))
	}
	s.records.mu.Unlock()
	require.GreaterOrEqual(t, len(all), 2)
	for _, b := range all {
		c, err := net.Dial("tcp", s.at.HostPort())
		require.NoError(t, err)
		var group sync.WaitGroup
		group.Go(func() { _, _ = c.Write(b) }) // until the target disconnects
		answers := make([]byte, 0, 1<<16)
		buffer := make([]byte, 1<<16)
		for {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Second)))
			n, err := c.Read(buffer)
			answers = append(answers, buffer[:n]...)
			if err != nil {
				break
			}
		}
		require.NoError(t, c.Close())
		group.Wait()
		assert.NotContains(t, string(answers), "vvvv")
		assert.NotContains(t, string(answers), "rrrr")
	}
}
