//go:build interop

package interop

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/tlspsk"
	"nvmecr/test/interop/guest"
)

// A tlsGuest is a guest in which tlshd performs TLS handshakes for the kernel.
type tlsGuest struct{ *guest.Guest }

// kernelTLS are the kernel's modules for encryption.
var kernelTLS = []string{"tls", "ctr", "ghash_generic", "gcm"}

const tlshdConfig = `[debug]
loglevel=3
tls=3
nl=0
[authenticate]
keyrings=.nvme
`

// bootTLS boots Linux with tlshd, which has the keys of hosts: only of 256 bits, since longer ones need a newer GnuTLS than Debian 12
// has.
func bootTLS(t *testing.T, k guest.Kernel, hosts []tlsHost, o guest.Options) tlsGuest {
	if k.Version != "" && !k.Has("NVME_TCP_TLS") {
		t.Skip("this kernel has no TLS for NVMe (6.7 or newer)")
	}
	if guest.Find("tlshd") == "" {
		t.Skip("tlshd, which shakes hands for the kernel, is not in PATH: it is in ktls-utils, which Debian 12 does not have")
	}
	o.Kernel = k
	o.Programs = append(o.Programs, "tlshd", "keyctl")
	g := tlsGuest{boot(t, o)}
	t.Cleanup(func() {
		if t.Failed() {
			r, err := g.Run(context.Background(), "tail -n 60 /tmp/tlshd.log")
			t.Log("tlshd said:\n"+r.Stdout, err)
		}
	})
	sh(t, g.Guest, "cat >/tmp/tlshd.conf <<'END'\n%sEND\n", tlshdConfig)
	sh(t, g.Guest, "mkdir -p /etc/tlshd/tags.d; %s -s -c /tmp/tlshd.conf </dev/null >/tmp/tlshd.log 2>&1 &", guest.Find("tlshd"))
	for _, h := range hosts {
		identity, secret, err := h.key.Derive(h.nqn, h.subsystem)
		require.NoError(t, err)
		escaped := ""
		for _, b := range secret {
			escaped += `\x` + hex.EncodeToString([]byte{b})
		}
		sh(t, g.Guest, `printf '%s' | keyctl padd psk "%s" %%:.nvme`, escaped, identity)
	}
	return g
}

// TestTLSFromLinux tests Linux's host with TLS at our target.
func TestTLSFromLinux(t *testing.T) {
	forKernels(t, func(t *testing.T, k guest.Kernel) {
		to, hosts := startOursTLS(t)
		h := hosts[0]
		g := bootTLS(t, k, []tlsHost{h}, guest.Options{Modules: append([]string{"nvme_tcp"}, kernelTLS...)})
		id := strings.TrimPrefix(h.nqn, hostPrefix)
		connect := func(host, more string) string {
			return hostFunctions + fmt.Sprintf("echo 'transport=tcp,traddr=%s,trsvcid=%d,nqn=%s,hostnqn=%s,hostid=%s%s' >/dev/nvme-fabrics\n",
				guest.Gateway, to, tlsNQN, host, id, more)
		}
		for name, c := range map[string]string{"no key": connect(h.nqn, ""), "another host": connect(newHost(), ",tls")} {
			assert.NotZero(t, try(t, g.Guest, c).Code, name)
		}
		sh(t, g.Guest, "%s await 'present 1'", connect(h.nqn, ",tls"))
		out := sh(t, g.Guest, `%s
			dd if=/dev/urandom of=/tmp/large bs=1M count=12 2>/dev/null
			dd if=/tmp/large of=$(device 1) bs=4M oflag=direct 2>/dev/null && cold && dd if=$(device 1) bs=3M count=4 iflag=direct 2>/dev/null | cmp - /tmp/large && echo same
			for f in /sys/class/nvme/nvme*/delete_controller; do echo 1 >$f; done`, hostFunctions)
		assert.Contains(t, out, "same")
	})
}

// TestTLSToLinux tests our initiator with TLS at Linux's target.
func TestTLSToLinux(t *testing.T) {
	forKernels(t, func(t *testing.T, k guest.Kernel) {
		h := tlsHost{nqn: newHost(), subsystem: tlsNQN, key: tlspsk.New(false)}
		g := bootTLS(t, k, []tlsHost{h}, guest.Options{Modules: append(nvmetModules(k), kernelTLS...), Ports: []int{nvmetPort}})
		sh(t, g.Guest, "%s", nvmetFunctions+port()+fmt.Sprintf(`
			echo tls1.3 >addr_tsas; echo required >addr_treq
			subsystem %[1]s; device tls 4096; namespace %[1]s 1 /dev/tls
			mkdir $nvmet/hosts/%[2]s; ln -s $nvmet/hosts/%[2]s $nvmet/subsystems/%[1]s/allowed_hosts/
			serve %[1]s`, tlsNQN, h.nqn))
		id := at(g.Port(nvmetPort), tlsNQN)
		use(t, open(t, id, h.options()))
		wrong, without := h.options(), h.options()
		wrong.PSK, without.PSK = tlspsk.New(false), tlspsk.Key{}
		for name, o := range map[string]tcp.Options{"wrong key": wrong, "no key": without} {
			_, err := tcp.Open(t.Context(), id, o)
			t.Log(name, err)
			assert.Error(t, err, name)
		}
		blocktest.Run(t, func(t *testing.T) nvmf.Device { return open(t, id, h.options()) })
	})
}
