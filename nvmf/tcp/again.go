package tcp

import "time"

// Commands that are answered with a transient status are sent again, as
// initiator.Repetition says when.

// again makes an answered slot rest until its command is sent again, if that
// is worth it.
func (c *conn) again(s *slot, cid uint16) bool {
	if !c.repeats || !s.refusal().Transient() || !s.repetition.Again(c.timeout) {
		return false
	}
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
		if left := s.repetition.Due().Sub(now); left > 0 {
			still, d = append(still, cid), min(d, left)
			continue
		}
		c.send.push(s, cid)
		c.pace.deadline = time.Time{} // its time begins anew
	}
	c.resting = still
	return d
}
