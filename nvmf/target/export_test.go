package target

import "time"

// Admit lets tests connect through sockets that were not accepted.
var Admit = (*Target).admit

// SetPatience sets the time that a host has to send Connect and to authenticate.
func SetPatience(t *Target, d time.Duration) { t.patience = d }

// Controllers returns the number of controllers of a target.
func Controllers(t *Target) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.controllers)
}

// OccupyExchanges lets no Diffie-Hellman computation begin until release is called.
func OccupyExchanges(t *Target) (release func()) {
	for range cap(t.exchanges) {
		t.exchanges <- struct{}{}
	}
	return func() {
		for range cap(t.exchanges) {
			<-t.exchanges
		}
	}
}

// Running returns how many connections are not asleep.
func Running(t *Target) int32 { return t.running.Load() }

// HoldBackFor is the delay of the failure message for a wrong proof.
const HoldBackFor = holdBackFor
