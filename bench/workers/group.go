package workers

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"time"
)

// A Group has the ranks of a benchmark, which wait for commands.
type Group struct {
	ranks []*member // by rank
	job   job
	said  *said
}

// A member is the coordinator's end of a rank.
type member struct {
	rank, size int
	host, boot string
	conn       net.Conn
	lines      *bufio.Reader
}

// Size returns the number of ranks.
func (c *Group) Size() int { return len(c.ranks) }

// Hosts returns the number of hosts that the ranks run on.
func (c *Group) Hosts() int {
	hosts := make(map[string]bool)
	for _, m := range c.ranks {
		hosts[m.host+" "+m.boot] = true
	}
	return len(hosts)
}

// Do sends every rank its command, starts the ranks together, and returns their
// measurements by rank. A rank with the command "" takes no part. After an error the
// group can still be used, unless a rank has ended.
func (c *Group) Do(ctx context.Context, command func(rank int) string) (Round, error) {
	stop := c.interrupted(ctx)
	defer stop()
	var part []*member
	for _, m := range c.ranks {
		text := command(m.rank)
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
		release = "no" // for the ranks that are ready
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

// explained adds the last lines of the ranks' output to an error of ranks.
func (c *Group) explained(r *refusals) error { return fmt.Errorf("%w%s", r, c.said.tail()) }

// DoAll is like Do, with the same command for all ranks.
func (c *Group) DoAll(ctx context.Context, command string) (Round, error) {
	return c.Do(ctx, func(int) string { return command })
}

// refusals are the errors of ranks that could not execute a command.
type refusals struct {
	ranks []int
	text  string // of the first rank
}

func (r *refusals) Error() string {
	if len(r.ranks) == 1 {
		return fmt.Sprintf("rank %d: %s", r.ranks[0], r.text)
	}
	return fmt.Sprintf("rank %d: %s (and %d other ranks)", r.ranks[0], r.text, len(r.ranks)-1)
}

// refused reports whether the rank is one of those that refused.
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

// collect reads a line from each rank. err is set if a rank has ended or violates the
// protocol.
func (c *Group) collect(ctx context.Context, part []*member, take func(m *member, words string) error) (failed *refusals, err error) {
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
func (c *Group) interrupted(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, c.hangUp)
}

func (c *Group) hangUp() {
	for _, m := range c.ranks {
		m.conn.Close()
	}
}

// lost returns the reason why a rank has ended.
func (c *Group) lost(ctx context.Context, m *member, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("rank %d on %s has ended or cannot be reached (%w)%s", m.rank, m.host, err, c.said.tail())
}

// patience is the time limit for ranks to end.
const patience = 20 * time.Second

// Stop ends the ranks and waits for them. It kills ranks that do not end, and then
// returns an error.
func (c *Group) Stop() error {
	for _, m := range c.ranks {
		_ = m.say("quit") // fails if the rank has ended
	}
	c.hangUp()
	return c.job.end(patience)
}

// Kill ends the ranks as a crash does.
func (c *Group) Kill() {
	c.job.kill()
	c.hangUp()
}
