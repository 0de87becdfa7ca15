package target

import "time"

// Admit lets tests connect through sockets that were not accepted.
var Admit = (*Target).admit

// SetPatience shortens the time that a host has to send Connect.
func SetPatience(t *Target, d time.Duration) { t.patience = d }

// Controllers returns how many there are.
func Controllers(t *Target) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.controllers)
}

// OccupyExchanges lets no Diffie-Hellman computation begin until release.
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

// HoldBackFor is how long a host waits for the word that its proof is wrong.
const HoldBackFor = holdBackFor
