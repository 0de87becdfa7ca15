//go:build interop

package interop

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/target"
	"nvmecr/test/interop/guest"
)

// hostFunctions are for scripts in a guest that is a host: connected NQN
// [FLAGS] connects and waits for three namespaces; device NSID is the path of
// one, controller that of the controller; await waits for a condition.
const hostFunctions = `
device() {
	for d in /sys/block/nvme*n*; do
		case ${d##*/} in *c*n*) continue;; esac
		if [ "$(cat $d/nsid 2>/dev/null)" = $1 ]; then echo /dev/${d##*/}; return 0; fi
	done
	return 1
}
present() { d=$(device $1) && [ -b "$d" ]; }
live() { [ "$(cat /sys/class/nvme/nvme*/state)" = live ]; }
await() { i=0; until eval "$1"; do i=$((i+1)); [ $i -lt 300 ] || { echo "in vain: $1" >&2; return 1; }; sleep 0.1; done; }
controller() { for c in /sys/class/nvme/nvme*; do echo /dev/${c##*/}; done; }
connected() {
	nvme connect -t tcp -a ` + guest.Gateway + ` -s $port -q $host -I $id -n $1 $2 || return 1
	for n in 1 2 7; do await "present $n" || return 1; done
}
cold() { sync; echo 3 >/proc/sys/vm/drop_caches; }
digest() { cat "$@" | sha256sum; }
`

// A step is a script in the guest, with patterns that its output must match.
type step struct {
	name, script string
	want         []string
}

// longSteps are left out with only one of the digests.
var longSteps = []string{"large transfers around the page cache", "ext4", "XFS"}

// hostSteps are operations of nvme-cli and the kernel on the connected subsystem $nqn, whose blocks have $lba bytes.
var hostSteps = []step{
	{"id-ctrl", `nvme id-ctrl $(controller)`,
		[]string{`(?m)^subnqn\s*: nqn.2014-08.org.nvmecr:interop-`, `(?m)^mdts\s*: 8$`, `(?m)^ver\s*: 0x10400$`, `(?m)^nn\s*: \d+`, `(?m)^vwc\s*: `}},
	{"id-ns", `nvme id-ns $(device 1) && echo blocks $((0x$(nvme id-ns $(device 1) | sed -n 's/^nsze *: 0x//p') * lba))`,
		[]string{`(?m)^blocks 335544320$`, `lbads:(9|12) +rp:0.*in use`}},
	{"namespaces and their names", `nvme list-ns $(controller); for n in 1 2 7; do nvme ns-descs $(device $n) -n $n; done; cat /sys/block/nvme*n*/uuid | sort -u | wc -l`,
		[]string{`0x1\n.*0x2\n.*0x7\n`, `(?m)^uuid\s*: [0-9a-f-]{36}`, `(?m)^3$`}},
	{"nvme list", `nvme list; nvme list-subsys`, []string{`nvme0n1`, `live`}},
	// Not show-regs, which in nvme-cli 2.3 fails with all targets over a fabric.
	{"properties", `for o in 0 8 0x14 0x1c 0x38; do nvme get-property $(controller) -o $o; done`,
		[]string{`0x08 \(Version\), value: 10400`, `0x1c \(Controller Status\), value: 1\n`, `Invalid Field`}},
	{"logs", `nvme smart-log $(controller) && nvme error-log $(controller) && nvme fw-log $(controller)`, []string{`critical_warning\s*: 0\b`}},
	{"features", `for f in 7 0xb 0xf; do nvme get-feature $(controller) -f $f || exit; done`, []string{`(?i)0x0?7 .*number of queues`}},
	{"write and read", `
		dd if=/dev/urandom of=/tmp/out bs=4096 count=16 2>/dev/null
		nvme write $(device 2) -s 8 -c $((65536/lba-1)) -z 65536 -d /tmp/out && nvme read $(device 2) -s 8 -c $((65536/lba-1)) -z 65536 -d /tmp/in &&
		cmp /tmp/out /tmp/in && dd if=$(device 2) bs=$lba skip=8 count=$((65536/lba)) 2>/dev/null | cmp - /tmp/out && echo same`,
		[]string{`write: Success`, `read: Success`, `same`}},
	{"flush", `nvme flush $(device 2)`, []string{`success`}},
	{"write zeroes", `
		nvme write-zeroes $(device 2) -s 8 -c 7 && nvme read $(device 2) -s 8 -c $((65536/lba-1)) -z 65536 -d /tmp/in &&
		{ dd if=/dev/zero bs=$lba count=8 2>/dev/null; dd if=/tmp/out bs=$lba skip=8 2>/dev/null; } | cmp - /tmp/in && echo same`,
		[]string{`Write Zeroes: Success|NVME Write Zeroes Success`, `same`}},
	{"dsm", `nvme dsm $(device 2) -d -s 0,1024 -b 8,1024 && nvme read $(device 2) -s 1024 -c 7 -z $((8*lba)) -d /tmp/in`, []string{`success`, `read: Success`}},
	{"large transfers around the page cache", `
		dd if=/dev/urandom of=/tmp/large bs=1M count=12 2>/dev/null
		dd if=/tmp/large of=$(device 7) bs=4M oflag=direct 2>/dev/null && cold && dd if=$(device 7) bs=3M count=4 iflag=direct 2>/dev/null | cmp - /tmp/large && echo same`,
		[]string{`same`}},
	{"commands that do not exist", `
		if nvme format $(device 2) -s 0 -f; then echo formatted; fi
		if nvme fw-download $(controller) -f /tmp/out -x 4096; then echo loaded; fi
		if nvme io-passthru $(device 2) -o 0x7e -n 2; then echo passed; fi
		nvme read $(device 2) -s 1024 -c 0 -z $lba -d /tmp/in`,
		[]string{`(?i)NVMe status: invalid (command )?opcode`, `read: Success`}},
	{"verify", `
		nvme verify $(device 2) -s 0 -c 0 && if nvme verify $(device 2) -s 0x7fffffff -c 0; then echo passed; fi`,
		[]string{`(?i)verify success`, `(?i)LBA out of range`}},
	{"outside the namespace", `nvme read $(device 2) -s 0x7fffffff -c 0 -z $lba -d /tmp/in`, []string{`(?i)LBA out of range`}},
	{"reservations", `
		d=$(device 1); n="-n 1"
		nvme resv-register $d $n --nrkey 0xabc --rrega 0 && nvme resv-acquire $d $n --crkey 0xabc --rtype 1 --racqa 0 && nvme resv-report $d -n 1 -e &&
		nvme write $d -s 0 -c 0 -z $lba -d /tmp/out && nvme resv-release $d $n --crkey 0xabc --rtype 1 --rrela 0 &&
		nvme resv-register $d $n --crkey 0xabc --rrega 1 && nvme resv-report $d -n 1 -e`,
		[]string{`rkey\s*: 0?x?abc`, `rtype\s*: 1`, `regctl\s*: 1`, `write: Success`, `regctl\s*: 0`}},
	{"ext4", fileSystem("mkfs.ext4 -q -F", "ext4", "e2fsck -fn"), []string{`same`}},
	{"XFS", fileSystem("mkfs.xfs -q -f", "xfs", "xfs_repair -n"), []string{`same`}},
	{"nvme reset", `nvme reset $(controller) && await live && nvme read $(device 2) -s 0 -c 0 -z $lba -d /tmp/in`, []string{`read: Success`}},
}

// fileSystem creates a file system, copies files, removes some, and compares the others after another mount.
func fileSystem(mkfs, kind, check string) string {
	return fmt.Sprintf(`
		d=$(device 1)
		%s $d && mount -t %s $d /mnt && mkdir /mnt/a /mnt/b && cp -r /usr /mnt/a && cp -r /usr /mnt/b && rm -r /mnt/b/usr/sbin && sync &&
		want=$(cd /; find usr -type f | sort | xargs cat | sha256sum) && umount /mnt && cold &&
		%s $d >/tmp/check 2>&1 || { cat /tmp/check; exit 1; }
		mount -t %s $d /mnt && got=$(cd /mnt/a; find usr -type f | sort | xargs cat | sha256sum) && dd if=/dev/zero of=/mnt/large bs=1M count=32 2>/dev/null && fstrim /mnt && umount /mnt &&
		[ "$want" = "$got" ] && echo same`, mkfs, kind, check, kind)
}

// TestLinuxHost tests our target against Linux's host.
func TestLinuxHost(t *testing.T) {
	forKernels(t, func(t *testing.T, k guest.Kernel) {
		g := boot(t, guest.Options{Kernel: k, Modules: hostModules(k), Memory: 1536,
			Programs: []string{"nvme", "mkfs.ext4", "mkfs.xfs", "e2fsck", "xfs_repair"}})
		r := startOurs(t)
		t.Run("authentication", func(t *testing.T) {
			if !k.Has("NVME_HOST_AUTH") {
				t.Skip("this kernel's host has no in-band authentication")
			}
			testLinuxAuthentication(t, g, r)
		})
		t.Run("discovery", func(t *testing.T) { testLinuxDiscovery(t, g, r) })
		for _, lba := range lbaSizes {
			for name, flags := range map[string]string{"no digests": "", "header digest": "--hdr-digest", "data digest": "--data-digest",
				"both digests": "--hdr-digest --data-digest"} {
				t.Run(fmt.Sprintf("%d-byte blocks, %s", lba, name), func(t *testing.T) {
					testLinuxHost(t, g, hostFunctions+settings(r, lba), lba, flags)
				})
			}
			t.Run(fmt.Sprintf("%d-byte blocks, changes", lba), func(t *testing.T) {
				testChanges(t, g, r, hostFunctions+settings(r, lba), lba)
			})
		}
	})
}

func hostModules(k guest.Kernel) []string {
	all := []string{"nvme_tcp", "ext4", "xfs"}
	if k.Has("NVME_HOST_AUTH") {
		all = append(all, authModules...)
	}
	return all
}

// testLinuxAuthentication authenticates Linux's host on every queue and after a reconnection, and tests refusals in both directions.
func testLinuxAuthentication(t *testing.T, g *guest.Guest, r *running) {
	a, right := r.auth, "-S '"+r.auth.keys.Host.Reveal()+"'"
	other := dhchap.NewSecret(dhchap.SHA256).Reveal()
	functions := hostFunctions + settings(r, 4096) + fmt.Sprintf("nqn=%s host=%s id=%s\n", authNQN, a.host, strings.TrimPrefix(a.host, hostPrefix)) +
		"join() { nvme connect -t tcp -a " + guest.Gateway + " -s $port -n $nqn -q $host -I $id --reconnect-delay=1 \"$@\"; }\n"
	for name, flags := range map[string]string{"host": right, "host and target": right + " -C '" + a.keys.Controller.Reveal() + "'"} {
		t.Run(name, func(t *testing.T) {
			write := " && await 'present 1' && dd if=/dev/urandom of=$(device 1) bs=1M count=8 oflag=direct"
			defer sh(t, g, "%s nvme disconnect -n $nqn && await '! present 1'", functions)
			sh(t, g, "%s join %s %s", functions, flags, write)
			assert.Positive(t, r.ours.Cut(func(target.Host) bool { return true }))
			sh(t, g, "%s await '! live'; await live %s", functions, write)
		})
	}
	for name, flags := range map[string]string{"no key": "", "wrong key": "-S '" + other + "'", "wrong key of the target": right + " -C '" + other + "'"} {
		t.Run(name, func(t *testing.T) {
			out := try(t, g, functions+"join "+flags)
			t.Log(out.Code, out.Stderr)
			assert.NotZero(t, out.Code)
			assert.NotContains(t, out.Stderr, "already connected")
			assert.NotZero(t, try(t, g, functions+"present 1").Code)
		})
	}
}

// settings returns the variables of scripts.
func settings(r *running, lba nvmf.Bytes) string {
	id := r.subsystems[lba]
	return fmt.Sprintf("lba=%d port=%s nqn=%s host=%s id=%s\n", lba, id.Service, id.SubNQN,
		"nqn.2014-08.org.nvmexpress:uuid:8f4a3a6c-3d1e-4c5c-9d0f-0a6f4f0e7a11", "8f4a3a6c-3d1e-4c5c-9d0f-0a6f4f0e7a11")
}

func testLinuxDiscovery(t *testing.T, g *guest.Guest, r *running) {
	out := sh(t, g, "%s nvme discover -t tcp -a %s -s $port -q $host -I $id", settings(r, 512), guest.Gateway)
	for _, lba := range lbaSizes {
		assert.Contains(t, out, "subnqn:  "+subsystemNQN(lba)+"\n")
	}
	assert.NotContains(t, out, authNQN, "of which this host has no key")
}

func testLinuxHost(t *testing.T, g *guest.Guest, functions string, lba nvmf.Bytes, flags string) {
	sh(t, g, "%s connected $nqn '%s'", functions, flags)
	defer sh(t, g, "%s nvme disconnect -n $nqn && await '! present 1'", functions)
	for _, s := range hostSteps {
		if flags != "" && !strings.Contains(flags, " ") && slices.Contains(longSteps, s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			r := try(t, g, functions+s.script)
			all := r.Stdout + r.Stderr
			t.Log(all)
			for _, w := range s.want {
				assert.Regexp(t, regexp.MustCompile(w), all)
			}
			assert.NotRegexp(t, `(?m)^(formatted|loaded|passed)$`, all)
		})
	}
	assert.NotRegexp(t, `(?i)digest error|call trace|I/O error`, sh(t, g, "dmesg"), "the kernel's log")
}

// testChanges changes the target while a host is connected.
func testChanges(t *testing.T, g *guest.Guest, r *running, functions string, lba nvmf.Bytes) {
	nqn := subsystemNQN(lba)
	sh(t, g, "%s connected $nqn '-k 2 --reconnect-delay=1'", functions)
	defer sh(t, g, "%s nvme disconnect -n $nqn", functions)
	t.Run("a namespace comes and goes", func(t *testing.T) {
		_, err := r.ours.AddNamespace(nqn, memory(t, 9, lba))
		require.NoError(t, err)
		sh(t, g, "%s await 'present 9' && dd if=/dev/zero of=$(device 9) bs=1M count=4 oflag=direct", functions)
		require.NoError(t, r.ours.RemoveNamespace(t.Context(), nqn, 9))
		sh(t, g, "%s await '! present 9'", functions)
	})
	t.Run("an idle host stays", func(t *testing.T) {
		sh(t, g, "%s sleep 6; live && nvme flush $(device 1)", functions)
	})
	t.Run("a host that is cut off comes back", func(t *testing.T) {
		done := make(chan guest.Result, 1)
		go func() {
			r, err := g.Run(t.Context(), functions+`
				dd if=/dev/urandom of=/tmp/large bs=1M count=24 2>/dev/null
				for i in 1 2 3 4 5 6; do dd if=/tmp/large of=$(device 7) bs=1M oflag=direct 2>/dev/null || exit; sleep 0.3; done
				cold; dd if=$(device 7) bs=1M count=24 iflag=direct | cmp - /tmp/large && cat /sys/class/nvme/nvme*/state`)
			assert.NoError(t, err)
			done <- r
		}()
		cuts := 0
		for {
			select {
			case r := <-done:
				require.NoError(t, r.Err())
				assert.Contains(t, r.Stdout, "live")
				assert.Positive(t, cuts)
				return
			case <-time.After(1500 * time.Millisecond):
				if cuts < 2 {
					cuts += r.ours.Cut(func(h target.Host) bool { return true })
				}
			}
		}
	})
}
