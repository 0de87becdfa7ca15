package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

// A tally counts operations and faults.
type tally struct {
	mu     sync.Mutex
	events map[string]int64 // number of faults by kind
	log    io.Writer        // log of events with times

	Rounds, Starts, Refused, Doubts int64
	Operations, Full, Errors        int64
	Written, Read                   int64 // bytes
	Verified, Outside               int64 // bytes
	Records                         int64 // records of shared logs
	Marks                           int64 // checked marks of complete and torn files
	Checks                          int64 // runs of fsck and verify

	longest time.Duration // longest operation
}

func newTally(log io.Writer) *tally { return &tally{events: map[string]int64{}, log: log} }

func (t *tally) add(counter *int64, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	*counter += n
}

func (t *tally) event(name string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events[name] += int64(n)
	t.say("%s: %d", name, n)
}

// pause records an operation that took long.
func (t *tally) pause(d time.Duration, actor uint8, version string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.longest = max(t.longest, d)
	t.say("operation %s of actor %d took %s", version, actor, d)
}

// note writes a message to the log.
func (t *tally) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.say(format, args...)
}

func (t *tally) say(format string, args ...any) {
	fmt.Fprintf(t.log, "%s %s\n", time.Now().Format("15:04:05.000000"), fmt.Sprintf(format, args...))
}

// print prints the table.
func (t *tally) print(out io.Writer, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	line := func(name string, n int64) { fmt.Fprintf(w, "  %s\t%s\n", name, humanize.Comma(n)) }
	size := func(name string, n int64) { fmt.Fprintf(w, "  %s\t%s\n", name, humanize.IBytes(uint64(n))) }
	fmt.Fprintf(w, "\nDone to it in %s:\n", took.Round(time.Second))
	for _, name := range slices.Sorted(maps.Keys(t.events)) {
		line(name, t.events[name])
	}
	fmt.Fprintln(w, "What it did:")
	line("rounds", t.Rounds)
	line("starts of a rank", t.Starts)
	line("starts refused while the target was away", t.Refused)
	line("operations acknowledged", t.Operations)
	size("written and acknowledged", t.Written)
	size("read and compared by the ranks", t.Read)
	line("operations refused for lack of space", t.Full)
	line("operations that failed for want of the target", t.Errors)
	fmt.Fprintf(w, "  longest pause of an operation\t%s\n", t.longest)
	line("operations in doubt at a kill, settled", t.Doubts)
	fmt.Fprintln(w, "Verified:")
	size("read back by restarted ranks", t.Verified)
	size("read from outside", t.Outside)
	line("records of files that several append to", t.Records)
	line("marks of complete and of torn files", t.Marks)
	line("runs of fsck and verify", t.Checks)
	w.Flush()
}
