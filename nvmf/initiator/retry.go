package initiator

import "time"

// A command that completes with a transient status (nvmf.StatusError) is retried. The
// first retry is immediate, which suits a wrong data digest; later ones follow with
// exponential back-off. Meanwhile the command stays in flight for its owner. After the
// command time-out it completes with the last status.

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

// Again decides whether a command that has just failed is retried, and counts the
// retry. It returns false if the retry would be later than patience after the first
// failure.
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

// Due returns the time at which the command is to be sent again.
func (r *Retry) Due() time.Time { return r.due }
