package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// actors is the number of actors of a rank.
const actors = 2

// An operation is an operation that an actor begins: see rank.c.
type operation struct {
	source
	verb string
	args []string
}

func (o *operation) name(i int) string { return o.args[i] }

// number is an argument that the parser has checked.
func (o *operation) number(i int) int64 {
	n, _ := strconv.ParseInt(o.args[i], 10, 64)
	return n
}

func (o *operation) String() string {
	return fmt.Sprintf("%v: %s %s", o.source, o.verb, strings.Join(o.args, " "))
}

// writes reports whether o writes data to a file.
func (o *operation) writes() bool {
	return o.verb == "stream" || o.verb == "write" || o.verb == "pwrite"
}

// pieces reports whether any prefix of the data of o may be written after a crash: o takes several calls, or is larger than an atomic
// write.
func (o *operation) pieces(whole int64) bool {
	return o.verb == "stream" || o.writes() && o.number(2) > whole
}

// arguments of each verb: a name or handle, or # for a number.
var arguments = map[string]string{
	"mkdir": "n", "rmdir": "n", "unlink": "n", "symlink": "nn", "link": "nn", "rename": "nn",
	"truncate": "n#", "stat": "n", "open": "nnn", "close": "n", "fsync": "n", "ftruncate": "n#",
	"read": "n##", "write": "n##", "pwrite": "n##", "stream": "n##",
}

func parseOperation(s source, words []string) (*operation, error) {
	if len(words) == 0 || len(words) != len(arguments[words[0]])+1 {
		return nil, fmt.Errorf("not an operation: %q", words)
	}
	o := &operation{s, words[0], words[1:]}
	for i, kind := range arguments[o.verb] {
		if n, err := strconv.ParseInt(o.args[i], 10, 64); kind == '#' && (err != nil || n < 0) {
			return nil, fmt.Errorf("not an operation: %q", words)
		}
	}
	return o, nil
}

func parseResult(words []string) (result, error) {
	if len(words) < 2 {
		return result{}, fmt.Errorf("not a result: %q", words)
	}
	n, err := strconv.ParseInt(words[0], 10, 64)
	errno, err2 := strconv.Atoi(words[1])
	return result{n, syscall.Errno(errno), words[2:]}, errors.Join(err, err2)
}

// A history has the operations of one actor, read from its journal.
type history struct {
	rank, number int
	model        *model
	pending      *operation // begun but not ended
	killed       bool       // its process has ended since the last copy that was checked

	starts  int
	reached bool // a rank has copied its files at least once
}

func (w *history) source(version uint64) source {
	return source{uint8(w.rank*actors + w.number + 1), uint32(version)}
}

// A checker reads the journals of one round, and compares them with the models.
type checker struct {
	dir       string // directory of the round, with journals and copies
	excused   func(starting bool, at int64) bool
	whole     int64 // the largest atomic write
	tree      bool  // a write in doubt may be missing where other ranks have written
	tally     *tally
	histories []*history
}

// readJournals follows the journals of the round to their ends.
func (c *checker) readJournals() error {
	var errs []error
	for _, w := range c.histories {
		name := filepath.Join(c.dir, fmt.Sprintf("r%d.a%d.journal", w.rank, w.number))
		if err := c.follow(w, name); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (c *checker) follow(w *history, name string) error {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // killed before it began
	}
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	for line := 1; ; line++ {
		text, err := r.ReadString('\n')
		if err != nil {
			return nil // the last line is truncated
		}
		words := strings.Fields(text)
		if len(words) < 3 || words[len(words)-1] != "." {
			continue // truncated
		}
		if err := c.line(w, words[:len(words)-1]); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}

func (c *checker) line(w *history, words []string) error {
	if words[0] == "=" {
		return c.happened(w, words[1], words[2:])
	}
	version, err := strconv.ParseUint(words[0], 10, 32)
	switch {
	case err != nil:
		return fmt.Errorf("not a line of a journal: %q", words)
	case words[1] == ">" && w.pending == nil && !w.killed:
		w.pending, err = parseOperation(w.source(version), words[2:])
		return err
	case words[1] == "<" && w.pending != nil && w.pending.version == uint32(version):
		r, err := parseResult(words[2:])
		if err != nil {
			return err
		}
		return c.ended(w, r)
	}
	return fmt.Errorf("this line is out of order: %q", words)
}

// happened records an event of the rank. All actors of a rank record it; it is counted once.
func (c *checker) happened(w *history, what string, words []string) error {
	first := w.number == 0
	switch {
	case what == "start":
		w.killed = true
		w.starts++
		if first {
			c.tally.add(&c.tally.Starts, 1)
		}
	case what == "readback" && len(words) == 1:
		w.reached = true
		return c.verifyReadback(w, filepath.Join(c.dir, "readback", words[0]))
	case what == "refused" && len(words) == 2:
		if err := c.refused(words[0], words[1]); err != nil {
			return fmt.Errorf("the mount was refused: %w", err)
		}
		if first {
			c.tally.add(&c.tally.Refused, 1)
		}
	case what == "paused" && len(words) == 2:
		ms, err := strconv.ParseInt(words[0], 10, 64)
		if err != nil {
			return err
		}
		c.tally.pause(time.Duration(ms)*time.Millisecond, w.source(0).actor, words[1])
	case what == "unreadable" && len(words) > 2:
		if err := c.refused(words[0], words[1]); err != nil {
			return fmt.Errorf("a rank cannot read %s: %w", strings.Join(words[2:], " "), err)
		}
		if first {
			c.tally.add(&c.tally.Errors, 1)
		}
	case what == "died":
		return fmt.Errorf("a rank is at its end: %q", words)
	}
	return nil
}

// refused checks an errno and its time.
func (c *checker) refused(at, errno string) error {
	when, err := strconv.ParseInt(at, 10, 64)
	number, err2 := strconv.Atoi(errno)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if c.excused(false, when) {
		return nil
	}
	return syscall.Errno(number)
}

// ended applies the pending operation to the model and compares the results.
func (c *checker) ended(w *history, got result) error {
	o := w.pending
	switch {
	case got.errno == syscall.ENOSPC:
		w.pending = nil
		c.tally.add(&c.tally.Full, 1)
		w.model.doubt(o)
		return nil // has changed nothing that is acknowledged
	case len(got.more) == 1 && got.n < 0: // an errno with its time
		if err := c.refused(got.more[0], strconv.Itoa(int(got.errno))); err != nil {
			return fmt.Errorf("%v: %w", o, err)
		}
		c.tally.add(&c.tally.Errors, 1)
		return nil // stays in doubt: the rank ends
	}
	w.pending = nil
	limit := o.limit()
	short := got.errno == 0 && got.n > 0 && got.n < limit
	if short {
		limit = got.n
	}
	want, err := w.model.apply(o, limit)
	if err != nil {
		return err
	}
	if want.n != got.n || want.errno != got.errno {
		return fmt.Errorf("%v: expected %d (%v), got %d (%v)", o, want.n, want.errno, got.n, got.errno)
	}
	for i := range want.more {
		if i >= len(got.more) || want.more[i] != got.more[i] {
			return fmt.Errorf("%v: expected %q, got %q", o, want.more[i:], got.more[min(i, len(got.more)):])
		}
	}
	c.tally.add(&c.tally.Operations, 1)
	switch {
	case o.verb == "read":
		c.tally.add(&c.tally.Read, got.n)
	case limit != noLimit:
		c.tally.add(&c.tally.Written, got.n)
	}
	return nil
}

const noLimit = 1 << 62

// limit returns the number of bytes that o writes.
func (o *operation) limit() int64 {
	if o.writes() {
		return o.number(2)
	}
	return noLimit
}
