//go:build interop

package interop

import (
	"fmt"
	"testing"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/test/interop/guest"
)

// nvmetModules returns the modules of Linux's target, of the devices of its namespaces, and of authentication if the kernel supports
// that.
func nvmetModules(k guest.Kernel) []string {
	all := []string{"null_blk nr_devices=0", "nvmet", "nvmet_tcp"}
	if k.Has("NVME_TARGET_AUTH") {
		all = append(all, authModules...)
	}
	return all
}

var authModules = []string{"hmac", "sha256_generic", "sha512_generic", "dh_generic"}

// nvmetFunctions are for scripts: device NAME LBASIZE makes a block device in
// memory; cached NAME LBASIZE one with a volatile write cache; subsystem
// NQN; namespace NQN NSID DEVICE; guard NQN HOST KEY CTRLKEY lets in that host with
// its keys; serve NQN [PORT].
const nvmetFunctions = `set -e
nvmet=/sys/kernel/config/nvmet
device() {
	d=/sys/kernel/config/nullb/$1
	mkdir $d
	echo $2 >$d/blocksize
	echo ${size:-64} >$d/size # MiB
	echo 1 >$d/memory_backed
	echo 1 >$d/discard
	echo ${3:-0} >$d/cache_size
	echo 1 >$d/power
}
cached() { device $1 $2 8; }
subsystem() { mkdir $nvmet/subsystems/$1; }
namespace() {
	mkdir $nvmet/subsystems/$1/namespaces/$2
	echo -n $3 >$nvmet/subsystems/$1/namespaces/$2/device_path
	[ -b $3 ] || echo 1 >$nvmet/subsystems/$1/namespaces/$2/buffered_io # tmpfs has no direct I/O
	echo 1 >$nvmet/subsystems/$1/namespaces/$2/enable
}
open() { echo 1 >$nvmet/subsystems/$1/attr_allow_any_host; }
guard() {
	mkdir $nvmet/hosts/$2
	echo "$3" >$nvmet/hosts/$2/dhchap_key
	echo "$4" >$nvmet/hosts/$2/dhchap_ctrl_key
	ln -s $nvmet/hosts/$2 $nvmet/subsystems/$1/allowed_hosts/
}
serve() { ln -s $nvmet/subsystems/$1 $nvmet/ports/${2:-1}/subsystems/$1; }
`

const nvmetPort = 4420

// port returns a script that creates the port.
func port() string {
	return fmt.Sprintf(`
		mkdir $nvmet/ports/1
		cd $nvmet/ports/1
		echo tcp >addr_trtype; echo ipv4 >addr_adrfam; echo 0.0.0.0 >addr_traddr; echo %d >addr_trsvcid
	`, nvmetPort)
}

// startNvmet boots Linux with a target. The first namespace of each subsystem is a block device, the second one has a volatile cache, and
// with blocks of 4096 bytes the last one is a file.
func startNvmet(t *testing.T, k guest.Kernel) *running {
	g := boot(t, guest.Options{Kernel: k, Modules: nvmetModules(k), Ports: []int{nvmetPort}})
	sh(t, g, "%s", nvmetFunctions+port())
	r := &running{subsystems: map[nvmf.Bytes]nvmf.TransportID{}}
	for _, lba := range lbaSizes {
		nqn := subsystemNQN(lba)
		last := fmt.Sprintf("device last%d %d; namespace %s %d /dev/last%d", lba, lba, nqn, nsids[2], lba)
		if lba == 4096 {
			last = fmt.Sprintf("busybox truncate -s 64M /tmp/file; namespace %s %d /tmp/file", nqn, nsids[2])
		}
		sh(t, g, "%s", nvmetFunctions+fmt.Sprintf(`
			subsystem %[1]s; open %[1]s
			device first%[2]d %[2]d; namespace %[1]s %[3]d /dev/first%[2]d
			cached second%[2]d %[2]d; namespace %[1]s %[4]d /dev/second%[2]d
			%[5]s
			serve %[1]s`, nqn, lba, nsids[0], nsids[1], last))
		r.subsystems[lba] = at(g.Port(nvmetPort), nqn)
	}
	if k.Has("NVME_TARGET_AUTH") {
		r.auth = nvmetAuth(t, g)
	}
	return r
}

// nvmetAuth creates the subsystem that requires authentication.
func nvmetAuth(t *testing.T, g *guest.Guest) *authenticating {
	a := &authenticating{id: at(g.Port(nvmetPort), authNQN), host: newHost(), keys: newKeys(), groups: allGroups}
	sh(t, g, "%s", nvmetFunctions+fmt.Sprintf(`
		subsystem %[1]s
		device auth 4096; namespace %[1]s 1 /dev/auth
		guard %[1]s %[2]s '%[3]s' '%[4]s'
		serve %[1]s`, authNQN, a.host, a.keys.Host.Reveal(), a.keys.Controller.Reveal()))
	a.choose = func(t *testing.T, h dhchap.Hash, group dhchap.Group) { sh(t, g, "%s", nvmetChoice(a.host, h, group)) }
	return a
}

// nvmetChoice returns a script that sets hash and group for the authentication of a host.
func nvmetChoice(host string, h dhchap.Hash, group dhchap.Group) string {
	return fmt.Sprintf(`cd /sys/kernel/config/nvmet/hosts/%s; echo 'hmac(%s)' >dhchap_hash && echo %s >dhchap_dhgroup`,
		host, spdkName(h.String()), spdkName(group.String()))
}

var allGroups = []dhchap.Group{dhchap.NullGroup, dhchap.FFDHE2048, dhchap.FFDHE3072, dhchap.FFDHE4096, dhchap.FFDHE6144, dhchap.FFDHE8192}
