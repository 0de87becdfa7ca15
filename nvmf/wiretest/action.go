package wiretest

import (
	"time"

	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
)

// Direction is the direction of a PDU.
type Direction uint8

// Directions.
const (
	ToTarget Direction = iota
	ToHost
)

// String names the direction.
func (d Direction) String() string {
	if d == ToTarget {
		return "to target"
	}
	return "to host"
}

// PDU is one PDU that the proxy forwards.
type PDU struct {
	To Direction
	// N counts the PDUs of the direction since the script was set, from 1.
	N int
	// Conn counts connections since the proxy began, from 1.
	Conn int
	// QID is the queue of the connection; -1 before its Connect.
	QID  int
	Type pdu.Type
	// Bytes has the whole PDU with its digests. A script may change it in place.
	Bytes []byte
}

// SQE is the command of a CapsuleCmd, nil for other PDUs.
func (p *PDU) SQE() *nvme.SQE {
	if p.Type != pdu.TypeCapsuleCmd || len(p.Bytes) < pdu.CapsuleCmdSize {
		return nil
	}
	return pdu.SQEOf(p.Bytes)
}

// CQE is the completion in a CapsuleResp, nil for other PDUs.
func (p *PDU) CQE() *nvme.CQE {
	if p.Type != pdu.TypeCapsuleResp || len(p.Bytes) < pdu.CapsuleRespSize {
		return nil
	}
	return pdu.CQEOf(p.Bytes)
}

// Script decides what the proxy does with a PDU. It runs with the proxy locked, and must
// not call the proxy.
type Script func(p *PDU) Action

// At returns the script that does a to PDU n of a direction and passes all others.
func At(to Direction, n int, a Action) Script {
	return func(p *PDU) Action {
		if p.To == to && p.N == n {
			return a
		}
		return Pass
	}
}

// Places in a PDU for actions that need a byte offset. Other values count from 0, and
// values beyond the end stand for the end.
const (
	Middle = -1
	End    = -2
)

// Action is what the proxy does with a PDU.
type Action struct {
	verb   verb
	at     int
	mask   byte
	wait   time.Duration
	status nvme.Status
}

type verb uint8

const (
	pass verb = iota
	cut
	finish
	delay
	swap
	drop
	cutAll
	corrupt
	freeze
	keep
	keepAll
	answer
	rewrite
)

// Pass forwards a PDU unchanged. Drop discards it. CutAll discards it and resets all
// connections.
var (
	Pass   = Action{}
	Drop   = Action{verb: drop}
	CutAll = Action{verb: cutAll}
)

// Cut forwards the bytes before place at, and resets both ends of the
// connection.
func Cut(at int) Action { return Action{verb: cut, at: at} }

// Finish forwards the bytes before place at, and closes both ends of the connection
// without a reset: the peer reads the end of the stream at that place.
func Finish(at int) Action { return Action{verb: finish, at: at} }

// Delay forwards the PDU, and the later PDUs of its direction, after d.
func Delay(d time.Duration) Action { return Action{verb: delay, wait: d} }

// Swap forwards the PDU after the next one of its connection and direction, or after d
// if there is none.
func Swap(d time.Duration) Action { return Action{verb: swap, wait: d} }

// Corrupt forwards the PDU with the bits of mask changed in the byte at place
// at (modulo the length).
func Corrupt(at int, mask byte) Action { return Action{verb: corrupt, at: at, mask: mask} }

// Freeze stops all forwarding for d, like [Proxy.Freeze] and [Proxy.Thaw].
func Freeze(d time.Duration) Action { return Action{verb: freeze, wait: d} }

// Keep disconnects the host. It keeps the PDU, with all data that the host has sent after
// it, until [Proxy.Release] delivers them. The target's end stays open. Keep is for PDUs
// to the target; other PDUs pass.
func Keep() Action { return Action{verb: keep} }

// KeepAll is Keep for all connections. The target does not notice that the host is gone.
func KeepAll() Action { return Action{verb: keepAll} }

// Answer completes a command instead of the target, which does not get the command. It is
// for a CapsuleCmd; other PDUs pass.
func Answer(s nvme.Status) Action { return Action{verb: answer, status: s} }

// Rewrite changes the status of a CapsuleResp, with a correct digest: the
// target has executed the command. Other PDUs pass.
func Rewrite(s nvme.Status) Action { return Action{verb: rewrite, status: s} }

// place returns the offset that at means in n bytes.
func place(at, n int) int {
	switch {
	case at == Middle:
		return n / 2
	case at < 0 || at > n:
		return n
	}
	return at
}

// fits reports whether the action is for PDUs of this kind.
func (a Action) fits(p *PDU) bool {
	switch a.verb {
	case pass:
		return false
	case keep, keepAll:
		return p.To == ToTarget
	case answer:
		return p.SQE() != nil
	case rewrite:
		return p.CQE() != nil
	}
	return true
}
