package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/internal/jsonrpc"
	"nvmecr/nvmf"
	"nvmecr/nvmf/provision"
)

// Parameters of the RPC methods, which are those of provision.Provisioner.
type (
	jobParams struct {
		Job string `json:"job"`
	}
	createParams struct {
		Job  string     `json:"job"`
		Size nvmf.Bytes `json:"size"`
	}
	exposeParams struct {
		Job   string   `json:"job"`
		Hosts []string `json:"hosts"`
		Keys  hostKeys `json:"keys,omitempty"`
	}
	limitParams struct {
		Job  string     `json:"job"`
		Rate nvmf.Bytes `json:"rate"`
	}
)

// kinds has the codes of the errors that clients distinguish.
var kinds = []struct {
	code int64
	err  error
}{
	{-int64(unix.ENOENT), provision.ErrNoNamespace},
	{-int64(unix.ENOSPC), provision.ErrNoSpace},
	{-int64(unix.EOPNOTSUPP), provision.ErrUnsupported},
	{-int64(unix.EINVAL), provision.ErrInvalid},
}

// codeSize is the code of a *provision.SizeError, which is sent in the data of the RPC
// error.
const codeSize = -int64(unix.EEXIST)

// Listen listens at a unix socket to which only this user and root can connect. It
// replaces a socket without a listener. It locks the file named like the socket with
// the suffix .lock, so that only one of several targets can replace such a socket.
func Listen(path string) (net.Listener, error) {
	lock, err := lockSocket(path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", errors.Join(err, lock.Close()))
	}
	return &listener{l, lock}, nil
}

func lockSocket(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = anotherListens(path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func anotherListens(path string) error {
	return fmt.Errorf("%s: another target listens there: end it, or give another path", path)
}

func listen(path string) (net.Listener, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// The file gets the mode that the socket has when it is bound.
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	return c.Listen(context.Background(), "unix", path)
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s is there and no socket: give another path", path)
	}
	conn, err := net.Dial("unix", path)
	if err == nil { // another program listens without the lock
		return errors.Join(anotherListens(path), conn.Close())
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// listener accepts connections only of this user and of root, whatever the mode of the
// file.
type listener struct {
	net.Listener
	lock *os.File
}

// Close removes the socket, and then the lock, so that another listener can take the path.
func (l *listener) Close() error { return errors.Join(l.Listener.Close(), l.lock.Close()) }

func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if uid, err := peer(conn); err == nil && trusted(uid) {
			return conn, nil
		}
		_ = conn.Close() // the client sees the end of the connection
	}
}

// peer returns the user at the other end of a unix socket, who has connected or
// listens.
func peer(conn net.Conn) (uid uint32, err error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var who *unix.Ucred
	failed := raw.Control(func(fd uintptr) {
		who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(failed, err); err != nil {
		return 0, err
	}
	return who.Uid, nil
}

// trusted reports whether a user may administer this process's target. It also reports
// whether this process may use a target of that user.
func trusted(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }

// Serve answers calls at the admin socket until ctx ends, and closes l.
func Serve(ctx context.Context, l net.Listener, p provision.Provisioner) error {
	return jsonrpc.Serve(ctx, l, func(ctx context.Context, method string, params json.RawMessage) (any, error) {
		result, err := call(ctx, p, method, params)
		return result, encode(err)
	})
}

func call(ctx context.Context, p provision.Provisioner, method string, params json.RawMessage) (any, error) {
	switch method {
	case "create":
		var a createParams
		if err := jsonrpc.Unmarshal(params, &a); err != nil {
			return nil, err
		}
		return p.Create(ctx, a.Job, a.Size)
	case "expose":
		var a exposeParams
		if err := jsonrpc.Unmarshal(params, &a); err != nil {
			return nil, err
		}
		return true, p.Expose(ctx, a.Job, a.Hosts, a.Keys)
	case "limit":
		var a limitParams
		if err := jsonrpc.Unmarshal(params, &a); err != nil {
			return nil, err
		}
		return true, p.Limit(ctx, a.Job, a.Rate)
	case "delete":
		var a jobParams
		if err := jsonrpc.Unmarshal(params, &a); err != nil {
			return nil, err
		}
		return true, p.Delete(ctx, a.Job)
	case "list":
		if err := jsonrpc.Unmarshal(params, &struct{}{}); err != nil {
			return nil, err
		}
		return p.List(ctx)
	}
	return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: fmt.Sprintf("no method %q", method)}
}

// encode converts an error to one with a code, from which decode restores the error.
func encode(err error) error {
	var size *provision.SizeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &size):
		data, _ := json.Marshal(size) // cannot fail
		return &jsonrpc.Error{Code: codeSize, Message: err.Error(), Data: data}
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return &jsonrpc.Error{Code: k.code, Message: err.Error()}
		}
	}
	return err
}
