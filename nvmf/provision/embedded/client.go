package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/jsonrpc"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
)

// patience is the time that a target has to answer a call.
const patience = time.Minute

// A Client is a provision.Provisioner for a target in another process, through the
// target's admin socket.
type Client struct {
	path string
	rpc  *jsonrpc.Client
}

// NewClient returns a client of the admin socket at path. It connects at the first
// call, and only to a target of this user or of root.
func NewClient(path string) *Client {
	return &Client{path: path, rpc: jsonrpc.NewClient(path).Check(func(conn net.Conn) error { return mayServe(peer(conn)) })}
}

// mayServe returns an error for a target of another user, who may have replaced the
// socket.
func mayServe(uid uint32, err error) error {
	if err == nil && !trusted(uid) {
		err = fmt.Errorf("the target that listens there is of user %d, and has to be yours or root's", uid)
	}
	return err
}

// Create calls Create of the target.
func (c *Client) Create(ctx context.Context, job string, size nvmf.Bytes) (n provision.Namespace, err error) {
	err = c.call(ctx, "create", createParams{job, size}, &n)
	return n, err
}

// Expose calls Expose of the target.
func (c *Client) Expose(ctx context.Context, job string, hosts []string, keys map[string]dhchap.Keys) error {
	// Keys of other hosts are not needed, and may be invalid.
	var sent hostKeys
	for _, h := range hosts {
		if k, ok := keys[h]; ok && !k.Host.IsZero() {
			sent = sent.with(h, k)
		}
	}
	if err := provision.CheckKeys(job, hosts, keys, func(string) bool { return false }, false); keys != nil && err != nil {
		return err
	}
	return c.call(ctx, "expose", exposeParams{job, hosts, sent}, nil)
}

// Limit calls Limit of the target.
func (c *Client) Limit(ctx context.Context, job string, rate nvmf.Bytes) error {
	return c.call(ctx, "limit", limitParams{job, rate}, nil)
}

// Delete calls Delete of the target.
func (c *Client) Delete(ctx context.Context, job string) error {
	return c.call(ctx, "delete", jobParams{job}, nil)
}

// List calls List of the target.
func (c *Client) List(ctx context.Context) (list []provision.Namespace, err error) {
	err = c.call(ctx, "list", nil, &list)
	return list, err
}

// Close closes the connection.
func (c *Client) Close() error { return c.rpc.Close() }

func (c *Client) call(ctx context.Context, method string, params, result any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := c.rpc.Call(ctx, method, params, result)
	var e *jsonrpc.Error
	switch {
	case errors.As(err, &e):
		return decode(e)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w: start `nvmecr target --admin %s --pool ...`, or name the socket of the one that runs", err, c.path)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: only the user whose target it is, and root, may administer it", err)
	}
	return err
}

// remote is an error of the target: its text, and the error of this package that its
// code stands for.
type remote struct {
	text string
	kind error
}

func (r *remote) Error() string { return r.text }
func (r *remote) Unwrap() error { return r.kind }

func decode(e *jsonrpc.Error) error {
	if e.Code == codeSize {
		size := new(provision.SizeError)
		if json.Unmarshal(e.Data, size) == nil {
			return size
		}
	}
	for _, k := range kinds {
		if k.code == e.Code {
			return &remote{e.Message, k.err}
		}
	}
	return e
}
