package workers

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"nvmecr/internal/demo"
)

// secretVariable is the environment variable with the secret by which a rank proves
// that it belongs to the group.
const secretVariable = "NVMECR_BENCH_SECRET"

// Options describe the ranks to start.
type Options struct {
	// Argv is the rank program; "--coordinator ADDRESSES" is appended.
	Argv []string
	// Env is the environment of the ranks.
	Env []string
	// Ranks is the number of ranks to start on this host if neither Launch nor Agents
	// is set.
	Ranks int
	// Launch is the command line of a launcher, which determines the number of ranks.
	Launch []string
	// Agents are the processes of this job.
	Agents *Agents
	// Wait is the time limit for the ranks to connect. The default is one minute.
	Wait time.Duration
}

// Start starts a group and waits until all its ranks have connected.
func Start(ctx context.Context, o Options) (*Group, error) {
	if o.Wait == 0 {
		o.Wait = time.Minute
	}
	elsewhere := o.Agents != nil || len(o.Launch) > 0
	l, addresses, err := listen(elsewhere)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	secret := rand.Text()
	o.Argv = append(o.Argv[:len(o.Argv):len(o.Argv)], "--coordinator", addresses)
	o.Env = append(o.Env[:len(o.Env):len(o.Env)], secretVariable+"="+secret)
	c := &Group{said: &said{}}
	if c.job, err = o.start(c.said); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Wait, fmt.Errorf("not all ranks were there within %s", o.Wait))
	defer cancel()
	if err := c.gather(ctx, l, secret); err != nil {
		c.hangUp()
		c.job.kill()
		return nil, fmt.Errorf("starting the ranks: %w", err)
	}
	return c, nil
}

// listen returns the addresses at which ranks reach the listener: those of the network before the
// loopback address.
func listen(elsewhere bool) (net.Listener, string, error) {
	if !elsewhere {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, "", err
		}
		return l, l.Addr().String(), nil
	}
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		return nil, "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		l.Close()
		return nil, "", err
	}
	var all []string
	for _, host := range append(hostAddresses(), "127.0.0.1") {
		all = append(all, net.JoinHostPort(host, port))
	}
	return l, strings.Join(all, ","), nil
}

// hostAddresses returns the IPv4 addresses of this host's network interfaces.
func hostAddresses() []string {
	var found []string
	addrs, _ := net.InterfaceAddrs() // the loopback address is left
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			found = append(found, n.IP.String())
		}
	}
	return found
}

// gather accepts ranks until all have connected.
func (c *Group) gather(ctx context.Context, l net.Listener, secret string) error {
	come := make(chan *member)
	done := make(chan struct{})
	defer close(done)
	go accept(l, secret, come, done)
	ended := c.job.ended()
	for {
		select {
		case m := <-come:
			if err := c.add(m); err != nil {
				m.conn.Close()
				return err
			}
			if len(c.ranks) == m.size {
				c.sort()
				return nil
			}
		case <-ended:
			return fmt.Errorf("they ended at once: %w%s", c.job.status(), c.said.tail())
		case <-ctx.Done():
			return fmt.Errorf("%w, %d have come%s", context.Cause(ctx), len(c.ranks), c.said.tail())
		}
	}
}

func (c *Group) add(m *member) error {
	for _, other := range c.ranks {
		if other.rank == m.rank {
			return fmt.Errorf("two processes say that they are rank %d: the launcher sets none of the variables that tell ranks apart", m.rank)
		}
		if other.size != m.size {
			return fmt.Errorf("rank %d is of %d, rank %d of %d", other.rank, other.size, m.rank, m.size)
		}
	}
	c.ranks = append(c.ranks, m)
	return nil
}

func (c *Group) sort() {
	byRank := make([]*member, len(c.ranks))
	for _, m := range c.ranks {
		byRank[m.rank] = m
	}
	c.ranks = byRank
}

// accept returns the ranks that connect, until done or the listener is closed. It closes
// connections without the secret.
func accept(l net.Listener, secret string, come chan<- *member, done <-chan struct{}) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			m, err := greet(conn, secret)
			if err != nil {
				conn.Close()
				return
			}
			select {
			case come <- m:
			case <-done:
				conn.Close()
			}
		}()
	}
}

// greeting is the time limit for a rank's first message.
const greeting = 10 * time.Second

func greet(conn net.Conn, secret string) (*member, error) {
	if err := conn.SetDeadline(time.Now().Add(greeting)); err != nil {
		return nil, err
	}
	m := &member{conn: conn, lines: bufio.NewReader(conn)}
	line, err := m.lines.ReadString('\n')
	if err != nil {
		return nil, err
	}
	var word, presented string
	var pid int
	if _, err := fmt.Sscanf(line, "%s %s %d %d %s %s %d", &word, &presented, &m.rank, &m.size, &m.host, &m.boot, &pid); err != nil {
		return nil, err
	}
	if word != "hello" || subtle.ConstantTimeCompare([]byte(presented), []byte(secret)) != 1 ||
		m.rank < 0 || m.size <= 0 || m.rank >= m.size {
		return nil, errors.New("not a rank of ours")
	}
	return m, conn.SetDeadline(time.Time{})
}

// said collects the output of ranks, which is shown when something fails.
type said struct{ demo.Output }

// tailLines is the number of lines of the output that are shown.
const tailLines = 60

// tail returns the last lines, starting on a new line.
func (s *said) tail() string {
	if t := strings.TrimSpace(s.Tail(tailLines)); t != "" {
		return "; it printed: " + t
	}
	return ""
}

// Without returns env without the variables by which launchers tell a process its
// place. A process started by a launcher then gets its own place.
func Without(env []string) []string {
	var kept []string
	for _, kv := range env {
		launcher := false
		for _, p := range []string{"OMPI_", "PMI_", "PMIX_", "MV2_COMM_", "SLURM_PROCID=", "SLURM_STEP_ID=", "PRTE_"} {
			launcher = launcher || strings.HasPrefix(kv, p) && !strings.HasPrefix(kv, "OMPI_MCA_") && !strings.HasPrefix(kv, "OMPI_ALLOW_")
		}
		if !launcher {
			kept = append(kept, kv)
		}
	}
	return kept
}

func environ() map[string]string {
	m := make(map[string]string)
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		m[name] = value
	}
	return m
}
