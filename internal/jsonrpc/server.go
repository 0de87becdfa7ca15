package jsonrpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// acceptPause is the pause of Serve after an error of Accept.
const acceptPause = 100 * time.Millisecond

// A Handler executes one method. It returns an *Error for the answer; any other error is answered with CodeInternal.
// Unmarshal decodes params.
type Handler func(ctx context.Context, method string, params json.RawMessage) (result any, err error)

// Unmarshal decodes the parameters of a method. Unknown parameters are an error with CodeInvalidParams.
func Unmarshal(params json.RawMessage, to any) error {
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	d := json.NewDecoder(bytes.NewReader(params))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return &Error{Code: CodeInvalidParams, Message: fmt.Sprintf("parameters: %v", err)}
	}
	return nil
}

// Serve answers the calls of all connections to l, those of each connection in order, until ctx ends or l is closed.
// It returns when l is closed and all calls have ended. After temporary errors, such as a lack of descriptors, it
// tries again.
func Serve(ctx context.Context, l net.Listener, h Handler) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		_ = l.Close() // wakes up Accept
		close(closed)
	})
	defer func() {
		cancel()
		<-closed
	}()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if conn != nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			cancel()
			return fmt.Errorf("%s: %w", l.Addr(), err)
		case err != nil:
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		group.Go(func() {
			hangUp := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer hangUp()
			defer func() { _ = conn.Close() }() // tells the peer that the connection has ended
			answerAll(ctx, newStream(conn), h)
		})
	}
}

// answerAll answers the calls of a connection until it ends.
func answerAll(ctx context.Context, s *stream, h Handler) {
	for {
		var r request
		if err := s.receive(&r); err != nil {
			if errors.As(err, new(*json.SyntaxError)) || errors.As(err, new(*json.UnmarshalTypeError)) {
				_ = s.send(&response{Version: "2.0", ID: json.RawMessage("null"),
					Error: &Error{Code: CodeParse, Message: err.Error()}}) // the connection ends in any case
			}
			return
		}
		if s.send(answer(ctx, &r, h)) != nil {
			return
		}
	}
}

func answer(ctx context.Context, r *request, h Handler) *response {
	a := &response{Version: "2.0", ID: r.ID}
	if len(r.ID) == 0 {
		a.ID = json.RawMessage("null")
	}
	var result any
	var err error = &Error{Code: CodeInvalidRequest, Message: "no JSON-RPC 2.0 call"}
	if r.Version == "2.0" && r.Method != "" && len(r.ID) > 0 {
		result, err = h(ctx, r.Method, r.Params)
	}
	if err == nil {
		a.Result, err = json.Marshal(result)
	}
	if err != nil && !errors.As(err, &a.Error) {
		a.Error = &Error{Code: CodeInternal, Message: err.Error()}
	}
	return a
}
