//go:build interop

package interop

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/spdklib"
	"nvmecr/nvmf/dhchap"
	"nvmecr/test/interop/guest"
)

// driverProgram builds the tests of the driver over SPDK, or skips the test.
func driverProgram(t *testing.T) string {
	t.Helper()
	paths, err := exec.Command("../../scripts/spdk-rpath.sh").Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		t.Skip("pkg-config does not find SPDK's libraries: the driver over SPDK cannot be built")
	}
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "spdk.test")
	cmd := exec.Command("go", "test", "-c", "-tags", "spdk", "-o", program, "nvmecr/nvmf/spdk")
	cmd.Env = append(os.Environ(), "CGO_LDFLAGS="+string(paths))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// TestDriverAuthentication checks that the driver over SPDK authenticates over TCP. With Linux's target not all parameters are tried.
func TestDriverAuthentication(t *testing.T) {
	program := driverProgram(t)
	forPeers(t, func(t *testing.T, r *running) {
		if r.auth == nil {
			t.Skip("this target does not authenticate")
		}
		tests := "^TestPeerAuthentication$"
		if r.ours != nil || r.auth.choose != nil {
			tests += "/^([^e]|e[^v])" // not with all parameters
		}
		keys := filepath.Join(t.TempDir(), "keys")
		line := fmt.Sprintln(r.auth.host, r.auth.keys.Host.Reveal(), r.auth.keys.Controller.Reveal())
		require.NoError(t, os.WriteFile(keys, []byte(line), 0o600))
		cmd := exec.Command(program, "-test.v", "-test.run", tests)
		cmd.Env = append(os.Environ(), fmt.Sprintf("NVMECR_TEST_SPDK=%s", r.auth.id), "NVMECR_TEST_SPDK_KEYS="+keys)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), "--- PASS: TestPeerAuthentication/conformance")
		assert.NotContains(t, string(out), "DHHC", "no key is said")
	})
}

// TestDriverTLS checks that the driver over SPDK, and programs under the preload library with it, use TLS with SPDK's target.
func TestDriverTLS(t *testing.T) {
	program := driverProgram(t)
	id, hosts := startSPDKTLS(t)
	var lines string
	for _, h := range hosts {
		lines += h.nqn + " " + h.key.Reveal()
		if !h.keys.Host.IsZero() {
			lines += " " + h.keys.Host.Reveal() + " " + h.keys.Controller.Reveal()
		}
		lines += "\n"
	}
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte(lines), 0o600))
	for last, argv := range map[string][]string{
		"TestTLSReset": {program, "-test.v", "-test.run", "TLS"},
		"TestTLS":      {"go", "test", "-count", "1", "-v", "-run", "^TestTLS$", "nvmecr/test/spdk"},
	} {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), fmt.Sprintf("NVMECR_TEST_SPDK_TLS=%s", id), "NVMECR_TEST_SPDK_TLS_KEYS="+keys)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), "--- PASS: "+last+" ")
		for line := range strings.Lines(lines) {
			assert.NotContains(t, string(out), strings.Fields(line)[1], "no key is said")
		}
	}
}

// A driverGuest is a guest in which the driver's tests run, on huge pages.
type driverGuest struct {
	*guest.Guest
	t    *testing.T
	keys string // key file for TestPeerAuthentication, or ""
}

func bootDriver(t *testing.T, o guest.Options) driverGuest {
	if o.Files == nil {
		o.Files = map[string]string{}
	}
	if o.Kernel.Version != "" {
		o.Files["/spdk.test"] = driverProgram(t)
	}
	o.Memory = 3072
	o.Append += " hugepages=640"
	g := driverGuest{Guest: boot(t, o), t: t}
	sh(t, g.Guest, "mkdir -p /var/run /dev/shm /dev/hugepages && mount -t hugetlbfs hugetlbfs /dev/hugepages")
	return g
}

// test runs tests of the driver on a namespace that may be overwritten, and returns their output. take and bring are commands; see
// TestPeerLoss.
func (g driverGuest) test(name, id, tests, take, bring string) (printed string) {
	g.t.Run(name, func(t *testing.T) {
		r := try(t, g.Guest, fmt.Sprintf(`cd /tmp
			export OPENSSL_CONF=/dev/null NVMECR_TEST_SPDK=%q NVMECR_TEST_SPDK_TAKE=%q NVMECR_TEST_SPDK_BRING=%q NVMECR_TEST_SPDK_KEYS=%q
			timeout -s QUIT 540 /spdk.test -test.v -test.run '%s' 2>&1`, id, take, bring, g.keys, tests))
		printed = r.Stdout
		assert.Zero(t, r.Code, "%s", r.Stdout)
		assert.Contains(t, r.Stdout, "--- PASS")
		assert.NotRegexp(t, "(?m)^--- SKIP", r.Stdout)
		for _, line := range strings.Split(r.Stdout, "\n") {
			if strings.Contains(line, "peer_test.go") || strings.Contains(line, "silent_test.go") { // messages for users
				t.Log(strings.TrimSpace(line))
			}
		}
	})
	return printed
}

// testKeys tests authentication at a subsystem for a host with its keys, in groups. Large groups, and the conformance tests with keys for
// each queue, take long in a slow guest.
func (g driverGuest) testKeys(id, host string, keys dhchap.Keys, groups string) {
	g.input("/tmp/keys", "%s %s %s\n", host, keys.Host.Reveal(), keys.Controller.Reveal())
	g.keys = "/tmp/keys"
	printed := g.test("keys", id, "^TestPeerAuthentication$/(key|secret)|^TestPeerAuthentication$/^every way$/SHA-384 ("+groups+")", "", "")
	if printed == "" { // not selected
		return
	}
	for _, name := range []string{"every_way/SHA-384_ffdhe2048_mutual=true", "wrong_key", "target's_key_is_wrong", "no_secret"} {
		assert.Contains(g.t, printed, "--- PASS: TestPeerAuthentication/"+name)
	}
	assert.NotContains(g.t, printed, "DHHC", "no key is said")
}

const (
	contract     = "^TestPeerConformance$/^plain$|^TestPeerTwice$"
	registration = "^TestPeerRegistration"
	loss         = "^TestPeerLoss$"
	lossy        = "^TestPeerLossy$"
	stopped      = "^TestPeerStopped$"
)

// driveAddress is the PCI address of the guest's drive.
const driveAddress = "0000:01:00.0"

func driveID(nsid uint32) string {
	return fmt.Sprintf("trtype:PCIe traddr:%s ns:%d", driveAddress, nsid)
}

// bindDrive binds the drive to one of the kernel's drivers for user space.
func bindDrive(driver string) string {
	return fmt.Sprintf(`drive=%s driver=%s
		for i in $(seq 150); do [ -e /sys/bus/pci/devices/$drive ] && break; sleep 0.2; done
		echo $driver >/sys/bus/pci/devices/$drive/driver_override
		echo $drive >/sys/bus/pci/drivers_probe
		[ -e /sys/bus/pci/drivers/$driver/$drive ]`, driveAddress, driver)
}

// snatchDrive removes the drive without notice, as if it were pulled out: it makes the port cut off the power of the slot. The port
// notifies the kernel afterwards.
const snatchDrive = `cd $(readlink -f /sys/bus/pci/devices/` + driveAddress + `/..)
	byte() { od -An -tu1 -j $1 -N 1 config | tr -d ' '; }
	at=$(byte 52) # the first capability
	while [ $(byte $at) -ne 16 ]; do at=$(byte $((at + 1))); done
	at=$((at + 24)) # Slot Control, of PCI Express
	high=$(($(byte $((at + 1))) | 7)) # indicator and power off
	printf "$(printf '\\%03o\\%03o' $(byte $at) $high)" | dd of=config bs=2 seek=$((at / 2)) conv=notrunc 2>/dev/null
	`

// A drivePath is a way to access a local drive.
type drivePath struct {
	driver  string // driver of the kernel for user space
	modules []string
	args    []string
	append  string
}

var drivePaths = []drivePath{
	{driver: "uio_pci_generic", modules: []string{"uio_pci_generic"}},
	// SPDK uses virtual addresses only if all of them fit. Without KVM the interrupts of the timer cannot be remapped.
	{driver: "vfio-pci", modules: []string{"vfio-pci", "vfio_iommu_type1 allow_unsafe_interrupts=1"},
		args: []string{"-device", "intel-iommu,aw-bits=48,intremap=off"}, append: "intel_iommu=on"},
}

// TestDriverOverPCIe tests a local drive with two namespaces, which is removed in several ways.
func TestDriverOverPCIe(t *testing.T) {
	forKernels(t, func(t *testing.T, k guest.Kernel) {
		for _, path := range drivePaths {
			t.Run(path.driver, func(t *testing.T) { testDrive(t, k, path) })
		}
	})
}

func testDrive(t *testing.T, k guest.Kernel, path drivePath) {
	g, monitor := bootDrive(t, k, path)
	refusal := try(t, g.Guest, fmt.Sprintf("OPENSSL_CONF=/dev/null NVMECR_TEST_SPDK='%s' /spdk.test -test.run TestPeerTwice 2>&1", driveID(1)))
	assert.Contains(t, refusal.Stdout, "scripts/setup.sh", "before it is bound")
	_, err := g.RunInput(t.Context(), "cat >/tmp/snatch", []byte(snatchDrive))
	require.NoError(t, err)
	sh(t, g.Guest, "%s", bindDrive(path.driver))
	for i, lba := range lbaSizes {
		g.test(fmt.Sprintf("blocks of %d", lba), driveID(nsids[i]), contract, "", "")
	}
	for i, c := range []struct{ name, take string }{
		{"pulled", fmt.Sprintf("(echo device_del ssd; sleep 1) | nc %s %d >/dev/null", guest.Gateway, monitor)},
		{"snatched", "sh /tmp/snatch"},
	} {
		if i > 0 { // put it back
			conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(monitor)))
			require.NoError(t, err)
			_, err = fmt.Fprintf(conn, "device_add %s\n", drive)
			require.NoError(t, err)
			sh(t, g.Guest, "%s", bindDrive(path.driver))
			require.NoError(t, conn.Close())
		}
		g.test(c.name, driveID(1), loss, c.take, "")
	}
}

// drive is QEMU's argument for the drive. Its namespaces belong to the subsystem, which stays.
const drive = "nvme,id=ssd,serial=INTEROP,bus=socket,mdts=7,subsys=subsystem"

// bootDrive boots a guest with a drive, and returns it with the port of QEMU's
// monitor.
func bootDrive(t *testing.T, k guest.Kernel, path drivePath) (g driverGuest, monitor int) {
	monitor = freePort(t)
	args := append(path.args, "-device", "pcie-root-port,id=socket,slot=1,chassis=1",
		"-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off", // the kernel handles hotplug of the port
		"-monitor", fmt.Sprintf("tcp:%s,server=on,wait=off", net.JoinHostPort("127.0.0.1", fmt.Sprint(monitor))))
	args = append(args, "-device", "nvme-subsys,id=subsystem", "-device", drive)
	for i, lba := range lbaSizes {
		image := filepath.Join(t.TempDir(), "image")
		require.NoError(t, os.WriteFile(image, nil, 0o600))
		require.NoError(t, os.Truncate(image, int64(size)))
		args = append(args, "-blockdev", fmt.Sprintf("raw,node-name=image%d,file.driver=file,file.filename=%s", i, image),
			"-device", fmt.Sprintf("nvme-ns,bus=ssd,drive=image%d,nsid=%d,logical_block_size=%d,physical_block_size=%[3]d", i, nsids[i], lba))
	}
	return bootDriver(t, guest.Options{Kernel: k, Modules: path.modules, Args: args, Append: path.append}), monitor
}

// rdmaOptions returns the options of a guest with an RDMA device in software.
func rdmaOptions(k guest.Kernel, modules ...string) guest.Options {
	o := guest.Options{Kernel: k, Modules: append(modules, "rdma_rxe", "rdma_ucm", "ib_uverbs"), Programs: []string{"rdma"}, Files: map[string]string{}}
	providers, _ := filepath.Glob("/usr/lib/*/libibverbs/librxe-*.so")
	for _, p := range append(providers, "/etc/libibverbs.d/rxe.driver") {
		o.Files[p] = p
	}
	return o
}

func bootRDMA(t *testing.T, o guest.Options) driverGuest {
	if _, err := os.Stat("/etc/libibverbs.d/rxe.driver"); err != nil {
		t.Skip("libibverbs has no driver for RDMA in software: ibverbs-providers is not installed")
	}
	g := bootDriver(t, o)
	sh(t, g.Guest, "ulimit -l unlimited; rdma link add rxe0 type rxe netdev eth0")
	return g
}

// guestAddress is the address of a guest on its own network.
const guestAddress = "10.0.2.15"

// lossyNetwork sets up a network between the guest and itself that loses one of a hundred packets each way, with an RDMA device at either
// end. Routing rules are needed since the kernel keeps packets to its own addresses within itself.
const lossyNetwork = `set -e
	ip() { %s "$@"; } # not the shell's own, which know less
	tc() { %s "$@"; }
	ip link add near type veth peer name far
	ip rule add pref 9 lookup local; ip rule del pref 0
	end() { # NAME ADDRESS OTHER TABLE
		echo 1 >/proc/sys/net/ipv4/conf/$1/accept_local
		ip addr add $2/24 dev $1; ip link set $1 up
		ip route add $3 dev $1 src $2 table $4
		ip rule add pref 1 iif lo to $3 lookup $4; ip rule add pref 2 oif $1 to $3 lookup $4
		tc qdisc add dev $1 root netem loss 1%% limit 100000
		rdma link add rxe_$1 type rxe netdev $1
	}
	end near 10.9.0.1 10.9.0.2 101; end far 10.9.0.2 10.9.0.1 102`

// slowNetwork stops the loss, and delays a connection request, a datagram with opcode 0x64, by more than the second that SPDK waits for
// an answer.
const slowNetwork = `set -e
	tc() { %s "$@"; }
	tc qdisc del dev far root
	tc qdisc del dev near root
	tc qdisc add dev near root handle 1: prio priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1
	tc filter add dev near parent 1: protocol ip u32 match u8 0x64 0xff at 28 flowid 1:1
	tc qdisc add dev near parent 1:1 netem delay 1500ms`

// farAddress is the address of the other end of that network.
const farAddress = "10.9.0.2"

func rdmaID(address, nqn string) string {
	return fmt.Sprintf("trtype:RDMA traddr:%s trsvcid:%d subnqn:%s ns:1", address, nvmetPort, nqn)
}

// TestDriverOverRDMA tests Linux's target, whose port and namespace are removed.
func TestDriverOverRDMA(t *testing.T) {
	forKernels(t, func(t *testing.T, k guest.Kernel) {
		o := rdmaOptions(k, append(nvmetModules(k), "nvmet_rdma", "veth", "sch_netem", "sch_prio", "cls_u32")...)
		o.Programs = append(o.Programs, "ip", "tc")
		g := bootRDMA(t, o)
		sh(t, g.Guest, lossyNetwork, guest.Find("ip"), guest.Find("tc"))
		for i, address := range []string{guestAddress, farAddress} {
			sh(t, g.Guest, "%s", nvmetFunctions+fmt.Sprintf(`mkdir $nvmet/ports/%[1]d; cd $nvmet/ports/%[1]d
				echo rdma >addr_trtype; echo ipv4 >addr_adrfam; echo %[2]s >addr_traddr; echo %[3]d >addr_trsvcid`, i+1, address, nvmetPort))
		}
		for _, lba := range lbaSizes {
			sh(t, g.Guest, "%s", nvmetFunctions+fmt.Sprintf("subsystem %[1]s; open %[1]s; device ns%[2]d %[2]d; namespace %[1]s 1 /dev/ns%[2]d; serve %[1]s; serve %[1]s 2",
				subsystemNQN(lba), lba))
		}
		id := func(nqn string) string { return rdmaID(guestAddress, nqn) }
		for _, lba := range lbaSizes {
			g.test(fmt.Sprintf("blocks of %d", lba), id(subsystemNQN(lba)), contract, "", "")
			g.test(fmt.Sprintf("memory registered, blocks of %d", lba), id(subsystemNQN(lba)), registration, "", "")
		}
		if k.Has("NVME_TARGET_AUTH") {
			host, keys := newHost(), newKeys()
			sh(t, g.Guest, "%s", nvmetFunctions+fmt.Sprintf("subsystem %[1]s; device auth 4096; namespace %[1]s 1 /dev/auth; guard %[1]s %[2]s '%[3]s' '%[4]s'; serve %[1]s",
				authNQN, host, keys.Host.Reveal(), keys.Controller.Reveal()))
			sh(t, g.Guest, "%s", nvmetChoice(host, dhchap.SHA384, dhchap.FFDHE2048))
			g.testKeys(id(authNQN), host, keys, "ffdhe2048")
		}
		g.test("lossy network", rdmaID(farAddress, subsystemNQN(4096)), lossy, "", "")
		sh(t, g.Guest, slowNetwork, guest.Find("tc"))
		g.test("slow to connect", rdmaID(farAddress, subsystemNQN(4096)), "^TestPeerTwice$", "", "")
		nqn, nvmet := subsystemNQN(lbaSizes[0]), "/sys/kernel/config/nvmet"
		link := fmt.Sprintf("%s/ports/1/subsystems/%s", nvmet, nqn)
		g.test("port gone for a while", id(nqn), loss, "rm "+link, fmt.Sprintf("ln -s %s/subsystems/%s %s", nvmet, nqn, link))
		enable := fmt.Sprintf(" >%s/subsystems/%s/namespaces/1/enable", nvmet, nqn)
		g.test("namespace gone for a while", id(nqn), loss, "echo 0"+enable, "echo 1"+enable)
		// To remove an RDMA device in software the kernel waits for its users, for whom it works until then. A device without its network
		// does not work.
		g.test("device gone", rdmaID(farAddress, nqn), loss, guest.Find("ip")+" link del near >/dev/null 2>&1 &", "")
	})
}

// spdkConfig is the configuration of SPDK's target over RDMA: a subsystem for everybody, and one for a host with a key.
const spdkConfig = `{"subsystems": [
	{"subsystem": "keyring", "config": [
		{"method": "keyring_file_add_key", "params": {"name": "host", "path": "/tmp/host.key"}},
		{"method": "keyring_file_add_key", "params": {"name": "target", "path": "/tmp/target.key"}}]},
	{"subsystem": "bdev", "config": [
		{"method": "bdev_malloc_create", "params": {"name": "memory", "num_blocks": 16384, "block_size": 4096}},
		{"method": "bdev_malloc_create", "params": {"name": "guarded", "num_blocks": 16384, "block_size": 4096}}]},
	{"subsystem": "nvmf", "config": [
		{"method": "nvmf_create_transport", "params": {"trtype": "RDMA", "max_io_size": 131072}},
		{"method": "nvmf_create_subsystem", "params": {"nqn": "%[1]s", "allow_any_host": true, "serial_number": "INTEROP"}},
		{"method": "nvmf_subsystem_add_ns", "params": {"nqn": "%[1]s", "namespace": {"bdev_name": "memory", "nsid": 1}}},
		{"method": "nvmf_create_subsystem", "params": {"nqn": "%[4]s", "serial_number": "INTEROPAUTH"}},
		{"method": "nvmf_subsystem_add_ns", "params": {"nqn": "%[4]s", "namespace": {"bdev_name": "guarded", "nsid": 1}}},
		{"method": "nvmf_subsystem_add_host", "params": {"nqn": "%[4]s", "host": "%[5]s", "dhchap_key": "host", "dhchap_ctrlr_key": "target"}},
		{"method": "nvmf_subsystem_add_listener", "params": {"nqn": "%[1]s",
			"listen_address": {"trtype": "RDMA", "adrfam": "IPv4", "traddr": "%[2]s", "trsvcid": "%[3]d"}}},
		{"method": "nvmf_subsystem_add_listener", "params": {"nqn": "%[4]s",
			"listen_address": {"trtype": "RDMA", "adrfam": "IPv4", "traddr": "%[2]s", "trsvcid": "%[3]d"}}}]}]}`

// input writes a private file in the guest.
func (g driverGuest) input(path, format string, args ...any) {
	_, err := g.RunInput(g.t.Context(), fmt.Sprintf("umask 077; cat >%s", path), fmt.Appendf(nil, format, args...))
	require.NoError(g.t, err)
}

// startSPDKTarget starts SPDK's target in the guest. host has to authenticate with the keys for authNQN.
func (g driverGuest) startSPDKTarget(program, host string, keys dhchap.Keys) {
	g.input("/tmp/host.key", "%s", keys.Host.Reveal())
	g.input("/tmp/target.key", "%s", keys.Controller.Reveal())
	g.input("/tmp/config", spdkConfig, subsystemNQN(4096), guestAddress, nvmetPort, authNQN, host)
	sh(g.t, g.Guest, `ulimit -l unlimited
		OPENSSL_CONF=/dev/null %s=%s setsid %s -m 2 -s 640 --no-pci -c /tmp/config </dev/null >/tmp/log 2>&1 & echo $! >/tmp/pid
		for i in $(seq 300); do grep -q 'Target Listening' /tmp/log && exit 0; sleep 0.5; done; cat /tmp/log; exit 1`,
		spdklib.Variable, os.Getenv(spdklib.Variable), program)
}

// TestDriverOverRDMAToSPDK tests SPDK on both ends; its target is stopped, and killed.
func TestDriverOverRDMAToSPDK(t *testing.T) {
	program := spdkProgram(t, "nvmf_tgt")
	forKernels(t, func(t *testing.T, k guest.Kernel) {
		o := rdmaOptions(k)
		o.Programs = append(o.Programs, program)
		g := bootRDMA(t, o)
		host, keys := newHost(), newKeys()
		g.startSPDKTarget(program, host, keys)
		id := rdmaID(guestAddress, subsystemNQN(4096))
		g.test("contract", id, contract, "", "")
		g.test("memory registered", id, registration, "", "")
		g.test("reservations", id, "^TestPeerReservations$", "", "")
		g.testKeys(rdmaID(guestAddress, authNQN), host, keys, "NULL|ffdhe2048")
		g.test("stopped", id, stopped, "kill -STOP $(cat /tmp/pid)", "kill -CONT $(cat /tmp/pid)")
		g.test("killed", id, loss, "kill -9 $(cat /tmp/pid)", "")
	})
}
