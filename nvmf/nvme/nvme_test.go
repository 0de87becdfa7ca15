package nvme_test

import (
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf/nvme"
)

// recorded returns a PDU of the golden files of package pdu.
func recorded(t *testing.T, file, name string) []byte {
	text, err := os.ReadFile("../pdu/testdata/" + file)
	require.NoError(t, err)
	_, body, ok := strings.Cut(string(text), "\n= "+name+"\n")
	require.True(t, ok, "%s is not in %s", name, file)
	body, _, _ = strings.Cut(body, "\n= ")
	var out []byte
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if zeros, ok := strings.CutPrefix(line, "* "); ok {
			n, err := strconv.Atoi(zeros)
			require.NoError(t, err)
			out = append(out, make([]byte, 32*n)...)
		} else if !strings.HasPrefix(line, "#") {
			b, err := hex.DecodeString(line)
			require.NoError(t, err)
			out = append(out, b...)
		}
	}
	return out
}

const (
	linux = "linux-6.1.txt"
	spdk  = "spdk-26.05.txt"
)

// page returns the Identify page in a recorded C2HData without digests.
func page(t *testing.T, file, name string) *[nvme.IdentifySize]byte {
	return (*[nvme.IdentifySize]byte)(recorded(t, file, name)[24:])
}

// TestRecordedIdentifyController decodes Identify Controller data that was recorded from the Linux and SPDK targets.
func TestRecordedIdentifyController(t *testing.T) {
	p := (*nvme.IdentifyController)(page(t, linux, "linux61-plain-C2HData-Identify-cns01-admin-LAST"))
	assert.Equal(t, "nqn.2026-01.test:linux", p.SubNQN())
	assert.EqualValues(t, 1028, p.IOCCSZ())
	assert.EqualValues(t, 1, p.IORCSZ())
	assert.Equal(t, uint8(0x66), p.SQES())
	assert.Equal(t, uint8(0x44), p.CQES())
	assert.NotZero(t, p.ONCS()&nvme.ONCSDSM)
	assert.NotZero(t, p.VWC()&nvme.VWCPresent)
	assert.NotZero(t, p.KAS())
	assert.NotZero(t, p.SGLS()&nvme.SGLSOffset)
	assert.EqualValues(t, 0x10300, p.Version())

	p = (*nvme.IdentifyController)(page(t, spdk, "spdk2605-plain-C2HData-Identify-cns01-admin-LAST-SUCCESS"))
	assert.Equal(t, "nqn.2026-01.test:spdk", p.SubNQN())
	assert.EqualValues(t, (4096+64)/16, p.IOCCSZ())
	assert.EqualValues(t, 8, p.MDTS()) // 1 MiB
	assert.Equal(t, uint8(nvme.ControllerIO), p.ControllerType())
	assert.NotEmpty(t, p.Serial())
	assert.NotEmpty(t, p.Model())
}

// TestRecordedIdentifyNamespace decodes namespace data, descriptors and lists that were recorded from the same targets.
func TestRecordedIdentifyNamespace(t *testing.T) {
	p := (*nvme.IdentifyNamespace)(page(t, spdk, "spdk2605-plain-C2HData-Identify-cns00-admin-LAST-SUCCESS"))
	ms, lbads, _ := p.LBAFormat(p.Format())
	assert.Zero(t, ms)
	assert.EqualValues(t, 256<<20, p.NSZE()<<lbads)

	list := nvme.Descriptors(page(t, spdk, "spdk2605-plain-C2HData-Identify-cns03-admin-LAST-SUCCESS"))
	var types []uint8
	for _, d := range list {
		types = append(types, d.Type)
	}
	assert.Contains(t, types, uint8(nvme.NIDUUID))

	ids := nvme.ActiveNamespaces(page(t, linux, "linux61-plain-C2HData-Identify-cns02-admin-LAST"))
	assert.Equal(t, []uint32{1, 2, 3, 4}, ids)
}

// TestRecordedConnect decodes Connect commands that were recorded from Linux and SPDK hosts, and encodes equal ones.
func TestRecordedConnect(t *testing.T) {
	for _, c := range []struct {
		file, name string
		qid        uint16
	}{
		{linux, "linux61-plain-CapsuleCmd-Connect-admin", 0},
		{linux, "linux61-plain-CapsuleCmd-Connect-io", 1},
		{spdk, "spdk2605-plain-CapsuleCmd-Connect-admin", 0},
		{spdk, "spdk2605-plain-CapsuleCmd-Connect-io", 1},
	} {
		b := recorded(t, c.file, c.name)
		sqe, data := (*nvme.SQE)(b[8:]), (*nvme.ConnectData)(b[72:])
		assert.Equal(t, uint8(nvme.AdminFabrics), sqe.Opcode(), c.name)
		assert.Equal(t, uint8(nvme.FabricsConnect), sqe.FabricsType(), c.name)
		assert.Equal(t, uint8(nvme.FlagSGL), sqe.Flags(), c.name)
		assert.Equal(t, uint8(nvme.SGLInCapsule), sqe.SGL().ID(), c.name)
		assert.EqualValues(t, nvme.ConnectDataSize, sqe.SGL().Length(), c.name)
		conn := sqe.Connect()
		assert.Equal(t, c.qid, conn.QID, c.name)
		if c.qid == 0 {
			assert.NotZero(t, conn.KATO, c.name)
			assert.Equal(t, uint16(nvme.CNTLIDDynamic), data.CNTLID(), c.name)
		}
		assert.Contains(t, data.SubNQN(), "nqn.2026-01.test:", c.name)

		// Encoding the same command gives the same bytes. Reserved fields are zeros.
		var again nvme.SQE
		again.ResetFabrics(nvme.FabricsConnect, sqe.CID())
		again.SetConnect(conn)
		again.SGL().Set(nvme.SGLInCapsule, 0, nvme.ConnectDataSize)
		assert.Equal(t, hex.EncodeToString(sqe[:]), hex.EncodeToString(again[:]), c.name)
		var d nvme.ConnectData
		d.Set(data.HostID(), data.CNTLID(), data.SubNQN(), data.HostNQN())
		assert.Equal(t, hex.Dump(data[:]), hex.Dump(d[:]), c.name)
	}
}

func TestCommands(t *testing.T) {
	var s nvme.SQE
	s.Reset(nvme.IOWrite, 0x1234, 7)
	s.SetRange(1<<40+5, 65536, nvme.FUA)
	assert.Equal(t, uint16(0x1234), s.CID())
	assert.Equal(t, uint32(7), s.NSID())
	assert.Equal(t, uint64(1<<40+5), s.SLBA())
	assert.Equal(t, uint32(65536), s.NLB())
	assert.True(t, s.FUA())
	s.SetRange(0, 1, 0)
	assert.Equal(t, uint32(1), s.NLB())
	assert.False(t, s.FUA())

	s.Reset(nvme.AdminGetLogPage, 0, 0)
	s.SetLogPage(nvme.LogDiscovery, 1<<33, 1<<20)
	lid, offset, length := s.LogPage()
	assert.Equal(t, uint8(nvme.LogDiscovery), lid)
	assert.Equal(t, uint64(1<<33), offset)
	assert.Equal(t, uint64(1<<20), length)

	s.ResetFabrics(nvme.FabricsPropertySet, 1)
	s.SetProperty(nvme.PropertyCC, nvme.CCFabrics)
	at, size, value := s.Property()
	assert.Equal(t, uint32(nvme.PropertyCC), at)
	assert.Equal(t, 4, size)
	assert.Equal(t, uint64(0x460001), value)
	s.SetProperty(nvme.PropertyCAP, 0)
	_, size, _ = s.Property()
	assert.Equal(t, 8, size)

	s.SetDSM(256, nvme.DSMDeallocate)
	assert.Equal(t, 256, s.DSMRanges())
	var r nvme.DSMRange
	r.Set(9, 0xffffffff)
	assert.Equal(t, uint64(9), r.SLBA())
	assert.Equal(t, uint32(0xffffffff), r.Blocks())

	sq, cq := nvme.QueueCounts(nvme.NumberOfQueues(64, 1))
	assert.Equal(t, []int{64, 1}, []int{sq, cq})
}

func TestStatus(t *testing.T) {
	var c nvme.CQE
	c.Set(5, 6, nvme.StatusConnectInvalidParameters|nvme.DNR, nvme.ConnectInvalid(256, true))
	s := c.Status()
	assert.Equal(t, nvme.Status(0x4182), s, "the value that Linux prints")
	assert.Equal(t, []any{uint8(1), uint8(0x82), true}, []any{s.SCT(), s.SC(), s.DNR()})
	assert.Equal(t, nvme.StatusConnectInvalidParameters, s.Code())
	assert.Equal(t, uint64(0x10100), c.Result())
	assert.Equal(t, uint16(5), c.CID())
	assert.Equal(t, uint16(6), c.SQHD())
}

func TestCAP(t *testing.T) {
	c := nvme.MakeCAP(1023, 20)
	assert.Equal(t, []any{uint16(1023), uint8(20), true, uint8(0)},
		[]any{c.MQES(), c.Timeout(), c.NVMCommandSet(), c.MPSMin()})
}

// TestLists checks that a list of namespaces continues after the given identifier, and that malformed descriptor lists
// are decoded within the page.
func TestLists(t *testing.T) {
	var p [nvme.IdentifySize]byte
	ids := make([]uint32, 2000)
	for i := range ids {
		ids[i] = uint32(i) + 1
	}
	nvme.PutActiveNamespaces(&p, ids, 3)
	got := nvme.ActiveNamespaces(&p)
	assert.Equal(t, ids[3:3+1024], got, "a page full")

	nvme.PutDescriptors(&p, []nvme.Descriptor{{nvme.NIDUUID, make([]byte, 16)}, {nvme.NIDCSI, []byte{0}}})
	assert.Len(t, nvme.Descriptors(&p), 2)
	for i := range p { // a list that fills the page
		p[i] = 255
	}
	for _, d := range nvme.Descriptors(&p) {
		assert.Len(t, d.ID, 255)
	}
}

func TestTexts(t *testing.T) {
	var p nvme.IdentifyController
	p.SetSerial("a serial number that is too long")
	p.SetModel("short")
	assert.Equal(t, "a serial number that", p.Serial())
	assert.Equal(t, "short", p.Model())
	var e nvme.DiscoveryEntry
	e.SetSubsystem(nvme.SubtypeNVM, nvme.FamilyIPv4, 1, "nqn", "127.0.0.1", "4420")
	assert.Equal(t, []string{"nqn", "127.0.0.1", "4420"}, []string{e.SubNQN(), e.Address(), e.Service()})
	var d nvme.ConnectData
	d.Set([16]byte{1}, 2, strings.Repeat("x", 300), "h")
	assert.Len(t, d.SubNQN(), nvme.MaxNQN)
}

func TestLBAFormatIndex(t *testing.T) {
	var p nvme.IdentifyNamespace
	p[25], p[26] = 3, 0x62 // bits 6:5 are ignored with at most 16 formats
	assert.Equal(t, 2, p.Format())
	p[25] = 40
	assert.Equal(t, 0x32, p.Format())
}
