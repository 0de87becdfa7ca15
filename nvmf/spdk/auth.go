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

// SPDK authenticates each queue when it connects. The keys are given to it as
// text, by a keyring in memory, and are there as long as the controller: see
// keys.c. What has failed is known from what SPDK says.

// checkKeys refuses keys with which the authentication that was asked for would
// not take place. Local drives have none.
func checkKeys(id nvmf.TransportID, o *Options) error {
	if err := checkTLS(id, o); err != nil || id.Transport == nvmf.PCIe {
		return err
	}
	return initiator.Authentication{Keys: o.Keys}.Check()
}

// setKeys puts the keys and the offer into what SPDK is to know. clearKeys has
// to follow.
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

// proving notes, when what it returns is called, whether SPDK has proved who the
// host is, or tried to, on this locked thread since.
func proving(proved *bool) func() {
	before := C.driver_proofs()
	return func() { *proved = C.driver_proofs() != before }
}

var (
	failure1 = regexp.MustCompile(`received AUTH_failure1: rc=\d+, rce=(\d+)`)
	unsent   = regexp.MustCompile(`(AUTH_negotiate|DH-HMAC-CHAP_\w+) failed: sc=(\d+), sct=(\d+) \(timed out: (\w+)\)`)
	odd      = regexp.MustCompile(`^(received|unexpected|unsupported|invalid) `)
)

// unproved makes an error of what SPDK said about an authentication.
func unproved(o *Options, subNQN, text string) error {
	a := initiator.Authentication{HostNQN: o.HostNQN, SubNQN: subNQN, Keys: o.Keys}
	_, said, told := strings.Cut(text, C.DRIVER_PROOF)
	if !told { // SPDK does not look at a last message if the end of the connection has come with it
		return a.Failed(fmt.Errorf("%w: %w%s", nvmf.ErrUnreachable, nvmf.ErrConnectionLost, text))
	}
	said = strings.TrimSuffix(said, ")") // of the parentheses that behind puts around it
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

// unanswered is for a message that had no answer, or one that is an error.
func unanswered(a initiator.Authentication, message string, status nvme.Status, late bool) error {
	const aborted = 0x08 // by SPDK, because the connection has ended
	switch {
	case status == aborted:
		return a.Failed(fmt.Errorf("%w: %w", nvmf.ErrUnreachable, nvmf.ErrConnectionLost))
	case late:
		return a.Failed(fmt.Errorf("%w: %w: no answer in time", nvmf.ErrUnreachable, nvmf.ErrConnectionLost))
	case message == "AUTH_negotiate" && !a.Keys.Controller.IsZero(): // SPDK tries, whether the target asks for it or not
		return a.NotAsked()
	}
	name := "Authentication Receive"
	if message == "AUTH_negotiate" || message == "DH-HMAC-CHAP_reply" {
		name = "Authentication Send"
	}
	return a.Failed(&nvmf.StatusError{Name: name, SCT: status.SCT(), SC: status.SC()})
}
