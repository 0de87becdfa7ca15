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

// lineLogger returns a function that tells something on w, in a line. Any goroutine may call it.
func lineLogger(w io.Writer) func(format string, args ...any) {
	return func(format string, args ...any) { fmt.Fprintln(w, cli.OneLine(fmt.Errorf(format, args...))) }
}

// count says so many of what: "1 rank", "2 ranks".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// countOf is count for words with a plural of their own.
func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// size is a number of bytes for people.
func size(n nvmf.Bytes) string { return humanize.IBytes(uint64(n)) }

// printable is a file's name for the terminal: quoted if it has anything that
// would not stand there as itself.
func printable(name string) string {
	strange := func(c rune) bool { return !unicode.IsPrint(c) }
	if !utf8.ValidString(name) || strings.ContainsFunc(name, strange) {
		return strconv.Quote(name)
	}
	return name
}

// modeText is a mode as ls -l has it.
func modeText(m fs.FileMode) string {
	if m&fs.ModeSymlink != 0 {
		return "l" + m.Perm().String()[1:]
	}
	return m.String()
}

// completeness says whether a file is complete; "-" where there is no such
// question.
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
