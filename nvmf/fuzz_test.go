package nvmf

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/hostile"
)

// FuzzTransportID checks that the String of a parsed id parses as the same id.
func FuzzTransportID(f *testing.F) {
	for _, s := range []string{
		"trtype:TCP adrfam:IPv4 traddr:10.0.0.5 trsvcid:4420 subnqn:nqn.2014-08.org.example:a ns:1",
		"trtype=tcp traddr=fe80::1%eth0 subnqn=x nsid=4294967294", "trtype:PCIe traddr:0000:01:00.0 ns:3", "trtype:RDMA traddr:a subnqn:b",
		"file:/a b;c", "file: x ", "mem:64M", "mem:1e9", "mem:18446744073709551615", "ns:0", "traddr:",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		hostile.Bounded(t, 1<<20+64*uint64(len(s)), 10*time.Second, func() {
			id, err := ParseTransportID(s)
			if err != nil {
				return
			}
			again, err := ParseTransportID(id.String())
			require.NoError(t, err, "%q of %q", id, s)
			require.Equal(t, id, again, "%q of %q", id, s)
			require.True(t, id.Transport != Mem || id.Size > 0)
		})
	})
}

// FuzzParseSize checks that plain numbers are parsed correctly, and that no accepted
// size is zero, as after an overflow.
func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"64M", "1GiB", "0.5k", "16E", "1e3", "-1", "18446744073709551616", "999999999999P", ".", "1,000", "0x10", "1 M", "ib"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		hostile.Bounded(t, 1<<20+64*uint64(len(s)), 10*time.Second, func() {
			n, err := ParseSize(s)
			if err != nil {
				return
			}
			require.NotZero(t, n)
			if digits := strings.TrimLeft(s, "0"); len(digits) > 0 && len(digits) < 10 && strings.Trim(digits, "0123456789") == "" {
				var want Bytes
				for _, c := range digits {
					want = want*10 + Bytes(c-'0')
				}
				require.Equal(t, want, n)
			}
		})
	})
}
