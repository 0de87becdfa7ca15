package tcp

import "time"

// Commands that are answered with a transient status (nvmf.StatusError) are
// sent again: at once the first time, which is what a wrong data digest wants,
// then after pauses that double. To their owner they stay in flight meanwhile.
// When that has gone on for the command time-out, the status is the outcome.

const (
	minPause = time.Millisecond
	maxPause = 250 * time.Millisecond
)

// again makes an answered slot rest until its command is sent again, if that
// is worth it.
func (c *conn) again(s *slot, cid uint16) bool {
	if !c.repeats || !s.refusal().Transient() {
		return false
	}
	now := time.Now()
	var pause time.Duration
	if s.tries == 0 {
		s.refused = now
	} else {
		pause = min(maxPause, minPause<<min(s.tries-1, 16))
	}
	if now.Add(pause).Sub(s.refused) >= c.timeout {
		return false
	}
	s.tries++
	s.due = now.Add(pause)
	s.moved, s.cur, s.unsent, s.asked, s.next = 0, cursor{}, true, 0, 0
	s.answered, s.badDigest = false, false
	c.stats.Repeats++
	c.resting = append(c.resting, cid)
	return true
}

// rouse queues the slots that have rested enough and returns how long the next
// one has to, at most d.
func (c *conn) rouse(d time.Duration) time.Duration {
	if len(c.resting) == 0 {
		return d
	}
	now := time.Now()
	still := c.resting[:0]
	for _, cid := range c.resting {
		s := &c.slots[cid]
		if left := s.due.Sub(now); left > 0 {
			still, d = append(still, cid), min(d, left)
			continue
		}
		c.send.push(s, cid)
		c.pace.deadline = time.Time{} // its time begins anew
	}
	c.resting = still
	return d
}
