//go:build interop

package interop

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/dhchap"
)

// digestFlags are the combinations of digests.
var digestFlags = []struct {
	name         string
	header, data bool
}{
	{"no digests", false, false}, {"header digest", true, false}, {"data digest", false, true}, {"both digests", true, true},
}

// TestSPDKHost tests our target with SPDK's initiator: with its tools, and with a target of SPDK whose namespaces are on our target.
func TestSPDKHost(t *testing.T) {
	r := startOurs(t)
	for _, lba := range lbaSizes {
		t.Run(fmt.Sprintf("identify, %d-byte blocks", lba), func(t *testing.T) { testIdentify(t, r.subsystems[lba], lba) })
		for _, d := range digestFlags {
			t.Run(fmt.Sprintf("perf, %d-byte blocks, %s", lba, d.name), func(t *testing.T) {
				testPerf(t, r.subsystems[lba], d.header, d.data)
			})
		}
	}
	t.Run("conformance", func(t *testing.T) { testThroughSPDK(t, r) })
}

// spdkID returns a transport id in the form of SPDK's tools.
func spdkID(id nvmf.TransportID) string {
	return fmt.Sprintf("trtype:TCP adrfam:IPv4 traddr:%s trsvcid:%s subnqn:%s", id.Address, id.Service, id.SubNQN)
}

// tool runs one of SPDK's tools and returns its output.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	out, err := exec.CommandContext(ctx, spdkProgram(t, name), append([]string{"--no-huge", "-s", "256"}, args...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
	return string(out)
}

func testIdentify(t *testing.T, id nvmf.TransportID, lba nvmf.Bytes) {
	out := tool(t, "spdk_nvme_identify", "-r", spdkID(id))
	for _, want := range []string{`Subsystem NQN:\s+` + regexp.QuoteMeta(id.SubNQN), `Max Data Transfer Size:\s+1048576`, `Model Number:\s+nvmecr target`,
		`Namespace ID:1\b`, `Namespace ID:2\b`, `Namespace ID:7\b`, `Data Size:\s+` + fmt.Sprint(uint64(lba))} {
		assert.Regexp(t, want, out)
	}
}

func testPerf(t *testing.T, id nvmf.TransportID, header, data bool) {
	for _, load := range []string{"write", "read", "randrw"} {
		for _, size := range []string{"4096", "1048576"} {
			args := []string{"-c", "[1]", "-q", "8", "-o", size, "-w", load, "-t", "1", "-r", spdkID(id)}
			if load == "randrw" {
				args = append(args, "-M", "50")
			}
			if header {
				args = append(args, "-H")
			}
			if data {
				args = append(args, "-I")
			}
			assert.Positive(t, perf(t, args...), "%s of %s", load, size)
		}
	}
}

// perf runs SPDK's benchmark and returns the number of commands per second.
func perf(t *testing.T, args ...string) float64 {
	out := tool(t, "spdk_nvme_perf", args...)
	found := regexp.MustCompile(`(?m)^Total\s*:\s+([0-9.]+)`).FindStringSubmatch(out)
	require.NotNil(t, found, "%v: %s", args, out)
	rate, err := strconv.ParseFloat(found[1], 64)
	require.NoError(t, err)
	return rate
}

// testThroughSPDK runs the conformance tests on a target of SPDK that accesses our namespaces by its own initiator. So they test the
// combination of SPDK's initiator and our target.
func testThroughSPDK(t *testing.T, r *running) {
	rpc := startTransport(t)
	port := freePort(t)
	for _, lba := range lbaSizes {
		for i, d := range digestFlags {
			t.Run(fmt.Sprintf("%d-byte blocks, %s", lba, d.name), func(t *testing.T) {
				id := attach(t, rpc, r.subsystems[lba], port, fmt.Sprintf("c%d-%d", lba, i),
					params{"hdgst": d.header, "ddgst": d.data})
				blocktest.Run(t, func(t *testing.T) nvmf.Device { return open(t, id, options{}) })
			})
		}
	}
	t.Run("authentication", func(t *testing.T) { testSPDKAuthentication(t, rpc, r.auth, port) })
}

// attach connects SPDK's initiator to a subsystem, and returns the SPDK subsystem that exports the first of its namespaces.
func attach(t *testing.T, rpc *spdkTarget, id nvmf.TransportID, port int, name string, more params) nvmf.TransportID {
	p := params{"name": name, "trtype": "TCP", "adrfam": "IPv4", "traddr": id.Address, "trsvcid": id.Service, "subnqn": id.SubNQN}
	for k, v := range more {
		p[k] = v
	}
	call(t, rpc, "bdev_nvme_attach_controller", p)
	nqn := "nqn.2014-08.org.nvmecr:interop-through-" + name
	call(t, rpc, "nvmf_create_subsystem", params{"nqn": nqn, "serial_number": "THROUGH", "allow_any_host": true})
	call(t, rpc, "nvmf_subsystem_add_ns", params{"nqn": nqn, "namespace": params{"bdev_name": name + "n1"}})
	spdkListen(t, rpc, nqn, port)
	t.Cleanup(func() {
		ctx := context.Background() // the context of the test has ended
		assert.NoError(t, rpc.Call(ctx, "nvmf_delete_subsystem", params{"nqn": nqn}, nil))
		assert.NoError(t, rpc.Call(ctx, "bdev_nvme_detach_controller", params{"name": name}, nil))
	})
	return at(port, nqn)
}

// testSPDKAuthentication authenticates SPDK's host with every hash and group of our target, in one and in both directions.
func testSPDKAuthentication(t *testing.T, rpc *spdkTarget, a *authenticating, port int) {
	addKey(t, rpc, "right", a.keys.Host)
	addKey(t, rpc, "target", a.keys.Controller)
	addKey(t, rpc, "wrong", dhchap.NewSecret(dhchap.SHA256))
	n := 0
	for _, hash := range []dhchap.Hash{dhchap.SHA256, dhchap.SHA384, dhchap.SHA512} {
		for _, group := range a.groups {
			t.Run(fmt.Sprintf("%s %s", hash, group), func(t *testing.T) {
				call(t, rpc, "bdev_nvme_set_options", params{"dhchap_digests": []string{spdkName(hash.String())}, "dhchap_dhgroups": []string{spdkName(group.String())}})
				n++
				use(t, open(t, attach(t, rpc, a.id, port, fmt.Sprint("auth", n),
					params{"hostnqn": a.host, "dhchap_key": "right", "dhchap_ctrlr_key": "target"}), options{}))
			})
		}
	}
	for name, keys := range map[string]params{"wrong key": {"dhchap_key": "wrong"}, "no key": {},
		"wrong key of the target": {"dhchap_key": "right", "dhchap_ctrlr_key": "wrong"}} {
		t.Run(name, func(t *testing.T) {
			keys["name"], keys["trtype"], keys["adrfam"], keys["traddr"] = "refused", "TCP", "IPv4", a.id.Address
			keys["trsvcid"], keys["subnqn"], keys["hostnqn"] = a.id.Service, a.id.SubNQN, a.host
			assert.Error(t, rpc.Call(t.Context(), "bdev_nvme_attach_controller", keys, nil))
		})
	}
}
