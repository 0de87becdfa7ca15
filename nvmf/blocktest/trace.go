package blocktest

import (
	"fmt"
	"slices"

	"nvmecr/nvmf"
)

// A Trace is the sequence of the submissions and completions of a device. Together with
// the contents of the device at its start, it determines the contents that the media
// may have after a crash at any event.
type Trace struct {
	Events []Event
}

// Event is the submission or the completion of a command.
type Event struct {
	ID        int  // ID of the command, the same in both its events
	Completed bool // completion; otherwise submission
	Opcode    nvmf.Opcode
	LBA       nvmf.LBA
	Blocks    nvmf.LBA
	FUA       bool
	Data      []byte // data of a submitted write
	Err       error  // error of a completed command
}

// String prints an event on one line, without its data.
func (e Event) String() string {
	what := "submit"
	if e.Completed {
		what = "complete"
	}
	s := fmt.Sprintf("%-8s #%d %s", what, e.ID, e.Opcode)
	if e.Blocks > 0 {
		s += fmt.Sprintf(" %d+%d", e.LBA, e.Blocks)
	}
	if e.FUA {
		s += " FUA"
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (t *Trace) submitted(id int, c *nvmf.Command) {
	if t == nil {
		return
	}
	e := Event{ID: id, Opcode: c.Opcode, LBA: c.LBA, Blocks: c.Blocks, FUA: c.FUA}
	if c.Opcode == nvmf.Write {
		e.Data = joined(c)
	}
	t.Events = append(t.Events, e)
}

func (t *Trace) completed(id int, c *nvmf.Command, err error) {
	if t == nil {
		return
	}
	t.Events = append(t.Events, Event{ID: id, Completed: true, Opcode: c.Opcode, LBA: c.LBA, Blocks: c.Blocks, FUA: c.FUA, Err: err})
}

func (t *Trace) clone() *Trace {
	if t == nil {
		return nil
	}
	return &Trace{Events: slices.Clone(t.Events)}
}
