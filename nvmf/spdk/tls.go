//go:build spdk

package spdk

// #include "driver.h"
import "C"

import (
	"fmt"
	"regexp"
	"strconv"

	"nvmecr/nvmf"
)

// checkTLS refuses a key if TLS would not be used.
func checkTLS(id nvmf.TransportID, o *Options) error {
	if o.PSK.IsZero() {
		return nil
	}
	if id.Transport != nvmf.TCP {
		return fmt.Errorf("%w: there is a key for TLS, which is for TCP and not for %s", nvmf.ErrUnsupported, id.Transport)
	}
	_, key, err := o.PSK.Derive(o.HostNQN, id.SubNQN)
	if err != nil {
		return fmt.Errorf("%w: %w", nvmf.ErrUnsupported, err)
	}
	if key[0] == 0 { // SPDK would connect without TLS
		return fmt.Errorf("%w: SPDK takes this TLS key for none between host %s and subsystem %s, as it does one of 256, "+
			"by a byte of it that is zero; give both ends another key", nvmf.ErrUnsupported, o.HostNQN, id.SubNQN)
	}
	return nil
}

// insecure matches an error of OpenSSL about a connection. The number is 1000 plus the
// alert if the other end has ended the connection.
var insecure = regexp.MustCompile(C.DRIVER_TLS + `(\d+): ([^)]*)`)

// wrongVersion is OpenSSL's error number for received bytes that are not TLS.
const wrongVersion = 267

// unsecured converts a message about TLS during a connection to an error. It returns
// nil if there was none.
func unsecured(o *Options, subNQN, text string) error {
	m := insecure.FindStringSubmatch(text)
	if o.PSK.IsZero() || m == nil {
		return nil
	}
	number, _ := strconv.Atoi(m[1])
	switch {
	case number == wrongVersion:
		return fmt.Errorf("%w: subsystem %s was to be reached by TLS (--tls-psk), but its target does not use TLS at this address; "+
			"have it listen with TLS, or leave the key out", nvmf.ErrAuthentication, subNQN)
	case number >= 1000:
		return fmt.Errorf("%w: the target ends the TLS connection of host %s for subsystem %s (%s); check that --tls-psk has the key "+
			"that the target has for this host, and --hostnqn its name", nvmf.ErrAuthentication, o.HostNQN, subNQN, m[2])
	}
	return fmt.Errorf("%w: TLS, with the key of --tls-psk, fails%s", nvmf.ErrUnreachable, text)
}

// broken matches SPDK's message about a connection that has ended.
var broken = regexp.MustCompile(`spdk_sock_\w+\(\) failed`)

// tlsHint returns a hint to be appended to the error of a connection that ended without
// a reason.
func tlsHint(o *Options, text string) string {
	if o.PSK.IsZero() && broken.MatchString(text) {
		return "; so do targets that want TLS, for which there is --tls-psk"
	}
	return ""
}
