package bench

import (
	"fmt"

	"nvmecr/bench/workers"
	"nvmecr/nvmf"
)

// A stream keeps commands of one size in flight. Each command has its own buffer. The
// first command begins at the start of the rank's part of the namespace.
type stream struct {
	queue  nvmf.Queue
	op     nvmf.Opcode
	blocks nvmf.LBA // blocks of a command
	ring   []*nvmf.Command
	next   nvmf.LBA // LBA of the next command
	first  nvmf.LBA
	end    nvmf.LBA
}

// prepareStream prepares count commands, of which depth are in flight.
func (q *rawQueue) prepareStream(op nvmf.Opcode, size nvmf.Bytes, depth, count int) (workers.Work, error) {
	blocks := nvmf.LBA(size / q.id.LBASize)
	if depth < 1 || size == 0 || size%q.id.LBASize != 0 || size > q.id.MaxTransfer || blocks > q.count {
		return nil, fmt.Errorf("%d commands of %s in flight cannot be had", depth, size)
	}
	s := &stream{queue: q.queue, op: op, blocks: blocks, next: q.first, first: q.first, end: q.first + q.count}
	for range depth {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(i * 31)
		}
		s.ring = append(s.ring, &nvmf.Command{Opcode: op, Blocks: blocks, Data: [][]byte{b}})
	}
	return func() (map[string]int64, error) { return map[string]int64{"calls": int64(count)}, s.run(count) }, nil
}

// run waits for the oldest command in flight. Then it submits all completed commands
// again, in one batch.
func (s *stream) run(count int) error {
	first, idle := 0, len(s.ring) // the oldest command, and the number of idle ones before it
	for count > 0 {
		batch := s.ring[first : first+min(idle, count, len(s.ring)-first)]
		for _, c := range batch {
			if s.next+s.blocks > s.end {
				s.next = s.first
			}
			c.LBA = s.next
			s.next += s.blocks
		}
		s.queue.Submit(batch)
		count -= len(batch)
		idle -= len(batch)
		first = (first + len(batch)) % len(s.ring)
		if idle > 0 {
			continue // the rest of the batch is at the beginning of the ring
		}
		if err := s.queue.Wait(s.ring[first : first+1]); err != nil {
			return err
		}
		for idle < len(s.ring) && s.ring[(first+idle)%len(s.ring)].Done() {
			idle++
		}
	}
	return s.queue.Wait(s.ring)
}
