package wire

import (
	"errors"
	"fmt"
	"syscall"

	"nvmecr/microfs"
)

// ErrGone is the error of every call once the connection has failed. It is syscall.EIO.
var ErrGone = fmt.Errorf("the index of the job's files (nvmecr serve) cannot be reached: %w", syscall.EIO)

// An Error is what the index says beside an errno, to which it unwraps.
type Error struct {
	Errno syscall.Errno
	Text  string
}

// Error is what the index said.
func (e *Error) Error() string { return e.Text }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// maxText is how much of the text of an error is sent.
const maxText = 4096

// A failure is the body of an answer with an errno.
type failure struct {
	text   string // nothing where the errno says all
	escape string // path of a microfs.EscapeError
}

func (f *failure) fields(c *codec) {
	c.text(&f.text)
	c.text(&f.escape)
}

// failed returns how an error is sent.
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

// err returns the error that was sent.
func (f *failure) err(errno syscall.Errno) error {
	switch {
	case f.escape != "":
		return &microfs.EscapeError{Path: f.escape}
	case f.text != "":
		return &Error{Errno: errno, Text: f.text}
	}
	return errno
}
