// Package dial opens a provisioner by its name:
//
//	nvmecr:SOCKET                  nvmf/provision/embedded, `nvmecr target --admin SOCKET`
//	spdk:SOCKET[?OPTION=VALUE&...] nvmf/provision/spdk: listen, store, keys, nqn
//	nvmet:DIRECTORY?dir=DIRECTORY[&...] nvmf/provision/nvmet: dir, device, listen, nqn
//
// listen=ADDRESS[:PORT] is the address at which hosts find the target. nqn=PREFIX is
// the beginning of the NQNs of jobs.
package dial

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"

	"nvmecr/nvmf"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/provision/embedded"
	"nvmecr/nvmf/provision/nvmet"
	"nvmecr/nvmf/provision/spdk"
)

// Open returns the provisioner of a name. It does not connect to the target yet.
func Open(name string) (provision.Provisioner, error) {
	kind, rest, ok := strings.Cut(name, ":")
	path, query, _ := strings.Cut(rest, "?")
	options, err := url.ParseQuery(query)
	if !ok || path == "" || err != nil {
		return nil, fmt.Errorf("provisioner %q: %w: it is nvmecr:SOCKET, spdk:SOCKET?OPTIONS or nvmet:DIRECTORY?OPTIONS", name, provision.ErrInvalid)
	}
	o := opener{name: name, path: path, options: options}
	p, err := o.open(kind)
	if err != nil {
		return nil, fmt.Errorf("provisioner %q: %w", name, err)
	}
	return p, nil
}

// An opener has the parts of a name.
type opener struct {
	name, path string
	options    url.Values
}

func (o *opener) open(kind string) (provision.Provisioner, error) {
	switch kind {
	case "nvmecr":
		if err := o.only(); err != nil {
			return nil, err
		}
		return embedded.NewClient(o.path), nil
	case "spdk":
		listen, base, err := o.common("store", "keys")
		if err != nil {
			return nil, err
		}
		return spdk.New(spdk.Options{Socket: o.path, Store: o.options.Get("store"), Keys: o.options.Get("keys"), Listen: listen, Base: base}), nil
	case "nvmet":
		listen, base, err := o.common("dir", "device")
		if err != nil {
			return nil, err
		}
		return nvmet.New(nvmet.Options{Root: o.path, Dir: o.options.Get("dir"), Device: o.options.Get("device"), Listen: listen, Base: base}), nil
	}
	return nil, fmt.Errorf("%w: there is no kind %q, only nvmecr, spdk and nvmet", provision.ErrInvalid, kind)
}

// only refuses options that are unknown or given twice.
func (o *opener) only(known ...string) error {
	for _, k := range slices.Sorted(maps.Keys(o.options)) {
		switch {
		case !slices.Contains(known, k) && len(known) == 0:
			return fmt.Errorf("%w: option %q; it takes none", provision.ErrInvalid, k)
		case !slices.Contains(known, k):
			return fmt.Errorf("%w: option %q; it takes %s", provision.ErrInvalid, k, strings.Join(known, ", "))
		case len(o.options[k]) > 1 || o.options.Get(k) == "":
			return fmt.Errorf("%w: option %q needs one value", provision.ErrInvalid, k)
		}
	}
	return nil
}

// common returns the options that all targets except nvmecr's own have. It refuses
// options other than these and the known ones.
func (o *opener) common(known ...string) (listen *nvmf.TransportID, base string, err error) {
	listen, err1 := o.listen()
	base, err2 := o.base()
	return listen, base, errors.Join(o.only(append([]string{"listen", "nqn"}, known...)...), err1, err2)
}

// base returns the value of option nqn=PREFIX.
func (o *opener) base() (string, error) {
	base := o.options.Get("nqn")
	if base != "" && (!provision.ValidNQN(base) || len(base) > 222-provision.MaxJob) {
		return "", fmt.Errorf("%w: nqn=%s: it is what the NQNs of jobs begin with, as %s", provision.ErrInvalid, base, provision.Base)
	}
	return base, nil
}

// listen returns the value of option listen=ADDRESS[:PORT], without a subsystem. It
// returns nil if the option is not given.
func (o *opener) listen() (*nvmf.TransportID, error) {
	s := o.options.Get("listen")
	if s == "" {
		return nil, nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = strings.Trim(s, "[]"), "4420"
	}
	ip := net.ParseIP(host)
	if ip == nil || ip.IsUnspecified() {
		return nil, fmt.Errorf("%w: listen=%s: give the IP address at which the hosts find the target, such as 10.0.0.5:4420", provision.ErrInvalid, s)
	}
	family := "IPv6"
	if ip.To4() != nil {
		family = "IPv4"
	}
	id, err := nvmf.ParseTransportID(fmt.Sprintf("trtype:TCP adrfam:%s traddr:%s trsvcid:%s subnqn:x", family, host, port))
	if err != nil {
		return nil, fmt.Errorf("listen=%s: %w: %w", s, provision.ErrInvalid, err)
	}
	id.SubNQN = ""
	return &id, nil
}
