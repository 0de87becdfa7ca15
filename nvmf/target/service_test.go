package target_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
)

// readPage asks for an identify or log page on an admin queue.
func (h *client) readPage(s *nvme.SQE, length uint32) ([]byte, nvme.Status) {
	s.SGL().Set(nvme.SGLTransport, 0, length)
	h.capsule(s, nil)
	var page []byte
	for {
		x, b, d, err := h.next()
		require.NoError(h.t, err)
		if x.Type == pdu.TypeCapsuleResp {
			return page, pdu.CQEOf(b).Status()
		}
		page = append(page, d...)
	}
}

func (h *client) active() []uint32 {
	s := h.command(nvme.AdminIdentify)
	s.Reset(nvme.AdminIdentify, s.CID(), 0)
	s.SetIdentify(nvme.CNSActiveNamespaces)
	page, status := h.readPage(s, nvme.IdentifySize)
	require.Zero(h.t, status)
	return nvme.ActiveNamespaces((*[nvme.IdentifySize]byte)(page))
}

func TestNamespacesComeAndGo(t *testing.T) {
	tgt, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	admin, q := io2(t, addr, 0)
	s := admin.command(nvme.AdminSetFeatures)
	s.SetCDW(10, nvme.FeatureAsyncEventConfig)
	s.SetCDW(11, 1<<8)
	admin.capsule(s, nil)
	require.Zero(t, admin.response().Status())
	event := admin.command(nvme.AdminAsyncEvent)
	admin.capsule(event, nil)
	assert.Equal(t, []uint32{1}, admin.active())

	nsid, err := tgt.AddNamespace(testNQN, target.Namespace{Backing: memory(t, nvmf.MiB, 4096)})
	require.NoError(t, err)
	assert.Equal(t, uint32(2), nsid)
	r := admin.response()
	assert.Equal(t, event.CID(), r.CID(), "the held request completes")
	assert.Equal(t, uint64(0x00040002), r.Result(), "namespace attribute changed")
	assert.Equal(t, []uint32{1, 2}, admin.active())
	s = admin.command(nvme.AdminGetLogPage)
	s.SetLogPage(nvme.LogChangedNS, 0, 4096)
	page, status := admin.readPage(s, 4096)
	require.Zero(t, status)
	assert.Equal(t, []byte{2, 0, 0, 0, 0, 0, 0, 0}, page[:8])

	// Removal waits for a command in flight, and refuses new ones meanwhile.
	write := q.rw(nvme.IOWrite, 0, 1, 4096)
	q.capsule(write, nil)
	x, b := q.read()
	require.Equal(t, pdu.TypeR2T, x.Type)
	r2t := pdu.R2TOf(b)
	expired, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, tgt.RemoveNamespace(expired, testNQN, 1), context.DeadlineExceeded)
	_, status = q.readBlocks(0, 1, 4096)
	assert.Equal(t, nvme.StatusInvalidNamespace, status.Code())
	// The write in flight does not change a new namespace with the same id.
	_, err = tgt.AddNamespace(testNQN, target.Namespace{NSID: 1, Backing: memory(t, nvmf.MiB, 4096)})
	require.NoError(t, err)
	q.h2c(pdu.Data{CID: r2t.CID, TTag: r2t.TTag, Length: 4096}, true, bytes.Repeat([]byte{1}, 4096))
	assert.Zero(t, q.response().Status(), "the command in flight completes")
	got, status := q.readBlocks(0, 1, 4096)
	assert.Zero(t, status)
	assert.Equal(t, make([]byte, 4096), got)
	require.NoError(t, tgt.RemoveNamespace(context.Background(), testNQN, 1))
	require.ErrorIs(t, tgt.RemoveNamespace(context.Background(), testNQN, 1), nvmf.ErrNoNamespace)
}

func TestHostsSeeTheirNamespacesOnly(t *testing.T) {
	c := target.Config{Subsystems: []target.Subsystem{{NQN: testNQN, Namespaces: []target.Namespace{
		{NSID: 1, Backing: memory(t, nvmf.MiB, 4096), Hosts: []string{testHost + "-other"}},
		{NSID: 2, Backing: memory(t, nvmf.MiB, 4096), Hosts: []string{testHost}},
	}}}}
	_, addr := serve(t, c)
	admin, q := io2(t, addr, 0)
	assert.Equal(t, []uint32{2}, admin.active())
	_, status := q.readBlocks(0, 1, 4096)
	assert.Equal(t, nvme.StatusInvalidNamespace, status.Code(), "a direct nsid is refused")
}

func TestAllowList(t *testing.T) {
	c := one(memory(t, nvmf.MiB, 4096))
	c.Subsystems[0].Hosts = []string{testHost}
	tgt, addr := serve(t, c)
	_, err := tcp.Open(context.Background(), id(t, addr, 1), tcp.Options{HostNQN: testHost + "x"})
	assert.ErrorIs(t, err, nvmf.ErrHostRefused)
	h := dial(t, addr, 0)
	h.admin()
	require.NoError(t, tgt.SetHosts(testNQN, []string{testHost + "x"}))
	h.ends(0) // SetHosts ends the connections of hosts that are not listed any more
	entries, err := tcp.Discover(context.Background(), id(t, addr, 1), tcp.Options{HostNQN: testHost})
	require.NoError(t, err)
	assert.Empty(t, entries)
}

func TestDiscovery(t *testing.T) {
	tgt, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	require.NoError(t, tgt.AddSubsystem(target.Subsystem{NQN: testNQN + "2"}))
	tid := id(t, addr, 1)
	entries, err := tcp.Discover(context.Background(), tid, tcp.Options{})
	require.NoError(t, err)
	require.Len(t, entries, 2)
	assert.Equal(t, testNQN, entries[0].SubNQN())
	assert.Equal(t, testNQN+"2", entries[1].SubNQN())
	assert.Equal(t, tid.Address, entries[0].Address())
	assert.Equal(t, tid.Service, entries[0].Service())
	require.NoError(t, tgt.RemoveSubsystem(testNQN+"2"))
	require.ErrorIs(t, tgt.RemoveSubsystem(testNQN+"2"), nvmf.ErrNoSubsystem)
}

func TestKeepAliveTimeout(t *testing.T) {
	_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	silent := dial(t, addr, 0)
	s, d := silent.connectCommand(0, nvme.CNTLIDDynamic)
	s.SetConnect(nvme.Connect{SQSize: 31, KATO: 100})
	start := time.Now()
	silent.capsule(s, d[:])
	require.Zero(t, silent.response().Status())
	silent.ends(0)
	assert.Less(t, time.Since(start), hang/2)
	assert.GreaterOrEqual(t, time.Since(start), 100*time.Millisecond)
}

// setKeepAlive gives the controller a time-out in ms.
func (h *client) setKeepAlive(ms uint32) {
	s := h.command(nvme.AdminSetFeatures)
	s.SetCDW(10, nvme.FeatureKeepAliveTimer)
	s.SetCDW(11, ms)
	h.capsule(s, nil)
	require.Zero(h.t, h.response().Status())
}

func TestCutIsAFence(t *testing.T) {
	tgt, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	_, q := io2(t, addr, 0)
	q.capsule(q.rw(nvme.IOWrite, 0, 1, 4096), nil)
	x, b := q.read()
	require.Equal(t, pdu.TypeR2T, x.Type)
	r := pdu.R2TOf(b)
	assert.Equal(t, 0, tgt.Cut(func(h target.Host) bool { return h.NQN != testHost }))
	assert.Equal(t, 1, tgt.Cut(func(h target.Host) bool { return h.NQN == testHost }))
	// Data that arrives after Cut must not change the block.
	late := pdu.Rules{FromHost: true}
	buf := make([]byte, pdu.MaxHeaderSize)
	n := late.Put(buf, pdu.TypeH2CData, pdu.FlagLast, 4096)
	pdu.PutData(buf, pdu.Data{CID: r.CID, TTag: r.TTag, Length: 4096})
	_, _ = q.c.Write(append(buf[:n], bytes.Repeat([]byte{9}, 4096)...)) // may fail, since the connection has ended
	q.ends(0)
	_, again := io2(t, addr, 0)
	got, status := again.readBlocks(0, 1, 4096)
	assert.Zero(t, status)
	assert.Equal(t, make([]byte, 4096), got)
}

// TestCutWaitsForEnded checks that Cut and the other calls that cut a host off return only after
// all writes of the host, even if the controller has ended before for another reason.
func TestCutWaitsForEnded(t *testing.T) {
	everybody := func(target.Host) bool { return true }
	for how, end := range map[string]func(*target.Target, *client){
		"the host left": func(_ *target.Target, admin *client) { require.NoError(t, admin.c.Close()) },
		"keep-alive":    func(_ *target.Target, admin *client) { admin.setKeepAlive(50) },
		"another cut":   func(tgt *target.Target, _ *client) { go tgt.Cut(everybody) },
		"nothing did":   nil,
	} {
		for name, cut := range map[string]func(*target.Target) error{
			"Cut":             func(tgt *target.Target) error { tgt.Cut(everybody); return nil },
			"SetHosts":        func(tgt *target.Target) error { return tgt.SetHosts(testNQN, []string{testNQN}) },
			"RemoveSubsystem": func(tgt *target.Target) error { return tgt.RemoveSubsystem(testNQN) },
		} {
			t.Run(how+", "+name, func(t *testing.T) {
				b := newStuck(memory(t, nvmf.MiB, 4096))
				tgt, addr := serve(t, one(b))
				t.Cleanup(b.release) // also when the test fails
				admin, q := io2(t, addr, 0)
				b.armed.Store(true)
				q.capsule(q.rw(nvme.IOWrite, 0, 1, 0), make([]byte, 4096))
				<-b.arrived
				if end != nil {
					end(tgt, admin)
					require.Eventually(t, func() bool { return target.Controllers(tgt) == 0 }, hang, time.Millisecond)
				}
				done := make(chan error, 1)
				go func() { done <- cut(tgt) }()
				select {
				case <-done:
					assert.Fail(t, "it did not wait for the write")
				case <-time.After(50 * time.Millisecond):
					b.release()
					assert.NoError(t, <-done)
				}
			})
		}
	}
}

// TestCutTimeout checks that calls that cut hosts off give up with ErrExecuting when a
// command does not end, although the hosts are cut off. A repeated call waits again.
func TestCutTimeout(t *testing.T) {
	for name, cut := range map[string]func(*target.Target) error{
		"SetHosts":  func(tgt *target.Target) error { return tgt.SetHosts(testNQN, []string{testNQN}) },
		"SetAccess": func(tgt *target.Target) error { return tgt.SetAccess(testNQN, []string{testNQN}, nil) },
		"SetKeys": func(tgt *target.Target) error {
			return tgt.SetKeys(map[string]dhchap.Keys{testHost: {Host: dhchap.NewSecret(dhchap.SHA256)}})
		},
		"RemoveSubsystem": func(tgt *target.Target) error { return tgt.RemoveSubsystem(testNQN) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newStuck(memory(t, nvmf.MiB, 4096))
			c := one(b)
			c.CutTimeout = 20 * time.Millisecond
			tgt, addr := serve(t, c)
			t.Cleanup(b.release) // also when the test fails
			_, q := io2(t, addr, 0)
			b.armed.Store(true)
			q.capsule(q.rw(nvme.IOWrite, 0, 1, 0), make([]byte, 4096))
			<-b.arrived
			err := cut(tgt)
			require.ErrorIs(t, err, target.ErrExecuting)
			require.ErrorContains(t, err, testHost)
			assert.Zero(t, target.Controllers(tgt))
			if name == "RemoveSubsystem" {
				b.release()
				q.ends(0)
				return
			}
			require.ErrorIs(t, cut(tgt), target.ErrExecuting)
			b.release()
			require.Eventually(t, func() bool { return cut(tgt) == nil }, hang, time.Millisecond)
		})
	}
}

// TestFrozenHosts leaves connections in the middle of PDUs, and with unread answers. The
// target has to serve other hosts meanwhile, and Close must not wait for these connections.
func TestFrozenHosts(t *testing.T) {
	tgt, addr := serve(t, one(memory(t, 16*nvmf.MiB, 4096)))
	connect(t, addr).write([]byte{0, 0})
	half := dial(t, addr, 0)
	half.write(half.encode(half.command(0), nil)[:40])
	_, writer := io2(t, addr, 0)
	writer.write(writer.encode(writer.rw(nvme.IOWrite, 0, 32, 0), make([]byte, 128<<10))[:70000])
	_, reader := io2(t, addr, 0)
	for i := range uint64(31) { // 31 MiB of data that the host does not read
		reader.capsule(reader.rw(nvme.IORead, i, 256, 1<<20), nil)
	}
	_, q := io2(t, addr, 0)
	for range 100 {
		_, status := q.readBlocks(0, 1, 4096)
		require.Zero(t, status)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	require.NoError(t, tgt.Close(ctx))
	assert.Less(t, time.Since(start), hang/2)
}

func TestConnectionLimit(t *testing.T) {
	c := one(memory(t, nvmf.MiB, 4096))
	c.MaxConnections = 2
	_, addr := serve(t, c)
	io2(t, addr, 0)
	connect(t, addr).ends(0)
}

// TestTruncatedFile truncates a file while it is served. Commands to the missing blocks
// fail with a status, without SIGBUS, and the connection stays usable.
func TestTruncatedFile(t *testing.T) {
	for _, digests := range []uint8{0, pdu.EnableDataDigest} {
		path := filepath.Join(t.TempDir(), "ns")
		require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte{5}, 1<<20), 0o600))
		b, err := target.OpenFile(path, 4096)
		require.NoError(t, err)
		tgt, err := target.New(one(b))
		require.NoError(t, err)
		addr, err := tgt.Listen("127.0.0.1:0")
		require.NoError(t, err)
		_, q := io2(t, addr, digests)
		require.NoError(t, os.Truncate(path, 512<<10))
		got, status := q.readBlocks(64, 128, 512<<10)
		assert.Equal(t, nvme.StatusReadError, status.Code())
		assert.Equal(t, nvme.StatusReadError, q.verify(100, 64).Code())
		assert.Zero(t, q.verify(0, 128))
		if digests == 0 {
			assert.Len(t, got, 512<<10, "the length that was announced")
			q.capsule(q.rw(nvme.IOWrite, 200, 16, 0), make([]byte, 64<<10))
			assert.Equal(t, nvme.StatusWriteFault, q.response().Status().Code())
		}
		got, status = q.readBlocks(0, 128, 512<<10)
		assert.Zero(t, status, "what is there can still be read")
		assert.Equal(t, bytes.Repeat([]byte{5}, 512<<10), got)
		require.NoError(t, tgt.Close(context.Background()))
	}
}

// TestFullDisk serves a sparse file that is larger than its file system. Writes fail with
// Capacity Exceeded when the file system is full.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	path := filepath.Join(dir, "ns")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 8<<20))
	b, err := target.OpenFile(path, 4096)
	require.NoError(t, err)
	tgt, addr := serve(t, one(b))
	defer func() { // the target has the file open, so it closes before the unmount
		require.NoError(t, tgt.Close(context.Background()))
		require.NoError(t, unix.Unmount(dir, 0))
	}()
	for _, digests := range []uint8{0, pdu.EnableDataDigest} {
		_, q := io2(t, addr, digests)
		full := false
		for lba := uint64(0); lba < 2048; lba += 32 {
			q.capsule(q.rw(nvme.IOWrite, lba, 32, 0), bytes.Repeat([]byte{6}, 128<<10))
			if status := q.response().Status(); status != 0 {
				require.Equal(t, nvme.StatusCapacityExceeded, status.Code())
				full = true
			}
		}
		assert.True(t, full)
		got, status := q.readBlocks(0, 1, 4096)
		assert.Zero(t, status)
		assert.Equal(t, bytes.Repeat([]byte{6}, 4096), got)
		s := q.command(nvme.IODSM)
		s.SetDSM(1, nvme.DSMDeallocate)
		var r nvme.DSMRange
		r.Set(0, 2048)
		q.capsule(s, r[:])
		assert.Zero(t, q.response().Status())
		q.capsule(q.rw(nvme.IOWrite, 2000, 1, 0), bytes.Repeat([]byte{6}, 4096))
		assert.Zero(t, q.response().Status(), "there is space again")
	}
}

// TestKilledTarget kills the process of a target, and checks that the data of completed
// writes is in the file.
func TestKilledTarget(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 16<<20))
	cmd, addr := child(t, "file:"+path)
	_, q := open(t, addr, tcp.Options{})
	want := bytes.Repeat([]byte("survives"), 128<<10)
	w := []*nvmf.Command{{Opcode: nvmf.Write, LBA: 7, Blocks: 256, Data: [][]byte{want}}}
	q.Submit(w)
	require.NoError(t, q.Wait(w))
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait()
	q.Submit(w)
	require.ErrorIs(t, q.Wait(w), nvmf.ErrConnectionLost)

	_, addr = child(t, "file:"+path)
	d, q := open(t, addr, tcp.Options{})
	assert.True(t, d.Identity().VolatileWriteCache)
	got := make([]byte, len(want))
	r := []*nvmf.Command{{Opcode: nvmf.Read, LBA: 7, Blocks: 256, Data: [][]byte{got}}}
	q.Submit(r)
	require.NoError(t, q.Wait(r))
	assert.True(t, bytes.Equal(want, got))
}

// TestCloseFinishesWhatHasBegun checks that Close waits for a write whose data has not
// arrived yet.
func TestCloseFinishesWhatHasBegun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns")
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	b, err := target.OpenFile(path, 4096)
	require.NoError(t, err)
	tgt, addr := serve(t, one(b))
	_, q := io2(t, addr, 0)
	q.capsule(q.rw(nvme.IOWrite, 1, 1, 4096), nil)
	x, buf := q.read()
	require.Equal(t, pdu.TypeR2T, x.Type)
	r := pdu.R2TOf(buf)
	closed := make(chan error)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		closed <- tgt.Close(ctx)
	}()
	for { // connecting fails once Close has begun
		c, err := net.Dial("tcp", addr.String())
		if err != nil {
			break
		}
		require.NoError(t, c.Close())
	}
	want := bytes.Repeat([]byte{3}, 4096)
	q.h2c(pdu.Data{CID: r.CID, TTag: r.TTag, Length: 4096}, true, want)
	assert.Zero(t, q.response().Status())
	q.ends(0)
	require.NoError(t, <-closed)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, want, got[4096:8192])
}

// TestQueueIDIsFreeAfterALostConnection checks that a host can connect a queue with the
// same id at once after it has closed the connection of the queue.
func TestQueueIDIsFreeAfterALostConnection(t *testing.T) {
	_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	admin := dial(t, addr, 0)
	cntlid := admin.admin()
	for range 20 {
		q := dial(t, addr, 0)
		q.join(cntlid)
		require.NoError(t, q.c.Close())
	}
}

// TestFileIsServedOnce checks that a file cannot be opened as a second Backing while the
// first one is open, even by another name.
func TestFileIsServedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns")
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	b, err := target.OpenFile(path, 4096)
	require.NoError(t, err)
	link := path + "-link"
	require.NoError(t, os.Link(path, link))
	_, err = target.OpenFile(link, 4096)
	require.ErrorIs(t, err, syscall.EBUSY)
	assert.ErrorContains(t, err, link)
	require.NoError(t, b.Close())
	b, err = target.OpenFile(link, 4096)
	require.NoError(t, err)
	require.NoError(t, b.Close())
}
