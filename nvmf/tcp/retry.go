package tcp

import "time"

// Commands that complete with a transient status are retried; initiator.Retry decides
// when.

// again schedules a retry of a command that was answered, and reports whether there is
// one.
func (c *conn) again(s *slot, cid uint16) bool {
	if !c.retries || !s.refusal().Transient() || !s.retry.Again(c.timeout) {
		return false
	}
	s.moved, s.cur, s.unsent, s.asked, s.next = 0, cursor{}, true, 0, 0
	s.answered, s.badDigest = false, false
	c.stats.Retries++
	c.resting = append(c.resting, cid)
	return true
}

// resume sends the retries that are due, and returns the time until the next one is
// due, at most d.
func (c *conn) resume(d time.Duration) time.Duration {
	if len(c.resting) == 0 {
		return d
	}
	now := time.Now()
	still := c.resting[:0]
	for _, cid := range c.resting {
		s := &c.slots[cid]
		if left := s.retry.Due().Sub(now); left > 0 {
			still, d = append(still, cid), min(d, left)
			continue
		}
		c.send.push(s, cid)
		c.pace.deadline = time.Time{} // the command time-out starts again
	}
	c.resting = still
	return d
}
