package crew

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"time"
)

// A Crew is ranks that wait for orders.
type Crew struct {
	ranks []*member // by rank
	job   job
	said  *said
}

// A member is the conductor's end of a rank.
type member struct {
	rank, size int
	host, boot string
	conn       net.Conn
	lines      *bufio.Reader
}

// Size returns the number of ranks.
func (c *Crew) Size() int { return len(c.ranks) }

// Hosts returns how many hosts the ranks are on.
func (c *Crew) Hosts() int {
	hosts := make(map[string]bool)
	for _, m := range c.ranks {
		hosts[m.host+" "+m.boot] = true
	}
	return len(hosts)
}

// Do gives every rank its order, releases them together, and returns what it
// took each, in the order of ranks. A rank whose order is "" takes no part.
// After an error the crew may be used further, unless a rank is gone.
func (c *Crew) Do(ctx context.Context, order func(rank int) string) (Round, error) {
	stop := c.interrupted(ctx)
	defer stop()
	var part []*member
	for _, m := range c.ranks {
		text := order(m.rank)
		if text == "" {
			continue
		}
		part = append(part, m)
		if err := m.say(text); err != nil {
			return nil, c.lost(ctx, m, err)
		}
	}
	failed, err := c.collect(ctx, part, func(m *member, words string) error {
		if words != "ready" {
			return fmt.Errorf("it said %q, not that it is ready", words)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	release := "go"
	if failed != nil {
		release = "no" // those that are ready
	}
	for _, m := range part {
		if !m.refused(failed) {
			if err := m.say(release); err != nil {
				return nil, c.lost(ctx, m, err)
			}
		}
	}
	if failed != nil {
		return nil, c.explained(failed)
	}
	var round Round
	failed, err = c.collect(ctx, part, func(m *member, words string) error {
		r, err := parseReport(words)
		r.Rank, r.boot = m.rank, m.boot
		round = append(round, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, c.explained(failed)
	}
	return round, nil
}

// explained is what ranks refused, with what was printed.
func (c *Crew) explained(r *refusals) error { return fmt.Errorf("%w%s", r, c.said.tail()) }

// Say gives all ranks the same order.
func (c *Crew) Say(ctx context.Context, order string) (Round, error) {
	return c.Do(ctx, func(int) string { return order })
}

// refusals are what ranks said of an order they could not obey.
type refusals struct {
	ranks []int
	text  string // of the first
}

func (r *refusals) Error() string {
	if len(r.ranks) == 1 {
		return fmt.Sprintf("rank %d: %s", r.ranks[0], r.text)
	}
	return fmt.Sprintf("rank %d: %s (and %d other ranks)", r.ranks[0], r.text, len(r.ranks)-1)
}

// refused says whether the rank is among those that refused.
func (m *member) refused(r *refusals) bool {
	if r == nil {
		return false
	}
	for _, n := range r.ranks {
		if n == m.rank {
			return true
		}
	}
	return false
}

// collect reads a line from each. err is set when a rank is gone or does not
// keep to the protocol.
func (c *Crew) collect(ctx context.Context, part []*member, take func(m *member, words string) error) (failed *refusals, err error) {
	for _, m := range part {
		line, err := m.lines.ReadString('\n')
		if err != nil {
			return nil, c.lost(ctx, m, err)
		}
		line = strings.TrimSuffix(line, "\n")
		if text, ok := strings.CutPrefix(line, "failed "); ok {
			if failed == nil {
				failed = &refusals{text: text}
			}
			failed.ranks = append(failed.ranks, m.rank)
			continue
		}
		if err := take(m, line); err != nil {
			return nil, fmt.Errorf("rank %d on %s: %w", m.rank, m.host, err)
		}
	}
	return failed, nil
}

func (m *member) say(text string) error {
	_, err := m.conn.Write([]byte(text + "\n"))
	return err
}

// interrupted closes the connections when ctx ends.
func (c *Crew) interrupted(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, c.hangUp)
}

func (c *Crew) hangUp() {
	for _, m := range c.ranks {
		m.conn.Close()
	}
}

// lost says why a rank is gone.
func (c *Crew) lost(ctx context.Context, m *member, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("rank %d on %s has ended or cannot be reached (%w)%s", m.rank, m.host, err, c.said.tail())
}

// patience is how long ranks may take to end that were told to.
const patience = 20 * time.Second

// Stop ends the ranks and waits until they are gone. Ranks that do not end are
// killed, which is an error.
func (c *Crew) Stop() error {
	for _, m := range c.ranks {
		_ = m.say("quit") // one that is gone has ended
	}
	c.hangUp()
	return c.job.end(patience)
}

// Kill ends the ranks as a crash does.
func (c *Crew) Kill() {
	c.job.kill()
	c.hangUp()
}
