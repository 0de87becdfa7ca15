package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dial"
)

// piece is what an application writes at a time.
const piece = nvmf.MiB

// rawQueue writes and reads a part of a namespace with one piece in flight.
type rawQueue struct {
	queue        nvmf.Queue
	blocks       nvmf.LBA // of a piece
	first, count nvmf.LBA // of our part
	next         nvmf.LBA // where the next round starts, as a log would
	commands     []*nvmf.Command
	pieces       int
}

// serveRaw obeys "write" and "read" on standard input with "done".
func serveRaw(target string, slot, slots, mib int) error {
	// The queue polls on its thread, as it does below an application.
	runtime.LockOSThread()
	ctx := context.Background()
	id, err := nvmf.ParseTransportID(target)
	if err != nil {
		return err
	}
	dev, err := dial.Open(ctx, id, dial.Options{})
	if err != nil {
		return err
	}
	defer dev.Close()
	q, err := newRawQueue(ctx, dev, slot, slots, mib)
	if err != nil {
		return err
	}
	defer q.queue.Close()
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		op := nvmf.Read
		if strings.TrimSpace(orders.Text()) == "write" {
			op = nvmf.Write
		}
		if err := q.pass(op); err != nil {
			return err
		}
		fmt.Println("done")
	}
	return orders.Err()
}

func newRawQueue(ctx context.Context, dev nvmf.Device, slot, slots, mib int) (*rawQueue, error) {
	queue, err := dev.OpenQueue(ctx, 64)
	if err != nil {
		return nil, err
	}
	id := dev.Identity()
	q := &rawQueue{queue: queue, pieces: mib, blocks: nvmf.LBA(piece / id.LBASize)}
	q.count = id.Blocks / nvmf.LBA(slots) / q.blocks * q.blocks
	q.first = q.count * nvmf.LBA(slot)
	buf := make([]byte, piece)
	for i := range buf {
		buf[i] = byte(i*31 + slot)
	}
	for off := nvmf.Bytes(0); off < piece; off += id.OptimalTransfer {
		n := min(id.OptimalTransfer, piece-off)
		q.commands = append(q.commands, &nvmf.Command{Blocks: nvmf.LBA(n / id.LBASize), Data: [][]byte{buf[off : off+n]}})
	}
	return q, nil
}

// pass moves all pieces of a round. A read goes over what the last write wrote.
func (q *rawQueue) pass(op nvmf.Opcode) error {
	at := q.next
	for range q.pieces {
		lba := q.first + at
		for _, c := range q.commands {
			c.Opcode, c.LBA = op, lba
			lba += c.Blocks
		}
		q.queue.Submit(q.commands)
		if err := q.queue.Wait(q.commands); err != nil {
			return err
		}
		at = (at + q.blocks) % q.count
	}
	if op == nvmf.Read {
		q.next = at
	}
	return nil
}
