package drain

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// peerDir contains an empty file for each peer: RUN.ID.
const peerDir = ".peers"

// A peer looks for calls at most once per peerLook. While it works on a call it writes to its journal as often. A
// peer that writes nothing for peerPatience is considered dead.
const (
	peerLook     = 2 * time.Second
	peerPatience = time.Minute
)

// Thousands of idle peers load a file system. So the pause before the next look grows with the time since the last
// call: it is 1/idleShare of that time, and at most peerPause. A peer then starts late by a small part of the time
// between two sets. Also, a peer spends at most 1/lookShare of its time on looking.
const (
	peerPause = 10 * time.Second
	idleShare = 16
	lookShare = 100
)

// callMark separates label and ID in the names of directories with a call. No label contains it.
const callMark = "+"

// errWithdrawn means that a peer has to stop: the set is complete, or another process has taken it over.
var errWithdrawn = errors.New("the call has been withdrawn")

// A call names the peers that help to copy a set. It is in the manifest until the set is complete. A directory is
// used for one call only.
type call struct {
	Peers      []string `json:"peers"`           // the first one has share 1, and so on
	Limit      int64    `json:"limit,omitempty"` // bytes per second, for each process
	Background bool     `json:"background,omitempty"`
}

// A ClosingSource is a Source that a peer closes.
type ClosingSource interface {
	Source
	io.Closer
}

// Join copies a share of each set that a Put with Options.Peers of the same run copies, until ctx ends. For each set it calls open, which opens the store. After an error the
// caller may join again.
func (l *Level) Join(ctx context.Context, run string, o Options, open func(ctx context.Context, background bool) (ClosingSource, error)) error {
	p := &peer{Level: l, name: run + "." + uuid.NewString(), o: o, open: open, seen: map[string]bool{}, called: time.Now()}
	defer func() { _ = l.root.Remove(path.Join(peerDir, p.name)) }() // tells a Put that waits for this peer
	for {
		begin := time.Now()
		if err := l.enroll(p.name); err != nil {
			return err
		}
		looked, err := p.answerAll(ctx, begin)
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(peerLook, min(time.Since(p.called)/idleShare, peerPause), lookShare*looked)):
		}
	}
}

// A peer is a process that has joined.
type peer struct {
	*Level
	name string
	o    Options
	open func(ctx context.Context, background bool) (ClosingSource, error)
	seen map[string]bool // directories whose calls have been answered
	// called is the end of the last call that this peer has answered, or the time when it joined.
	called time.Time
}

// enroll creates the file by which Puts find the peer, also after a Put has given the peer up.
func (l *Level) enroll(name string) error {
	name = path.Join(peerDir, name)
	f, err := l.root.Open(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if errors.Is(err, fs.ErrNotExist) { // no directory: the first peer of the store
		if err = l.root.MkdirAll(peerDir); err == nil {
			f, err = l.root.Open(name, os.O_WRONLY|os.O_CREATE, 0o666)
		}
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// enrolled returns the peers of a run. It removes the files of other runs, which have ended.
func (l *Level) enrolled(run string) (names []string) {
	all, _ := l.in(peerDir) // after an error the set is copied without peers
	for _, name := range all {
		if strings.HasPrefix(name, run+".") {
			names = append(names, name)
		} else {
			_ = l.root.Remove(path.Join(peerDir, name))
		}
	}
	return names
}

// in lists a directory of the level. A directory that does not exist is empty.
func (l *Level) in(dir string) ([]string, error) {
	d, err := l.root.Sub(dir)
	if err == nil {
		defer d.Close()
		var names []string
		if names, err = d.List(); err == nil {
			return names, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return nil, err
}

// callPeers returns the call for the peers of the run, or nil if there are none. It changes o to the share and the rate of this process.
func (l *Level) callPeers(s *Set, o *Options) *call {
	if o.Peers == "" {
		return nil
	}
	names := l.enrolled(o.Peers)
	names = names[:min(len(names), max(len(s.copied())-1, 0))]
	if len(names) == 0 {
		return nil
	}
	o.Share = Share{Of: len(names) + 1}
	if o.Limit > 0 {
		o.Limit = max(o.Limit/int64(o.Share.Of), 1)
	}
	return &call{names, o.Limit, o.Background}
}

// answerAll answers all present calls, and returns how long the search for them took.
func (p *peer) answerAll(ctx context.Context, begin time.Time) (looked time.Duration, err error) {
	dirs, err := p.in(partialDir)
	looked = time.Since(begin)
	for _, dir := range dirs {
		if err == nil && strings.Contains(dir, callMark) && !p.seen[dir] {
			err = p.answer(ctx, dir)
		}
	}
	return looked, err
}

// answer copies the share of this peer, if the set has a call for it.
func (p *peer) answer(ctx context.Context, dir string) error {
	o := p.o
	set := newPartial(path.Join(partialDir, dir), &o)
	err := set.reopen(p.Level)
	if errors.Is(err, fs.ErrNotExist) { // no manifest: the Put has just begun, or ended
		return nil
	}
	p.seen[dir] = true
	if err != nil {
		return err
	}
	defer set.close()
	number := 0
	if c := set.set.Call; c != nil {
		number = slices.Index(c.Peers, p.name) + 1
		o.Share, o.Limit, o.Background = Share{number, len(c.Peers) + 1}, c.Limit, c.Background
	}
	if number == 0 {
		return nil
	}
	defer func() { p.called = time.Now() }()
	if err = set.answer(ctx, p.open); err != nil && set.withdrawn() {
		err = nil
	}
	return err
}

// reopen opens the directory of a set that another process has begun, and its manifest.
func (p *partial) reopen(l *Level) (err error) {
	p.level = l
	if p.root, err = l.root.Sub(p.name); err != nil {
		return err
	}
	text, err := readFile(p.root, manifestName)
	if err == nil {
		p.set, err = decode(text)
	}
	if err != nil {
		p.close()
	}
	return err
}

// answer copies the share of this process, and reads it back.
func (p *partial) answer(ctx context.Context, open func(context.Context, bool) (ClosingSource, error)) error {
	if err := p.startJournal(); err != nil {
		return err
	}
	ctx, end := p.heartbeat(ctx)
	defer end()
	src, err := open(ctx, p.o.Background)
	if err != nil {
		return err
	}
	p.share()
	if err = p.copy(ctx, src); err == nil {
		err = p.verifyShare(ctx)
	}
	return errors.Join(err, src.Close())
}

// heartbeat writes empty lines to the journal until end is called. It cancels the context when the call has been
// withdrawn.
func (p *partial) heartbeat(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var beats sync.WaitGroup
	beats.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(peerLook):
			}
			if p.o.at("beat") != nil || p.withdrawn() {
				cancel(errWithdrawn)
				return
			}
			p.mu.Lock()
			_, _ = p.journal.Write([]byte("\n")) // after an error the next entry fails, too
			p.mu.Unlock()
		}
	})
	return ctx, func() { cancel(nil); beats.Wait() }
}

// withdrawn reports whether the set has left its directory: it is complete, or another process has taken it over.
func (p *partial) withdrawn() bool {
	_, err := p.level.root.Size(path.Join(p.name, manifestName))
	return err != nil
}

// left reports whether one of the peers with these shares has removed its file.
func (p *partial) left(shares []int) bool {
	return p.set.Call != nil && slices.ContainsFunc(shares, func(number int) bool {
		_, err := p.level.root.Size(path.Join(peerDir, p.set.Call.Peers[number-1]))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// dismiss removes the files of the peers with these shares. A peer that is alive creates its file again.
func (p *partial) dismiss(shares []int) {
	for _, number := range shares {
		if p.set.Call != nil {
			_ = p.level.root.Remove(path.Join(peerDir, p.set.Call.Peers[number-1])) // the peer may have removed it
		}
	}
}
