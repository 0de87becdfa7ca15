package command

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"nvmecr/internal/cli"
	"nvmecr/nvmf"
)

// lineLogger returns a function that prints a message on w, in one line. Any goroutine may call it.
func lineLogger(w io.Writer) func(format string, args ...any) {
	return func(format string, args ...any) { fmt.Fprintln(w, cli.OneLine(fmt.Errorf(format, args...))) }
}

// count formats a number with its noun: "1 rank", "2 ranks".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// countOf is count for nouns with an irregular plural.
func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// size formats a number of bytes for people.
func size(n nvmf.Bytes) string { return humanize.IBytes(uint64(n)) }

// printable returns a file name for the terminal. A name with characters that are not printable is quoted.
func printable(name string) string {
	strange := func(c rune) bool { return !unicode.IsPrint(c) }
	if !utf8.ValidString(name) || strings.ContainsFunc(name, strange) {
		return strconv.Quote(name)
	}
	return name
}

// modeText formats a mode like ls -l.
func modeText(m fs.FileMode) string {
	if m&fs.ModeSymlink != 0 {
		return "l" + m.Perm().String()[1:]
	}
	return m.String()
}

// completeness returns whether a file is complete; "-" if it is not a regular file.
func completeness(e *entry) string {
	switch {
	case !e.Mode.IsRegular():
		return "-"
	case e.Complete:
		return "yes"
	}
	return "no"
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
