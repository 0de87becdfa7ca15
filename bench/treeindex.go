package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/bench/result"
	"nvmecr/internal/owner"
	"nvmecr/internal/store"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/tree"
	"nvmecr/tree/wire"
)

// An indexClient is a client of an index in this process.
type indexClient struct {
	*tree.Client
	of   *application // application of the index; may be nil
	name string       // prefix of the names of the files that it creates
	cred microfs.Cred
	file wire.File // opened by publishNext
	made int
	end  int64 // end of the published ranges
}

// dialIndex connects to the index of the job, like a process that writes a partition,
// or like one without a partition.
func (a *application) dialIndex(partition uint32) (*indexClient, error) {
	who, err := store.Cred()
	if err != nil {
		return nil, err
	}
	fd, window, err := owner.DialIndex(store.LockGroup(a.cfg.Run), wire.MaxData, a.cfg.Timeout)
	if err != nil {
		return nil, err
	}
	// The stream has only the methods of io.ReadWriteCloser, and so no deadlines: it
	// blocks its thread, as in a rank.
	stream := struct{ io.ReadWriteCloser }{os.NewFile(uintptr(fd), "the index")}
	if err := owner.CloseWindow(window); err != nil { // no request of this process has data
		return nil, errors.Join(err, stream.Close())
	}
	hello := wire.Hello{Format: tree.Format, Run: a.cfg.Run, Partition: partition, PID: uint32(os.Getpid()), Host: "bench", Cred: who}
	c, err := tree.Connect(stream, hello, 0)
	if err != nil {
		return nil, err
	}
	return &indexClient{Client: c, of: a, cred: who, name: fmt.Sprintf("client.%d.", partition)}, nil
}

// growStore enlarges the job's store to the given number of partitions.
func (a *application) growStore(partitions int) error {
	c, err := a.dialIndex(wire.NoPartition)
	if err != nil {
		return err
	}
	_, err = c.Partitions(uint32(partitions))
	return errors.Join(err, c.Goodbye())
}

// each makes a request several times, and returns the seconds of each.
func (c *indexClient) each(times int, request func() error) (float64, error) {
	begin := time.Now()
	for range times {
		if err := request(); err != nil {
			return 0, err
		}
	}
	return time.Since(begin).Seconds() / float64(times), nil
}

// nothing makes a request that has no effect: an empty round trip.
func (c *indexClient) nothing() error {
	return c.Call(wire.OpSetCred, &wire.Cred{Cred: c.cred}, nil)
}

// introduce connects another client to the index, and closes its connection.
func (c *indexClient) introduce() error {
	another, err := c.of.dialIndex(wire.NoPartition)
	if err != nil {
		return err
	}
	return another.Goodbye()
}

func (c *indexClient) stat() error {
	var answer wire.AttrAnswer
	return c.Call(wire.OpStat, &wire.Stat{Name: wire.Name{Dir: microfs.RootIno, Path: "/"}, Follow: true}, &answer)
}

// create creates a file and closes it.
func (c *indexClient) create() error {
	c.made++
	f, err := c.open(fmt.Sprintf("%s%d", c.name, c.made))
	if err != nil {
		return err
	}
	return c.close(&f, nil)
}

// reopen opens a file for reading and closes it.
func (c *indexClient) reopen() error {
	var f wire.File
	request := wire.Open{Name: wire.Name{Dir: microfs.RootIno, Path: "read"}, Flags: unix.O_RDONLY | unix.O_CREAT, Mode: 0o600}
	if err := c.Call(wire.OpOpen, &request, &f); err != nil {
		return err
	}
	return c.Call(wire.OpClose, &wire.Close{Publication: publication(&f, nil)}, nil)
}

// open opens a file for writing.
func (c *indexClient) open(name string) (f wire.File, err error) {
	request := wire.Open{Name: wire.Name{Dir: microfs.RootIno, Path: name}, Flags: unix.O_WRONLY | unix.O_CREAT, Mode: 0o600}
	return f, c.Call(wire.OpOpen, &request, &f)
}

// close closes a file, and publishes ranges of it.
func (c *indexClient) close(f *wire.File, ranges []wire.Range) error {
	return c.Call(wire.OpClose, &wire.Close{Writer: true, Publication: publication(f, ranges)}, nil)
}

// publication returns the message that ranges of a file are in the client's partition.
func publication(f *wire.File, ranges []wire.Range) wire.Publication {
	p := wire.Publication{Ino: f.Attr.Ino, Birth: f.Attr.Birth, Cut: f.Attr.Cut, Mtime: time.Now(), Durable: true, Ranges: ranges}
	if n := len(ranges); n > 0 {
		p.Size = ranges[n-1].Off + ranges[n-1].Len
	}
	return p
}

// publishNext publishes one more range of a file.
func (c *indexClient) publishNext() (err error) {
	if c.file.Attr.Ino == 0 {
		if c.file, err = c.open(c.name + "published"); err != nil {
			return err
		}
	}
	const piece = int64(nvmf.MiB)
	p := publication(&c.file, []wire.Range{{Off: c.end, Len: piece}})
	c.end += piece
	var answer wire.AttrAnswer
	return c.Call(wire.OpPublish, &p, &answer)
}

// The requests to an index, and the number of times that a client makes each.
const indexRequests = 5000

var indexLoads = []struct {
	name    string
	request func(*indexClient) error
}{
	{"nothing", (*indexClient).nothing},
	{"stat", (*indexClient).stat},
	{"open and close", (*indexClient).reopen},
	{"create and close", (*indexClient).create},
	{"publish of one range", (*indexClient).publishNext},
	{"hello and goodbye", (*indexClient).introduce},
}

// indexRate is the rate of an index.
type indexRate struct {
	each float64 // seconds from one answer to the next with this number of clients
	cpu  float64 // processor time of the index for each request, in seconds
}

// indexRates has the rates of an index, by the name of the request and the number of clients.
type indexRates map[string]map[int]indexRate

// indexClients are the numbers of clients that make requests at the same time.
var indexClients = []int{1, 4}

// firstUnused is the first partition that belongs to no rank.
const firstUnused = 1

// indexRates starts an index for a store in memory, and makes requests from this
// process.
func (e *Env) indexRates(ctx context.Context) (rates indexRates, err error) {
	one := e.with(1)
	b := &testbed{env: one}
	defer func() { err = errors.Join(err, b.Close()) }()
	target, err := one.startTarget(ctx, memoryName(nvmf.GiB))
	if err != nil {
		return nil, err
	}
	b.closers, b.store = append(b.closers, target), target.ids
	a, err := b.application(ctx, "view=job")
	if err != nil {
		return nil, err
	}
	clients := make([]*indexClient, indexClients[len(indexClients)-1])
	if err := a.growStore(firstUnused + len(clients)); err != nil {
		return nil, err
	}
	for i := range clients {
		if clients[i], err = a.dialIndex(uint32(firstUnused + i)); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, clients[i].Goodbye()) }()
	}
	requests := indexRequests
	if e.Quick {
		requests /= 10
	}
	rates = indexRates{}
	for i, load := range indexLoads {
		e.progress("requests of the index", i, len(indexLoads))
		rates[load.name] = map[int]indexRate{}
		for _, n := range indexClients {
			best := indexRate{}
			for range 3 { // other processes may disturb a round, so the best one counts
				rate, err := ask(clients[:n], requests/n, load.request, a.server)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", load.name, err)
				}
				if best.each == 0 || rate.each < best.each {
					best = rate
				}
			}
			rates[load.name][n] = best
		}
	}
	return rates, ctx.Err()
}

// ask has clients make requests at the same time.
func ask(clients []*indexClient, times int, request func(*indexClient) error, server *daemon) (indexRate, error) {
	errs := make([]error, len(clients))
	before, begin := processTime(server.cmd.Process.Pid), time.Now()
	var pending sync.WaitGroup
	for i, c := range clients {
		pending.Go(func() { _, errs[i] = c.each(times, func() error { return request(c) }) })
	}
	pending.Wait()
	n := float64(times * len(clients))
	return indexRate{time.Since(begin).Seconds() / n, (processTime(server.cmd.Process.Pid) - before) / n}, errors.Join(errs...)
}

// index adds the rates of one index.
func (t *treeRun) index(ctx context.Context) error {
	rates, err := t.indexRates(ctx)
	if err != nil {
		return err
	}
	table := result.Table{Title: "What one index answers", Rows: "request", Note: "The best of three. Clients are threads of one process on the same processors, over a unix socket. " +
		"A create and a publication are durable in the log of the index's partition, over NVMe/TCP, when they are answered; one lock is held meanwhile."}
	for _, n := range indexClients {
		table.Columns = append(table.Columns, result.Column{Name: fmt.Sprintf("%d clients", n), Unit: "requests/s"},
			result.Column{Name: "processor of the index", Unit: result.Duration})
	}
	for _, load := range indexLoads {
		var cells []result.Cell
		for _, n := range indexClients {
			r := rates[load.name][n]
			cells = append(cells, result.Count(1/r.each), result.Count(r.cpu))
		}
		table.Add(load.name, cells...)
	}
	t.res.Tables = append(t.res.Tables, table)
	return nil
}
