package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"nvmecr/internal/config"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/mirror"
)

// VerifyOptions has functions to which Verify reports its progress. Both may be nil.
type VerifyOptions struct {
	Total    func(nvmf.Bytes) // number of bytes to read, before reading begins
	Progress func(nvmf.Bytes) // number of bytes read since the last call
}

// confirmations limits how often a bad range that a writer keeps changing is read again.
const confirmations = 20

// A SideError is damage on one side of a mirror.
type SideError struct {
	Target nvmf.TransportID
	Err    error
}

func (e *SideError) Error() string { return fmt.Sprintf("target %s: %v", e.Target, e.Err) }

// Unwrap returns the error without the target.
func (e *SideError) Unwrap() error { return e.Err }

// Verify compares every byte of every file of a rank's partition with its checksum. In a mirror it does so on both
// sides, and the causes of bad ranges are *SideErrors. While a writer is active, the data of a read-only mount may be
// overwritten before it is read. So a range counts as bad only if a later mount finds the same bytes bad in the same
// place. For proc and errors see Open, which is called with Options.ReadOnly.
func Verify(ctx context.Context, cfg *config.Config, proc Proc, o VerifyOptions) (*microfs.VerifyReport, error) {
	return verifySides(ctx, cfg, o, func(opts Options) (*Partition, error) { return Open(ctx, cfg, proc, opts) })
}

// VerifyCopies is Verify for the copy area of target t. For errors see OpenCopies.
func VerifyCopies(ctx context.Context, cfg *config.Config, t int, o VerifyOptions) (*microfs.VerifyReport, error) {
	return verifySides(ctx, cfg, o, func(opts Options) (*Partition, error) { return OpenCopies(ctx, cfg, t, opts) })
}

// verifySides verifies the file system that open opens. In a mirror it verifies each side that can be used.
func verifySides(ctx context.Context, cfg *config.Config, o VerifyOptions, open func(Options) (*Partition, error)) (*microfs.VerifyReport, error) {
	sides := []mirrorSide{eitherSide}
	if cfg.CopiesSync {
		sides = []mirrorSide{homeSide, partnerSide}
	}
	var all *microfs.VerifyReport
	var alone error
	for _, side := range sides {
		r, err := verify(ctx, o, func() (*Partition, error) { return open(Options{ReadOnly: true, side: side}) })
		switch {
		case errors.Is(err, mirror.ErrOneSide):
			alone = err
		case err != nil:
			return nil, err
		case all == nil:
			all = r
		default:
			all.Bad, all.More = append(all.Bad, r.Bad...), all.More+r.More
		}
	}
	if all == nil {
		return nil, alone
	}
	return all, nil
}

func verify(ctx context.Context, o VerifyOptions, open func() (*Partition, error)) (*microfs.VerifyReport, error) {
	r, err := verifyOnce(ctx, o, open, nil)
	if err != nil {
		return nil, err
	}
	suspects := r.Bad
	r.Bad = nil
	for range confirmations {
		if len(suspects) == 0 {
			break
		}
		again, err := verifyOnce(ctx, VerifyOptions{}, open, inodes(suspects))
		if err != nil {
			return nil, err
		}
		var left []microfs.BadRange
		for _, b := range again.Bad {
			if slices.ContainsFunc(suspects, func(s microfs.BadRange) bool { return sameRange(&s, &b) }) {
				r.Bad = append(r.Bad, b)
			} else {
				left = append(left, b)
			}
		}
		suspects = left
	}
	r.Bad = append(r.Bad, suspects...)
	return r, nil
}

// verifyOnce verifies one mount.
func verifyOnce(ctx context.Context, o VerifyOptions, open func() (*Partition, error), only []microfs.Ino) (*microfs.VerifyReport, error) {
	p, err := open()
	if err != nil {
		return nil, err
	}
	if o.Total != nil {
		o.Total(p.FS.VerifySize())
	}
	r, err := p.FS.Verify(ctx, microfs.VerifyOptions{Only: only, Progress: o.Progress})
	if r != nil && p.side != (nvmf.TransportID{}) {
		for i := range r.Bad {
			r.Bad[i].Cause = &SideError{p.side, r.Bad[i].Cause}
		}
	}
	return r, andClosing(err, p.Close())
}

// sameRange reports whether two mounts found the same bytes bad.
func sameRange(a, b *microfs.BadRange) bool {
	return a.Ino == b.Ino && a.Offset == b.Offset && a.Length == b.Length && a.LBA == b.LBA && a.Sum == b.Sum
}

func inodes(bad []microfs.BadRange) []microfs.Ino {
	inos := []microfs.Ino{}
	for i := range bad {
		inos = append(inos, bad[i].Ino)
	}
	slices.Sort(inos)
	return slices.Compact(inos)
}
