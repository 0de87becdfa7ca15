package wire

import (
	"errors"
	"fmt"
	"syscall"

	"nvmecr/microfs"
)

// ErrGone is the error of every call once the connection has failed. It is syscall.EIO.
var ErrGone = fmt.Errorf("the index of the job's files (nvmecr serve) cannot be reached: %w", syscall.EIO)

// An Error is a message of the index with an errno, to which it unwraps.
type Error struct {
	Errno syscall.Errno
	Text  string
}

// Error returns the message.
func (e *Error) Error() string { return e.Text }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// maxText is the maximum length of an error text that is sent.
const maxText = 4096

// A failure is the body of an answer with an errno.
type failure struct {
	text   string // empty if the errno is enough
	escape string // path of a microfs.EscapeError
}

func (f *failure) fields(c *codec) {
	c.text(&f.text)
	c.text(&f.escape)
}

// failed converts an error for sending.
func failed(err error) (syscall.Errno, failure) {
	if errno, ok := err.(syscall.Errno); ok && errno != 0 {
		return errno, failure{}
	}
	var escape *microfs.EscapeError
	if errors.As(err, &escape) {
		return syscall.EXDEV, failure{escape: escape.Path}
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) || errno == 0 {
		errno = syscall.EIO
	}
	text := err.Error()
	return errno, failure{text: text[:min(len(text), maxText)]}
}

// err converts a received error.
func (f *failure) err(errno syscall.Errno) error {
	switch {
	case f.escape != "":
		return &microfs.EscapeError{Path: f.escape}
	case f.text != "":
		return &Error{Errno: errno, Text: f.text}
	}
	return errno
}
