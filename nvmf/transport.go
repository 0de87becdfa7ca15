package nvmf

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// Transport is the transport by which a namespace is accessed.
type Transport string

// Transports. TCP, RDMA and PCIe are names of the NVMe specifications. File and Mem
// are nvmecr's.
const (
	TCP  Transport = "TCP"
	RDMA Transport = "RDMA"
	PCIe Transport = "PCIe"
	File Transport = "file"
	Mem  Transport = "mem"
)

// TransportID names a namespace, in the form of SPDK's transport id strings
// (spdk_nvme_transport_id_parse) with "ns" added:
//
//	trtype:TCP adrfam:IPv4 traddr:10.0.0.5 trsvcid:4420 subnqn:nqn.2014-08.org.example:a ns:1
//
// or "file:PATH", or "mem:SIZE".
type TransportID struct {
	Transport Transport
	Family    string // adrfam: "IPv4" or "IPv6"
	Address   string // traddr; the path for File
	Service   string // trsvcid
	SubNQN    string // subnqn
	NSID      uint32 // ns
	Size      Bytes  // for Mem
}

// ParseTransportID parses the three forms. Keys are case-insensitive and are
// separated from values by ':' or '='; adrfam defaults to IPv4 (IPv6 where
// the address has colons), trsvcid to 4420, ns to 1. The error says which part is wrong.
func ParseTransportID(s string) (TransportID, error) {
	s = strings.TrimSpace(s)
	switch {
	case strings.HasPrefix(s, "file:"):
		path := strings.TrimPrefix(s, "file:")
		if path == "" {
			return TransportID{}, fmt.Errorf("namespace %q: no path after \"file:\"", s)
		}
		return TransportID{Transport: File, Address: path}, nil
	case strings.HasPrefix(s, "mem:"):
		n, err := humanize.ParseBytes(iec(strings.TrimPrefix(s, "mem:")))
		if err != nil || n == 0 {
			return TransportID{}, fmt.Errorf("namespace %q: %q is not a size such as 64M or 1G", s, strings.TrimPrefix(s, "mem:"))
		}
		return TransportID{Transport: Mem, Size: Bytes(n)}, nil
	}
	return parseFabric(s)
}

// ParseSize reads a size: "64M", "1GiB" and "1g" are binary, a bare number is
// bytes.
func ParseSize(s string) (Bytes, error) {
	n, err := humanize.ParseBytes(iec(s))
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a size such as 64M or 1G", s)
	}
	return Bytes(n), nil
}

// iec turns "4G" and "4GB" into "4GiB", since sizes of storage are powers of two here.
func iec(s string) string {
	s = strings.TrimSpace(s)
	t := strings.TrimSuffix(strings.ToLower(s), "b")
	t = strings.TrimSuffix(t, "i")
	if t != "" && strings.ContainsAny(t[len(t)-1:], "kmgtp") {
		return t + "ib"
	}
	return s
}

func parseFabric(s string) (TransportID, error) {
	id := TransportID{Service: "4420", NSID: 1}
	for _, field := range strings.Fields(s) {
		i := strings.IndexAny(field, ":=")
		if i <= 0 || i == len(field)-1 {
			return TransportID{}, fmt.Errorf("namespace %q: %q is not key:value, file:PATH or mem:SIZE", s, field)
		}
		if err := id.set(strings.ToLower(field[:i]), field[i+1:]); err != nil {
			return TransportID{}, fmt.Errorf("namespace %q: %w", s, err)
		}
	}
	return id, id.complete(s)
}

func (id *TransportID) set(key, value string) error {
	switch key {
	case "trtype":
		for _, t := range []Transport{TCP, RDMA, PCIe} {
			if strings.EqualFold(value, string(t)) {
				id.Transport = t
				return nil
			}
		}
		return fmt.Errorf("trtype %q is not TCP, RDMA or PCIe", value)
	case "adrfam":
		for _, f := range []string{"IPv4", "IPv6"} {
			if strings.EqualFold(value, f) {
				id.Family = f
				return nil
			}
		}
		return fmt.Errorf("adrfam %q is not IPv4 or IPv6", value)
	case "traddr":
		id.Address = value
		if strings.HasPrefix(value, "[") && strings.HasSuffix(value, "]") { // an IPv6 address in brackets
			id.Address = value[1 : len(value)-1]
		}
	case "trsvcid":
		if n, err := strconv.ParseUint(value, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("trsvcid %q is not a port", value)
		}
		id.Service = value
	case "subnqn":
		if len(value) > 223 {
			return fmt.Errorf("subnqn is %d bytes long, at most 223 are allowed", len(value))
		}
		id.SubNQN = value
	case "ns", "nsid":
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n == 0 || n >= 0xffffffff {
			return fmt.Errorf("ns %q is not a namespace id", value)
		}
		id.NSID = uint32(n)
	default:
		return fmt.Errorf("unknown key %q (known: trtype, adrfam, traddr, trsvcid, subnqn, ns)", key)
	}
	return nil
}

func (id *TransportID) complete(s string) error {
	switch {
	case id.Transport == "":
		return fmt.Errorf("namespace %q: trtype is missing", s)
	case id.Address == "":
		return fmt.Errorf("namespace %q: traddr is missing", s)
	case id.Transport != PCIe && id.SubNQN == "":
		return fmt.Errorf("namespace %q: subnqn is missing", s)
	}
	if id.Transport != PCIe && id.Family == "" {
		id.Family = "IPv4"
		if strings.Contains(id.Address, ":") {
			id.Family = "IPv6"
		}
	}
	if id.Transport == PCIe {
		id.Service = ""
	}
	return nil
}

// String returns the canonical form, which ParseTransportID reads back.
func (id TransportID) String() string {
	switch id.Transport {
	case File:
		return "file:" + id.Address
	case Mem:
		return fmt.Sprintf("mem:%d", uint64(id.Size))
	case PCIe:
		return fmt.Sprintf("trtype:PCIe traddr:%s ns:%d", id.Address, id.NSID)
	}
	return fmt.Sprintf("trtype:%s adrfam:%s traddr:%s trsvcid:%s subnqn:%s ns:%d",
		id.Transport, id.Family, id.Address, id.Service, id.SubNQN, id.NSID)
}

// HostPort returns traddr and trsvcid in the form for net.Dial.
func (id TransportID) HostPort() string { return net.JoinHostPort(id.Address, id.Service) }
