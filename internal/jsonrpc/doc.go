// Package jsonrpc speaks JSON-RPC 2.0 over a unix socket, as SPDK does: a
// client with one call at a time, and a server. Messages follow each other on
// the stream with nothing between them; there are no batches and no
// notifications.
//
// The result of a call is decoded into the caller's type, so numbers never pass through
// a float64. After a call that was cancelled or failed otherwise the client closes the
// connection, since the answer may still arrive, and the next call opens a new one. It is
// then not known whether the method was executed. The client reconnects to a server that
// was restarted between two calls.
package jsonrpc

import (
	"encoding/json"
	"fmt"
)

// Codes that the specification defines.
const (
	CodeParse          = -32700
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
)

// Error is the error in an answer of a server.
type Error struct {
	Method  string          `json:"-"` // set by the client
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error returns the method and the server's text.
func (e *Error) Error() string {
	if e.Method == "" {
		return fmt.Sprintf("%s (code %d)", e.Message, e.Code)
	}
	return fmt.Sprintf("%s: %s (code %d)", e.Method, e.Message, e.Code)
}

// MaxMessage is the maximum length of a message, in either direction: that of about 30000 block devices in SPDK.
// Decoding takes three times as much memory.
const MaxMessage = 64 << 20

type request struct {
	Version string          `json:"jsonrpc"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params,omitempty"`
	ID      json.RawMessage `json:"id"`
}

type response struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}
