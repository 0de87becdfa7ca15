//go:build !cgo

package tls

import (
	"errors"
	"fmt"
)

// A session cannot be created in a program built without cgo.
type session struct{}

var errClosed = errors.New("closed by the other end")

func unavailable() error {
	return fmt.Errorf("%w: this program was built without cgo (CGO_ENABLED=0)", ErrUnavailable)
}

func newClient(Key) (*session, error)    { return nil, unavailable() }
func newServer(finder) (*session, error) { return nil, unavailable() }

func (*session) free()                    {}
func (*session) handshake() (bool, error) { return false, unavailable() }
func (*session) read([]byte) (int, error) { return 0, unavailable() }
func (*session) write([]byte) error       { return unavailable() }
func (*session) closeNotify()             {}
func (*session) feed([]byte) error        { return unavailable() }
func (*session) drain([]byte) int         { return 0 }
