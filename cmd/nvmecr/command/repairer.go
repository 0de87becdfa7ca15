package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"nvmecr/drain"
	"nvmecr/internal/cli"
	"nvmecr/internal/parttable"
	"nvmecr/internal/store"
	"nvmecr/microfs"
)

// A repairer rewrites damaged parts of files: those of the store from copies, those of copies from the store or from
// other copies.
type repairer struct {
	levels levelReader
	src    *storeSource
	sets   []*drain.Set // sets of which there are copies
	killed []int        // ranks whose processes have not closed their partitions
	err    error        // why nothing can be repaired
}

func newRepairer(cmd *cobra.Command, r *reader) *repairer {
	m := &repairer{}
	m.levels.bind(&cobra.Command{}) // to read all ranks
	cfg := *r.cfg
	m.levels.cfg, m.levels.stderr = &cfg, r.stderr
	list, err := m.levels.allLevels(cmd, "")
	for i := range list {
		for _, c := range list[i].Checkpoints {
			if c.Copied != nil {
				m.sets = append(m.sets, c.Copied)
			}
		}
	}
	m.src = newStoreSource(cmd.Context(), &m.levels.reader)
	m.killed, m.err = store.Unreleased(cmd.Context(), &cfg)
	m.err = errors.Join(err, m.err)
	return m
}

func (m *repairer) close() {
	if m == nil {
		return
	}
	_ = m.src.Close() // only read
	m.levels.close()
}

// repair rewrites damaged parts of a volume from other copies, and reads them back. It sets Repaired or Lost of each.
func (m *repairer) repair(ctx context.Context, v volume, damaged []damage) {
	if err := m.repairAll(ctx, v, damaged); err != nil {
		for i := range damaged {
			damaged[i].Repaired, damaged[i].Lost = false, cli.OneLine(err)
		}
	}
}

func (m *repairer) repairAll(ctx context.Context, v volume, damaged []damage) error {
	switch {
	case m.err != nil:
		return m.err
	case m.levels.tree && slices.Contains(m.killed, v.rank):
		return errors.New("its process was killed: start a run of the store first (nvmecr run -- true)")
	}
	p, err := v.open(ctx, &m.levels.reader, store.Options{})
	if err != nil {
		return err
	}
	only := []microfs.Ino{}
	for i := range damaged {
		only = append(only, damaged[i].Ino)
		if err := m.write(p.FS, v, &damaged[i]); err != nil {
			damaged[i].Lost = cli.OneLine(err)
		}
	}
	again, err := p.FS.Verify(ctx, microfs.VerifyOptions{Only: slices.Compact(only)})
	for i := range damaged {
		d := &damaged[i]
		switch d.Repaired = !slices.ContainsFunc(again.Bad, d.overlaps); {
		case d.Repaired:
			d.Lost = ""
		case d.Lost == "":
			d.Lost = "it was rewritten, and is damaged again: the device does not keep the data"
		}
	}
	return errors.Join(err, p.Close())
}

func (d *damage) overlaps(b microfs.BadRange) bool {
	return d.Ino == b.Ino && d.Offset < b.Offset+b.Length && b.Offset < d.Offset+d.Length
}

// repairStep is the number of bytes written at once: many whole checksum units.
const repairStep = 1 << 20

// write rewrites a damaged part from the first source that has each piece of it.
func (m *repairer) write(fs *microfs.FS, v volume, d *damage) error {
	from := m.sources(v, d)
	if m.levels.cfg.CopiesSync {
		from = append(from, otherSide(fs, d.Ino))
	}
	if len(from) == 0 {
		return errors.New("there is no copy of it")
	}
	var failed error
	buf := make([]byte, min(d.Length, repairStep))
	for off, end := d.Offset, d.Offset+d.Length; off < end; off += repairStep {
		part := buf[:min(repairStep, end-off)]
		var err error
		for _, read := range from {
			e := read(part, off)
			if e == nil {
				e = fs.Repair(d.Ino, off, part)
			}
			if e == nil {
				err = nil
				break
			}
			err = cmp.Or(err, e)
		}
		failed = cmp.Or(failed, err)
	}
	return failed
}

// A partReader fills b with the bytes of a file from off on.
type partReader func(b []byte, off int64) error

// sources returns the other places of a damaged file. Their bytes are compared with the checksums before they are
// written.
func (m *repairer) sources(v volume, d *damage) (list []partReader) {
	for _, s := range m.sets {
		file := -1
		if v.rank == parttable.Copies {
			if file = s.CopyAt(v.target, d.Path); file >= 0 {
				list = append(list, s.AsCopied(v.target, file, m.stored(&s.Files[file])))
			}
		} else {
			want := s.In(&drain.File{Rank: v.rank, Path: cmp.Or(d.File, d.Path)})
			file = slices.IndexFunc(s.Files, func(f drain.File) bool { return s.In(&f) == want })
		}
		if file >= 0 {
			var read partReader = func(b []byte, off int64) error { return m.levels.copies.ReadAt(s, file, b, off) }
			if v.rank == parttable.Copies {
				read = s.AsCopied(v.target, file, read)
			}
			list = append(list, read)
		}
	}
	return list
}

// otherSide reads a file from a mirror, which skips the damaged side.
func otherSide(fs *microfs.FS, ino microfs.Ino) partReader {
	return func(b []byte, off int64) error {
		f, err := fs.OpenIno(ino, os.O_RDONLY)
		if err != nil {
			return err
		}
		_, err = f.ReadAt([][]byte{b}, off)
		return errors.Join(err, f.Close())
	}
}

// stored returns a partReader of a file in the store.
func (m *repairer) stored(f *drain.File) partReader {
	return func(b []byte, off int64) error {
		r, err := m.src.Open(f.Rank, f.Path)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		_, err = r.ReadAt(b, off)
		return errors.Join(err, r.Close())
	}
}
