package nvme

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/hostile"
)

// FuzzStructures reads every field of every structure from arbitrary bytes. It checks
// that decoded lists do not exceed their page, and that encoding a decoded list gives
// the same list.
func FuzzStructures(f *testing.F) {
	f.Add([]byte(nil), []byte(nil))
	var page [IdentifySize]byte
	PutDescriptors(&page, []Descriptor{{NIDUUID, make([]byte, 16)}, {NIDCSI, []byte{0}}})
	f.Add(bytes.Clone(page[:]), []byte{0, 0, 0, 0, 1, 0, 255, 0})
	PutActiveNamespaces(&page, []uint32{1, 2, 9}, 0)
	f.Add(bytes.Clone(page[:]), []byte{0, 7, 0, 0, 8, 0, 28, 0})
	f.Fuzz(func(t *testing.T, b, script []byte) {
		var page [IdentifySize]byte
		copy(page[:], b)
		hostile.Apply(script, 32, [][]byte{page[:128], page[:], page[1024:2048]})
		hostile.Bounded(t, 1<<20, 10*time.Second, func() {
			ids := ActiveNamespaces(&page)
			require.LessOrEqual(t, len(ids), IdentifySize/4)
			for _, id := range ids {
				require.NotZero(t, id)
			}
			list := Descriptors(&page)
			require.LessOrEqual(t, len(list), IdentifySize/4)
			var again [IdentifySize]byte
			PutDescriptors(&again, list)
			require.Equal(t, list, Descriptors(&again))
			fields(&page)
		})
	})
}

// fields reads the fields of the structures.
func fields(page *[IdentifySize]byte) {
	c, n := (*IdentifyController)(page), (*IdentifyNamespace)(page)
	_, _, _, _ = c.Serial(), c.Model(), c.Firmware(), c.SubNQN()
	_, _, _, _, _ = c.MDTS(), c.IOCCSZ(), c.ICDOFF(), c.MAXCMD(), c.ControllerType()
	_, _, _ = n.LBAFormat(n.Format())
	_, _, _, _ = n.NSZE(), n.NGUID(), n.EUI64(), n.DPS()
	e, d := (*DiscoveryEntry)(page[:DiscoveryEntrySize]), (*ConnectData)(page[:ConnectDataSize])
	_, _, _, _ = e.Service(), e.SubNQN(), e.Address(), e.SecurityType()
	_, _, _, _ = d.HostID(), d.CNTLID(), d.SubNQN(), d.HostNQN()
	s, q := (*SQE)(page[:SQESize]), (*CQE)(page[:CQESize])
	_, _, _ = s.LogPage()
	_, _, _ = s.Property()
	_, _, _, _ = s.Connect(), s.NLB(), s.DSMRanges(), s.SGL().Length()
	_, _, _ = q.Status().Code(), q.Result(), q.CID()
	_, _ = QueueCounts(uint32(q.Result()))
}

// FuzzSQE checks that the getters of commands and completions return the values that
// were set.
func FuzzSQE(f *testing.F) {
	f.Add(uint64(0), uint32(1), uint32(0), uint16(0))
	f.Add(^uint64(0), uint32(65536), ^uint32(0), ^uint16(0))
	f.Fuzz(func(t *testing.T, a uint64, b, c uint32, d uint16) {
		var s SQE
		s.Reset(IORead, d, c)
		s.SetRange(a, b%65536+1, FUA)
		require.Equal(t, []any{a, b%65536 + 1, true, d, c}, []any{s.SLBA(), s.NLB(), s.FUA(), s.CID(), s.NSID()})
		s.SetLogPage(uint8(b), a, 4*(c>>2)|4)
		lid, offset, length := s.LogPage()
		require.Equal(t, []any{uint8(b), a, uint64(4*(c>>2) | 4)}, []any{lid, offset, length})
		connect := Connect{QID: d, SQSize: uint16(b), Attributes: uint8(c), KATO: c}
		s.ResetFabrics(FabricsConnect, d)
		s.SetConnect(connect)
		require.Equal(t, connect, s.Connect())
		security := Security{Specific: d, Protocol: uint8(b), Length: c}
		s.ResetFabrics(FabricsAuthSend, d)
		s.SetSecurity(security)
		require.Equal(t, security, s.Security())
		s.SetDSM(int(b%MaxDSMRanges)+1, c)
		require.Equal(t, int(b%MaxDSMRanges)+1, s.DSMRanges())
		var r DSMRange
		r.Set(a, b)
		require.Equal(t, []any{a, b}, []any{r.SLBA(), r.Blocks()})
		var q CQE
		q.Set(d, uint16(c), Status(b&0x7fff), a)
		require.Equal(t, []any{d, uint16(c), Status(b & 0x7fff), a}, []any{q.CID(), q.SQHD(), q.Status(), q.Result()})
		var g SGL
		g.Set(uint8(d), a, b)
		require.Equal(t, []any{uint8(d), a, b}, []any{g.ID(), g.Address(), g.Length()})
	})
}

// FuzzReservationStatus checks that encoding and decoding a decoded report gives the
// same report.
func FuzzReservationStatus(f *testing.F) {
	f.Add((&ReservationStatus{Generation: 3, Type: WriteExclusive, Registrants: []Registrant{{CNTLID: 1, Holder: true, Key: 7}, {Key: 9}}}).Append(nil))
	f.Add([]byte{0, 0, 0, 0, 0xff, 0xff, 0xff, 63: 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		hostile.Bounded(t, 1<<20+4*uint64(len(b)), 10*time.Second, func() {
			s, total, ok := ReservationStatusOf(b)
			if !ok {
				require.Less(t, len(b), ReservationReportHeader)
				return
			}
			require.LessOrEqual(t, len(s.Registrants), total)
			again := s.Append(nil)
			require.LessOrEqual(t, len(again), len(b))
			back, n, ok := ReservationStatusOf(again)
			require.True(t, ok)
			require.Equal(t, len(s.Registrants), n)
			require.Equal(t, s, back)
			_ = s.Type.String()
		})
	})
}
