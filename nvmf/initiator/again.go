package initiator

import "time"

// Commands that are answered with a transient status (nvmf.StatusError) are
// sent again: at once the first time, which is what a wrong data digest wants,
// then after pauses that double. To their owner they stay in flight meanwhile.
// When that has gone on for the command time-out, the status is the outcome.

const (
	minRest = time.Millisecond
	maxRest = 250 * time.Millisecond
)

// A Repetition is how often a command was sent again, and since when. The zero
// value is that of a command which was not.
type Repetition struct {
	tries   int
	refused time.Time
	due     time.Time
}

// Again decides whether a command that was refused just now is sent again, and
// takes note of that. It says no once that would be longer than patience after
// the first refusal.
func (r *Repetition) Again(patience time.Duration) bool {
	now := time.Now()
	var pause time.Duration
	if r.tries == 0 {
		r.refused = now
	} else {
		pause = min(maxRest, minRest<<min(r.tries-1, 16))
	}
	if now.Add(pause).Sub(r.refused) >= patience {
		return false
	}
	r.tries++
	r.due = now.Add(pause)
	return true
}

// Due is when it is to be sent again.
func (r *Repetition) Due() time.Time { return r.due }
