package posixshim

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"nvmecr/internal/panics"
)

// A forked child of a process that had a runtime cannot use that and cannot load another one. Its parent makes its calls. After the
// end of its parent the child asks nvmecr serve (shim/remote/remote.c). nvmecr serve redirects the child to a Process of its own that
// opens the files of the child's rank.

// A Referrer is the end of nvmecr serve.
type Referrer struct {
	listen  *net.UnixListener
	process func(getenv func(string) string) (*Process, error)
	logf    func(format string, args ...any)
}

// Refer begins to redirect children at the address of a number. process returns, for the environment of a child, the Process
// that makes its calls. It may be called on several goroutines at once. logf prints messages for the user.
func Refer(number uint64, process func(getenv func(string) string) (*Process, error), logf func(format string, args ...any)) (*Referrer, error) {
	listen, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: serverName(number)})
	if err != nil {
		return nil, fmt.Errorf("socket for children of processes that have ended: %w", err)
	}
	r := &Referrer{listen: listen, process: process, logf: logf}
	go r.accept()
	return r, nil
}

// Close closes the socket. Children that have been redirected are served until their Process ends.
func (r *Referrer) Close() error { return r.listen.Close() }

// HostServer returns the number of nvmecr serve of this host, for children of this process; 0: it is not known.
func (p *Process) HostServer() (int, error) {
	if p.Referrer == nil {
		return 0, nil
	}
	return int(p.Referrer()), nil
}

func (r *Referrer) accept() {
	for {
		conn, err := r.listen.AcceptUnix()
		switch {
		case err == nil:
			go r.serve(conn)
		case errors.Is(err, net.ErrClosed):
			return
		default: // no free descriptor
			time.Sleep(acceptPause)
		}
	}
}

// referralTime is how long a child may take to send its requests. It sends them at once.
const referralTime = time.Minute

// serve answers the one request of a connection.
func (r *Referrer) serve(conn *net.UnixConn) {
	defer conn.Close() // the child has its answer, or has ended
	_ = conn.SetDeadline(time.Now().Add(referralTime))
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	same := false
	if err := raw.Control(func(fd uintptr) { same = samePeer(int(fd)) }); err != nil || !same {
		return
	}
	m := &message{}
	address, err := r.find(conn, m)
	if err == nil {
		m.reply = []byte(address)
		_ = m.send(raw, pathRedirect, replyLast, 0)
		return
	}
	if errors.Is(err, errEnded) {
		return
	}
	r.logf("a process whose parent has ended cannot use the files of the run: %v", err)
	_ = m.send(raw, -int64(Errno(err)), replyLast, 0)
}

// errEnded says that a child has ended before it has sent all of a request.
var errEnded = errors.New("the process has ended")

func (r *Referrer) receive(conn *net.UnixConn, m *message) error {
	err := m.receive(conn)
	if err != nil && !errors.Is(err, errMessage) {
		return errEnded
	}
	return err
}

// find receives the introduction of a child and its request, and returns the address of the Process that makes its calls.
func (r *Referrer) find(conn *net.UnixConn, m *message) (address string, err error) {
	defer panics.Contain("a request of a process whose parent has ended", &err)
	if err := r.receive(conn, m); err != nil {
		return "", err
	}
	getenv := Environment(m.string())
	if m.call != callHello || !m.complete() {
		return "", errMessage
	}
	if err := r.receive(conn, m); err != nil {
		return "", err
	}
	p, err := r.process(getenv)
	if err != nil {
		return "", err
	}
	return p.Address()
}

// Environment returns a function like os.Getenv for the strings of an environment, each ended by a NUL: the one with which a process was
// started. Go would read the memory in which it was then, and programs that change their title overwrite that (setproctitle). If a
// name occurs twice, the first value counts.
func Environment(block string) func(name string) string {
	values := make(map[string]string)
	for text := range strings.SplitSeq(block, "\x00") {
		name, value, _ := strings.Cut(text, "=")
		if _, ok := values[name]; !ok {
			values[name] = value
		}
	}
	return func(name string) string { return values[name] }
}
