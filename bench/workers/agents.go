package workers

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"nvmecr/internal/store"
)

// Agents are the processes of the job whose rank 0 is this process. Each agent starts
// programs on its host, with the CPU binding that the launcher has set. Agents is safe
// for concurrent use.
type Agents struct {
	all   []*agent      // by rank; rank 0 is this process
	ended chan struct{} // closed when the agent of rank 0 has no running programs

	mu   sync.Mutex
	jobs map[int]*agentsJob
	next int
}

// An agent is the coordinator's end of the connection to one process of the job.
type agent struct {
	rank int
	conn net.Conn
	mu   sync.Mutex // guards sending
	out  *json.Encoder
}

// A task tells an agent to start a program, or to kill it.
type task struct {
	ID   int
	Argv []string // empty: kill the program
	Env  []string // in addition to the agent's own
}

// An outcome is an agent's message that a program has ended.
type outcome struct {
	ID    int
	Error string // empty: success
}

// rendezvousTime is the time that the processes of a job have to meet.
const rendezvousTime = 2 * time.Minute

// Gather must be called by rank 0 of a job. It writes its address to the file, which
// must be in a directory that all processes of the job share, and waits until the
// others have called Join. Then it removes the file.
func Gather(ctx context.Context, file string, place store.Proc) (*Agents, error) {
	l, addresses, err := listen(true)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	secret := rand.Text()
	if err := leave(file, addresses, secret); err != nil {
		return nil, err
	}
	defer os.Remove(file)
	ctx, cancel := context.WithTimeout(ctx, rendezvousTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	a := &Agents{all: make([]*agent, place.Size), jobs: make(map[int]*agentsJob), ended: make(chan struct{})}
	here, there := net.Pipe()
	go func() {
		defer close(a.ended)
		_ = serveTasks(here) // returns when the connection ends
	}()
	a.add(0, there)
	for have := 1; have < place.Size; {
		conn, err := l.Accept()
		if err != nil {
			a.Close()
			return nil, fmt.Errorf("%d of the %d processes of the job met at %s: %w; is that directory the same on all hosts?", have, place.Size, file, err)
		}
		rank, err := admit(conn, secret, place.Size)
		if err != nil || a.all[rank] != nil {
			conn.Close()
			continue
		}
		a.add(rank, conn)
		have++
	}
	return a, nil
}

// leave writes the file atomically.
func leave(file, addresses, secret string) error {
	next := file + ".new"
	if err := os.WriteFile(next, []byte(addresses+"\n"+secret+"\n"), 0o600); err != nil {
		return fmt.Errorf("rendezvous: %w; name a directory that all processes of the job can write to with --rendezvous", err)
	}
	return os.Rename(next, file)
}

func admit(conn net.Conn, secret string, size int) (int, error) {
	if err := conn.SetDeadline(time.Now().Add(greeting)); err != nil {
		return 0, err
	}
	var presented string
	var rank int
	if _, err := fmt.Fscanf(conn, "agent %s %d\n", &presented, &rank); err != nil {
		return 0, err
	}
	if subtle.ConstantTimeCompare([]byte(presented), []byte(secret)) != 1 || rank <= 0 || rank >= size {
		return 0, errors.New("not a process of ours")
	}
	return rank, conn.SetDeadline(time.Time{})
}

func (a *Agents) add(rank int, conn net.Conn) {
	g := &agent{rank: rank, conn: conn, out: json.NewEncoder(conn)}
	a.all[rank] = g
	go a.listen(g)
}

// listen passes outcomes to their jobs until the agent has disconnected.
func (a *Agents) listen(g *agent) {
	in := json.NewDecoder(g.conn)
	for {
		var o outcome
		err := in.Decode(&o)
		a.mu.Lock()
		if err != nil {
			for _, j := range a.jobs {
				j.over(g.rank, errors.New("its process of the job has ended"))
			}
			a.mu.Unlock()
			return
		}
		j := a.jobs[o.ID]
		a.mu.Unlock()
		if j == nil {
			continue
		}
		if o.Error != "" {
			j.over(g.rank, errors.New(o.Error))
		} else {
			j.over(g.rank, nil)
		}
	}
}

// Size returns the number of agents.
func (a *Agents) Size() int { return len(a.all) }

// Close ends all agents. It waits for the agent of this process, whose programs would
// otherwise outlive the process.
func (a *Agents) Close() {
	for _, g := range a.all {
		if g != nil {
			g.conn.Close()
		}
	}
	<-a.ended
}

func (g *agent) tell(e task) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.out.Encode(e)
}

func (a *Agents) start(argv, env []string) (job, error) {
	a.mu.Lock()
	a.next++
	j := &agentsJob{agents: a, id: a.next, left: make(map[int]bool), first: make(chan struct{}), all: make(chan struct{})}
	for _, g := range a.all {
		j.left[g.rank] = true
	}
	a.jobs[j.id] = j
	a.mu.Unlock()
	for _, g := range a.all {
		if err := g.tell(task{ID: j.id, Argv: argv, Env: added(env)}); err != nil {
			j.kill()
			return nil, fmt.Errorf("process %d of the job: %w", g.rank, err)
		}
	}
	return j, nil
}

// added returns the variables of env that this process does not have.
func added(env []string) []string {
	ours := environ()
	var more []string
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if old, ok := ours[name]; !ok || old != value {
			more = append(more, kv)
		}
	}
	return more
}

// agentsJob is a program that all agents have started.
type agentsJob struct {
	agents *Agents
	id     int

	mu         sync.Mutex
	left       map[int]bool // ranks whose program runs
	failed     bool
	err        error
	first, all chan struct{}
}

// over records that a rank's program has ended.
func (j *agentsJob) over(rank int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.left[rank] {
		return
	}
	delete(j.left, rank)
	if err != nil {
		j.err = errors.Join(j.err, fmt.Errorf("rank %d: %w", rank, err))
		if !j.failed {
			j.failed = true
			close(j.first)
		}
	}
	if len(j.left) == 0 {
		if !j.failed {
			j.failed = true
			close(j.first)
		}
		close(j.all)
	}
}

func (j *agentsJob) ended() <-chan struct{} { return j.first }

func (j *agentsJob) status() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return j.err
	}
	return errors.New("exit status 0")
}

func (j *agentsJob) end(patience time.Duration) error {
	select {
	case <-j.all:
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.err
	case <-time.After(patience):
		j.kill()
		return fmt.Errorf("the ranks did not end within %s and were killed", patience)
	}
}

func (j *agentsJob) kill() {
	for _, g := range j.agents.all {
		_ = g.tell(task{ID: j.id}) // fails if the agent has ended, which has then killed its programs
	}
	select {
	case <-j.all:
	case <-time.After(patience):
	}
}

// Join must be called by the other processes of the job. It connects to rank 0, and
// executes rank 0's tasks until the connection ends. ctx bounds only the time until the
// connection. An interruption of the job also reaches rank 0, which cleans up and ends
// the other processes.
func Join(ctx context.Context, file string, place store.Proc) error {
	ctx, cancel := context.WithTimeout(ctx, rendezvousTime)
	defer cancel()
	var conn net.Conn
	for {
		var err error
		if conn, err = meet(ctx, file, place.Rank); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			if c := context.Cause(ctx); !errors.Is(c, context.DeadlineExceeded) {
				err = c
			}
			return fmt.Errorf("rank 0 of the job does not appear at %s: %w", file, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return serveTasks(conn)
}

// meet tries once to connect. The file may be from an earlier job.
func meet(ctx context.Context, file string, rank int) (net.Conn, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	addresses, secret, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	conn, err := connect(ctx, addresses)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "agent %s %d\n", secret, rank); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// serveTasks starts and kills programs until the connection ends. Then it kills the
// remaining programs.
func serveTasks(conn net.Conn) error {
	s := &tasks{out: json.NewEncoder(conn), running: make(map[int]*processes)}
	defer s.end()
	in := json.NewDecoder(conn)
	for {
		var e task
		if err := in.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
				return nil
			}
			return err
		}
		s.run(e)
	}
}

type tasks struct {
	mu      sync.Mutex
	out     *json.Encoder
	running map[int]*processes
}

func (s *tasks) run(e task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(e.Argv) == 0 {
		if p := s.running[e.ID]; p != nil {
			go p.kill()
		}
		return
	}
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "LD_PRELOAD=") && !strings.HasPrefix(kv, "NVMECR_") {
			env = append(env, kv)
		}
	}
	p, err := startProcesses([]*exec.Cmd{command(e.Argv, append(env, e.Env...))}, os.Stderr)
	if err != nil {
		_ = s.out.Encode(outcome{e.ID, err.Error()}) // fails if the connection is closed: then no process waits for the outcome
		return
	}
	s.running[e.ID] = p
	go func() {
		<-p.all
		o := outcome{ID: e.ID}
		if p.err != nil {
			o.Error = p.err.Error()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, e.ID)
		_ = s.out.Encode(o)
	}()
}

func (s *tasks) end() {
	s.mu.Lock()
	var left []*processes
	for _, p := range s.running {
		left = append(left, p)
	}
	s.mu.Unlock()
	for _, p := range left {
		p.kill()
	}
}
