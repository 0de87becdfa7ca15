package store

import (
	"context"
	"slices"

	"nvmecr/internal/config"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// VerifyOptions say whom Verify tells of its progress. Both may be nil.
type VerifyOptions struct {
	Total    func(nvmf.Bytes) // how much there is to read, before it begins
	Progress func(nvmf.Bytes) // how much more has been read
}

// confirmations bounds how often a bad range that a writer keeps changing is
// looked at.
const confirmations = 20

// Verify reads every byte of every file of a rank's partition against its
// checksum. Beside a writer, what a read-only mount sees may be overwritten
// before it is read: a range counts as bad only when a later mount finds the
// same bytes bad in the same place. For place and errors see Open, which it
// calls with Options.ReadOnly.
func Verify(ctx context.Context, cfg *config.Config, place Place, o VerifyOptions) (*microfs.VerifyReport, error) {
	return verify(ctx, o, func() (*Partition, error) { return Open(ctx, cfg, place, Options{ReadOnly: true}) })
}

// VerifyCopies is Verify for the copy area of target t. For errors see OpenCopies.
func VerifyCopies(ctx context.Context, cfg *config.Config, t int, o VerifyOptions) (*microfs.VerifyReport, error) {
	return verify(ctx, o, func() (*Partition, error) { return OpenCopies(ctx, cfg, t, Options{ReadOnly: true}) })
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

// verifyOnce is verify on one mount.
func verifyOnce(ctx context.Context, o VerifyOptions, open func() (*Partition, error), only []microfs.Ino) (*microfs.VerifyReport, error) {
	p, err := open()
	if err != nil {
		return nil, err
	}
	if o.Total != nil {
		o.Total(p.FS.VerifySize())
	}
	r, err := p.FS.Verify(ctx, microfs.VerifyOptions{Only: only, Progress: o.Progress})
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
