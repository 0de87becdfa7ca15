package wiretest

import (
	"time"

	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
)

// Direction is where a PDU goes.
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

// PDU is one PDU on its way.
type PDU struct {
	To Direction
	// N counts the PDUs of the direction since the script was set, from 1.
	N int
	// Conn counts connections since the proxy began, from 1.
	Conn int
	// QID is the queue of the connection; -1 before its Connect.
	QID  int
	Type pdu.Type
	// Bytes is all of it, with digests. A script may change them in place.
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

// Script says what is done to a PDU. It runs with the proxy locked and must
// not call it.
type Script func(p *PDU) Action

// At is the script that does a to PDU n of a direction and passes all others.
func At(to Direction, n int, a Action) Script {
	return func(p *PDU) Action {
		if p.To == to && p.N == n {
			return a
		}
		return Pass
	}
}

// Places in a PDU for actions that want a byte offset; others count from 0, and
// those beyond the end are the end.
const (
	Middle = -1
	End    = -2
)

// Action is what is done to a PDU.
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

// Pass forwards a PDU as it is, Drop forgets it, CutAll forgets it and resets
// all connections.
var (
	Pass   = Action{}
	Drop   = Action{verb: drop}
	CutAll = Action{verb: cutAll}
)

// Cut forwards the bytes before place at, and resets both ends of the
// connection.
func Cut(at int) Action { return Action{verb: cut, at: at} }

// Finish forwards the bytes before place at, and closes both ends of the
// connection in order: the peer sees the end of the stream there.
func Finish(at int) Action { return Action{verb: finish, at: at} }

// Delay forwards the PDU, and what is behind it in its direction, after d.
func Delay(d time.Duration) Action { return Action{verb: delay, wait: d} }

// Swap forwards the PDU behind the next one of its connection and direction,
// or after d if none comes.
func Swap(d time.Duration) Action { return Action{verb: swap, wait: d} }

// Corrupt forwards the PDU with the bits of mask changed in the byte at place
// at (modulo the length).
func Corrupt(at int, mask byte) Action { return Action{verb: corrupt, at: at, mask: mask} }

// Freeze holds everything still for d, like [Proxy.Freeze] and [Proxy.Thaw].
func Freeze(d time.Duration) Action { return Action{verb: freeze, wait: d} }

// Keep cuts the host off and keeps the PDU, with everything the host has sent
// behind it, until [Proxy.Release] delivers it. The target's end stays open.
// It is for PDUs to the target; others pass.
func Keep() Action { return Action{verb: keep} }

// KeepAll is Keep for all connections: to the target the host is still there,
// as it is to one that is slow to notice.
func KeepAll() Action { return Action{verb: keepAll} }

// Answer completes a command in the target's place: the target never sees it.
// It is for a CapsuleCmd; others pass.
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

// fits reports whether the action can be done to a PDU.
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
