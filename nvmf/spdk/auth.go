//go:build spdk

package spdk

// #include "driver.h"
import "C"

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unsafe"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
)

// SPDK authenticates each queue when it connects. It gets the keys as text from a
// keyring in memory, which holds them as long as the controller exists; see keys.c. The
// reason of a failure is taken from SPDK's log messages.

// checkKeys refuses keys without which the requested authentication would not take
// place. Local drives do not authenticate.
func checkKeys(id nvmf.TransportID, o *Options) error {
	if err := checkTLS(id, o); err != nil || id.Transport == nvmf.PCIe {
		return err
	}
	return initiator.Authentication{Keys: o.Keys}.Check()
}

// setKeys copies the keys and the offer to the parameters for SPDK. The caller must
// call clearKeys afterwards.
func setKeys(a *C.struct_driver_address, id nvmf.TransportID, o *Options) {
	if !o.PSK.IsZero() {
		copyKey(a.tls_key[:], o.PSK.Reveal())
	}
	if id.Transport == nvmf.PCIe || o.Keys.Host.IsZero() {
		return
	}
	copyKey(a.host_key[:], o.Keys.Host.Reveal())
	if !o.Keys.Controller.IsZero() {
		copyKey(a.target_key[:], o.Keys.Controller.Reveal())
	}
	offer := o.AuthOffer.Complete()
	for _, h := range offer.Hashes {
		a.hashes |= 1 << h
	}
	for _, g := range offer.Groups {
		a.groups |= 1 << g
	}
}

func copyKey(to []C.char, text string) {
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&to[0])), len(to)-1), text)
}

func clearKeys(a *C.struct_driver_address) {
	clear(a.host_key[:])
	clear(a.target_key[:])
	clear(a.tls_key[:])
}

// proving returns a function that sets proved. proved is true if SPDK has used a host's
// key for an authentication, on this locked thread, since the call of proving.
func proving(proved *bool) func() {
	before := C.driver_proofs()
	return func() { *proved = C.driver_proofs() != before }
}

var (
	failure1 = regexp.MustCompile(`received AUTH_failure1: rc=\d+, rce=(\d+)`)
	unsent   = regexp.MustCompile(`(AUTH_negotiate|DH-HMAC-CHAP_\w+) failed: sc=(\d+), sct=(\d+) \(timed out: (\w+)\)`)
	odd      = regexp.MustCompile(`^(received|unexpected|unsupported|invalid) `)
)

// unproved converts SPDK's messages about an authentication to an error.
func unproved(o *Options, subNQN, text string) error {
	a := initiator.Authentication{HostNQN: o.HostNQN, SubNQN: subNQN, Keys: o.Keys}
	_, said, told := strings.Cut(text, C.DRIVER_PROOF)
	if !told { // SPDK ignores the last message if the connection has ended right after it
		return a.Failed(fmt.Errorf("%w: %w%s", nvmf.ErrUnreachable, nvmf.ErrConnectionLost, text))
	}
	said = strings.TrimSuffix(said, ")") // the parenthesis is from the function behind
	if m := failure1.FindStringSubmatch(said); m != nil {
		reason, _ := strconv.ParseUint(m[1], 10, 8)
		return a.Failed(&dhchap.Error{Peer: true, Reason: dhchap.Reason(reason)})
	}
	if m := unsent.FindStringSubmatch(said); m != nil {
		sc, _ := strconv.ParseUint(m[2], 10, 8)
		sct, _ := strconv.ParseUint(m[3], 10, 8)
		return unanswered(a, m[1], nvme.Status(sct)<<8|nvme.Status(sc), m[4] == "true")
	}
	switch {
	case strings.Contains(said, "missing DH-HMAC-CHAP key"):
		return a.NoSecret()
	case strings.HasPrefix(said, "secure channel"):
		return a.SecureChannel()
	case said == "controller challenge mismatch":
		return a.Failed(&dhchap.Error{Reason: dhchap.Failed, Text: "the controller's proof is wrong"})
	case odd.MatchString(said):
		return a.Failed(&dhchap.Error{Reason: dhchap.IncorrectPayload, Text: said})
	}
	return fmt.Errorf("%w%s", nvmf.ErrAuthentication, text)
}

// unanswered returns the error for a message that was not answered, or was answered by
// an error status.
func unanswered(a initiator.Authentication, message string, status nvme.Status, late bool) error {
	const aborted = 0x08 // SPDK aborts commands when the connection has ended
	switch {
	case status == aborted:
		return a.Failed(fmt.Errorf("%w: %w", nvmf.ErrUnreachable, nvmf.ErrConnectionLost))
	case late:
		return a.Failed(fmt.Errorf("%w: %w: no answer in time", nvmf.ErrUnreachable, nvmf.ErrConnectionLost))
	case message == "AUTH_negotiate" && !a.Keys.Controller.IsZero(): // SPDK sends it even if the target does not ask for it
		return a.NotAsked()
	}
	name := "Authentication Receive"
	if message == "AUTH_negotiate" || message == "DH-HMAC-CHAP_reply" {
		name = "Authentication Send"
	}
	return a.Failed(&nvmf.StatusError{Name: name, SCT: status.SCT(), SC: status.SC()})
}
