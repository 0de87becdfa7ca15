package initiator

import "time"

// Commands that complete with a transient status (nvmf.StatusError) are retried: at
// once the first time, which suits a wrong data digest, then with exponential
// back-off. For their owner they stay in flight meanwhile. After the command
// time-out the last status is the outcome.

const (
	minRest = time.Millisecond
	maxRest = 250 * time.Millisecond
)

// A Retry counts the retries of a command. The zero value is for a command that
// has not been retried.
type Retry struct {
	tries   int
	refused time.Time
	due     time.Time
}

// Again decides whether a command that was refused just now is retried, and counts
// the retry. It returns false if the retry would be later than patience after the
// first refusal.
func (r *Retry) Again(patience time.Duration) bool {
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

// Due returns when the command is to be sent again.
func (r *Retry) Due() time.Time { return r.due }
