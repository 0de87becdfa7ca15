package dial

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/provision/embedded"
	"nvmecr/nvmf/provision/nvmet"
	"nvmecr/nvmf/provision/spdk"
)

func TestOpen(t *testing.T) {
	for name, want := range map[string]provision.Provisioner{
		"nvmecr:/run/nvmecr.sock": &embedded.Client{},
		"spdk:/var/tmp/spdk.sock": &spdk.Provisioner{},
		"spdk:/var/tmp/spdk.sock?listen=10.0.0.5:4420&store=lvs0&nqn=nqn.2014-08.org.example:jobs": &spdk.Provisioner{},
		"spdk:/s?listen=[fd00::5]:4421": &spdk.Provisioner{},
		"spdk:/s?keys=/etc/nvmecr/keys": &spdk.Provisioner{},
		"spdk:/s?listen=fd00::5":        &spdk.Provisioner{},
		"nvmet:/sys/kernel/config/nvmet?dir=/srv/nvmecr&device=/dev/nvme1n1&listen=10.0.0.5": &nvmet.Provisioner{},
	} {
		p, err := Open(name)
		require.NoError(t, err, name)
		assert.IsType(t, want, p, name)
		require.NoError(t, p.Close())
	}
	for name, text := range map[string]string{
		"":                            "nvmecr:SOCKET",
		"/run/nvmecr.sock":            "nvmecr:SOCKET",
		"nvmecr:":                     "nvmecr:SOCKET",
		"other:/x":                    `no kind "other"`,
		"nvmecr:/x?dir=/y":            "takes none",
		"spdk:/x?dir=/y":              "it takes listen, nqn, store, keys",
		"spdk:/x?listen=":             "needs one value",
		"spdk:/x?store=a&store=b":     "needs one value",
		"spdk:/x?listen=0.0.0.0:4420": "at which the hosts find",
		"spdk:/x?listen=node5:4420":   "IP address",
		"spdk:/x?listen=10.0.0.5:x":   "not a port",
		"spdk:/x?nqn=jobs":            "nqn=jobs",
		"spdk:/x?%":                   "nvmecr:SOCKET",
	} {
		_, err := Open(name)
		require.ErrorIs(t, err, provision.ErrInvalid, name)
		assert.ErrorContains(t, err, text, name)
	}
}
