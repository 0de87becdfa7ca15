package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// errOthers is wrapped by the error of a Put that has waited in vain for the processes that copy the set together
// with it.
var errOthers = errors.New("the processes that copy the rest have not done so")

// How often the first process reads the journals of the others, and how long these may be inactive.
const (
	lookAtOthers   = 200 * time.Millisecond
	patienceOthers = 10 * time.Minute
)

// A Share is the part of one of several processes that put a set together. Each process copies, and reads back, every
// Of-th segment. The first one, with Number 0, then completes the set. No process ever writes the share of another
// one, so a late process does not write to a complete set.
type Share struct{ Number, Of int }

// has reports whether the i-th place of a set is in the share.
func (s Share) has(i int) bool { return s.Of <= 1 || i%s.Of == s.Number }

// verifyShare reads back the share of this process, and records that in the journal.
func (p *partial) verifyShare(ctx context.Context) error {
	var mine []place
	for i, at := range p.set.copied() {
		if p.set.Files[at.file].Size > 0 && p.o.Share.has(i) {
			mine = append(mine, at)
		}
	}
	return verify(ctx, p.root, p.set, mine, *p.o, func(at place) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.verified[at] = true
		return p.write(entry{File: at.file, Segment: at.segment, Sum: p.set.Files[at.file].Sums[at.segment], Verified: true})
	})
}

// meetOthers follows the copy of the share: the first process waits for the others.
func (p *partial) meetOthers(ctx context.Context, patience time.Duration) error {
	if err := p.verifyShare(ctx); err != nil || p.o.Share.Number > 0 {
		return err
	}
	return p.awaitOthers(ctx, patience)
}

// unverified returns the places that no process has read back since this process began.
func (p *partial) unverified() (list []place) {
	for _, at := range p.set.copied() {
		if !p.verified[at] {
			list = append(list, at)
		}
	}
	return list
}

// awaited returns the shares that other processes have not copied or not read back yet. A share that was read back
// before this process began is not among them, since its process may not verify it again.
func (p *partial) awaited() (shares []int) {
	for i, at := range p.set.copied() {
		number := i % p.o.Share.Of
		if p.set.Files[at.file].Size > 0 && number != p.o.Share.Number && !(p.whole(at) && (p.verified[at] || p.stale[at])) && !slices.Contains(shares, number) {
			shares = append(shares, number)
		}
	}
	return shares
}

// journaled returns how many bytes others have written to their journals.
func (p *partial) journaled() (n int64) {
	for _, read := range p.read {
		n += read
	}
	return n
}

// patience returns how long other processes may be inactive. Peers write heartbeats.
func (p *partial) patience() time.Duration {
	if p.set.Call != nil {
		return peerPatience
	}
	return patienceOthers
}

// awaitOthers waits until the others have done their shares.
func (p *partial) awaitOthers(ctx context.Context, patience time.Duration) error {
	for since, before := time.Now(), int64(-1); ; {
		if err := p.readJournals(); err != nil {
			return err
		}
		shares := p.awaited()
		if len(shares) == 0 {
			return nil
		}
		if n := p.journaled(); n != before {
			since, before = time.Now(), n
		}
		if p.left(shares) || time.Since(since) > patience {
			p.dismiss(shares)
			return fmt.Errorf("%w for %v: read their messages, and copy the checkpoint again", errOthers, patience)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lookAtOthers):
		}
	}
}
