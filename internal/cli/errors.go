package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

// Exit statuses of nvmecr itself. `nvmecr run` otherwise ends with that of the job.
const (
	Failure = 1 // the request failed
	Misuse  = 2 // the command line is wrong
)

// Status is an error that ends the program with that exit status and without a message.
type Status int

// Error names the status.
func (e Status) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// UsageError means that the command line is wrong, for the reason Err.
type UsageError struct{ Err error }

// Error returns the text of Err.
func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e UsageError) Unwrap() error { return e.Err }

// Execute runs the command line args of the program root and returns the exit
// status. An error is printed on stderr, on one line.
func Execute(root *cobra.Command, args []string) int {
	root.SetArgs(args)
	return Tell(root.Execute(), os.Stderr)
}

// Tell prints err on stderr, on one line, and returns the exit status: that of a Status, which is not printed; Misuse
// for a UsageError; 0 for nil.
func Tell(err error, stderr io.Writer) int {
	var code Status
	if err == nil {
		return 0
	}
	if errors.As(err, &code) {
		return int(code)
	}
	fmt.Fprintln(stderr, OneLine(err))
	if errors.As(err, new(UsageError)) {
		return Misuse
	}
	return Failure
}

// OneLine formats an error on one line, without control characters: a part of the text may come from a target.
func OneLine(err error) string {
	var line strings.Builder
	for _, c := range strings.ReplaceAll(err.Error(), "\n", "; ") {
		if unicode.IsPrint(c) {
			line.WriteRune(c)
		} else {
			line.WriteString(strings.Trim(strconv.QuoteRune(c), "'"))
		}
	}
	return "nvmecr: " + line.String()
}
