package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// errOthers is in the error of a Put that has waited in vain for those who copy the set together with it.
var errOthers = errors.New("the processes that copy the rest have not done so")

// How often the first process looks at what the others have done, and how long they may do nothing.
const (
	lookAtOthers   = 200 * time.Millisecond
	patienceOthers = 10 * time.Minute
)

// A Share is the part of one of several processes that put a set together. Each copies, and reads back, every Of-th segment; the first one, of Number 0,
// then makes a whole set of what all have copied. Nobody ever writes what is in the share of another one, so a process that is late writes nothing to a set that is whole.
type Share struct{ Number, Of int }

// has reports whether the i-th place of a set is in the share.
func (s Share) has(i int) bool { return s.Of <= 1 || i%s.Of == s.Number }

// verifyShare reads back what this process has to copy, and tells the others.
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

// meetOthers does what a process does that has copied its share: the first one waits for the others.
func (p *partial) meetOthers(ctx context.Context, patience time.Duration) error {
	if err := p.verifyShare(ctx); err != nil || p.o.Share.Number > 0 {
		return err
	}
	return p.awaitOthers(ctx, patience)
}

// unverified returns what nobody has read back since this process began.
func (p *partial) unverified() (list []place) {
	for _, at := range p.set.copied() {
		if !p.verified[at] {
			list = append(list, at)
		}
	}
	return list
}

// awaited returns the shares that others have not copied yet, or not read back. What they had read back when this process began they may not read once more.
func (p *partial) awaited() (shares []int) {
	for i, at := range p.set.copied() {
		number := i % p.o.Share.Of
		if p.set.Files[at.file].Size > 0 && number != p.o.Share.Number && !(p.whole(at) && (p.verified[at] || p.stale[at])) && !slices.Contains(shares, number) {
			shares = append(shares, number)
		}
	}
	return shares
}

// journaled is how much others have written to their journals.
func (p *partial) journaled() (n int64) {
	for _, read := range p.read {
		n += read
	}
	return n
}

// patience is how long others may show nothing: peers always show that they live.
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
			return fmt.Errorf("%w for %v: see what they say, and copy the checkpoint once more", errOthers, patience)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lookAtOthers):
		}
	}
}
