package drain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvmecr/internal/crc64"
)

// The layout is drawn in the package comment. Nothing here may change within version 1.
const (
	manifestName  = ".nvmecr-set"
	journalPrefix = ".nvmecr-journal-"
	format        = "nvmecr-set"
	version       = 1
	// featureCompress is the feature of sets whose files are compressed.
	featureCompress = "compress"
	// SegmentSize is how many bytes of a file have a checksum of their own.
	SegmentSize = 64 << 20
)

// maxRanks is more than any job has.
const maxRanks = 1 << 24

// ErrManifest is in errors about a manifest that cannot be used: damaged, or of a later version.
var ErrManifest = errors.New("not a manifest of a drained set")

// A Set is a checkpoint: files that belong together.
type Set struct {
	Store   string    `json:"store"`   // the name of the store that it was read from
	Pattern string    `json:"pattern"` // of its series, with {step} or {name}
	Name    string    `json:"name"`    // what stands there
	Ranks   int       `json:"ranks"`   // of the job
	Tree    bool      `json:"tree"`    // the job had one tree for all ranks, not one for each
	Ended   time.Time `json:"ended"`   // the last change of one of its files
	Drained time.Time `json:"drained"` // zero until it is whole
	Files   []File    `json:"files"`
	// Compress says how all files are stored.
	Compress Compression `json:"compress,omitempty"`

	// Parts are the numbers of the targets that have parts of the set of which this is one, and Rest the files that this part has not; see Copies.
	Parts []int  `json:"parts,omitempty"`
	Rest  []File `json:"rest,omitempty"`
	// Dir is its directory, an absolute path; "" as long as it has none.
	Dir string `json:"-"`

	present []part  // of a set of Copies
	at      [][]int // which of them have a copy of each file
}

// A File is a regular file of a set.
type File struct {
	Rank     int       `json:"rank"` // whose file it is, or in a tree who has written it; negative: no certain one's
	Path     string    `json:"path"` // from the root of the rank's files, or of the tree: /melt.400.0
	Size     int64     `json:"size"` // bytes
	Mode     Mode      `json:"mode"`
	Modified time.Time `json:"modified"`
	// Sums are the checksums of its segments; none until the set is whole.
	Sums []Sum `json:"crc64nvme,omitempty"`
}

// A Mode is the permissions of a file, as of chmod.
type Mode uint32

// MarshalText returns at least four octal digits.
func (m Mode) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%04o", uint32(m)), nil }

// UnmarshalText reads what MarshalText returns.
func (m *Mode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 8, 12)
	*m = Mode(n)
	return err
}

// A Sum is the CRC-64/NVME of a segment.
type Sum uint64

// MarshalText returns 16 hexadecimal digits.
func (s Sum) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(s)), nil }

// UnmarshalText reads what MarshalText returns.
func (s *Sum) UnmarshalText(text []byte) error {
	if len(text) != 16 {
		return fmt.Errorf("checksum %q: not 16 hexadecimal digits", text)
	}
	n, err := strconv.ParseUint(string(text), 16, 64)
	*s = Sum(n)
	return err
}

// Size returns the bytes of all files.
func (s *Set) Size() (n int64) {
	for _, f := range s.Files {
		n += f.Size
	}
	return n
}

// Same reports whether two sets are the same checkpoint, by whatever pattern they were found: files of the same names, sizes and times.
func (s *Set) Same(other *Set) bool {
	return slices.EqualFunc(s.Files, other.Files, func(f, g File) bool {
		return s.In(&f) == other.In(&g) && f.Size == g.Size && f.Modified.Equal(g.Modified)
	})
}

// In returns the path of a file in the directory of the set.
func (s *Set) In(f *File) string {
	name := strings.TrimPrefix(path.Clean("/"+f.Path), "/")
	if !s.Tree && f.Rank >= 0 {
		name = path.Join(fmt.Sprintf("rank%d", f.Rank), name)
	}
	return name
}

// stored returns the path of what is stored of a file.
func (s *Set) stored(f *File) string { return s.In(f) + s.Compress.suffix() }

func (f *File) segments() int { return int((f.Size + SegmentSize - 1) / SegmentSize) }

// segment returns where one begins and how long it is.
func (f *File) segment(i int) (off, n int64) {
	off = int64(i) * SegmentSize
	return off, min(SegmentSize, f.Size-off)
}

// check refuses what no set has: it may come from a file that anybody wrote.
func (s *Set) check(whole bool) error {
	if s.Ranks < 1 || s.Ranks > maxRanks {
		return fmt.Errorf("%w: a job of %d ranks", ErrManifest, s.Ranks)
	}
	if _, err := ParseCompression(string(s.Compress)); err != nil {
		return fmt.Errorf("%w: its compression: %w", ErrManifest, err)
	}
	seen := map[string]bool{}
	for i := range len(s.Files) + len(s.Rest) {
		var f *File
		if i < len(s.Files) {
			f = &s.Files[i]
		} else {
			f = &s.Rest[i-len(s.Files)]
		}
		in := s.In(f)
		switch {
		case !s.Tree && f.Rank >= s.Ranks || f.Size < 0 || in == "" || seen[in]:
			return fmt.Errorf("%w: file %q of %d bytes", ErrManifest, f.Path, f.Size)
		case !strings.Contains(in, "/") && (strings.HasPrefix(in, manifestName) || strings.HasPrefix(in, journalPrefix)):
			return fmt.Errorf("%w: a file of the checkpoint has the name %s, which the manifest needs", ErrManifest, in)
		case whole && i < len(s.Files) && len(f.Sums) != f.segments():
			return fmt.Errorf("%w: %d checksums of file %q, of %d segments", ErrManifest, len(f.Sums), f.Path, f.segments())
		}
		seen[in] = true
	}
	return nil
}

type envelope struct {
	Format       string          `json:"format"`
	Version      int             `json:"version"`
	Incompatible []string        `json:"incompatible,omitempty"`
	Sum          Sum             `json:"crc64nvme"`
	Set          json.RawMessage `json:"set"`
}

func encode(s *Set) ([]byte, error) {
	set, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	e := envelope{Format: format, Version: version, Sum: Sum(crc64.Checksum(set)), Set: set}
	if s.Compress != Plain {
		e.Incompatible = []string{featureCompress}
	}
	text, err := json.MarshalIndent(e, "", "  ")
	return append(text, '\n'), err
}

// decode returns the set of a manifest. Its errors are in ErrManifest.
func decode(text []byte) (*Set, error) {
	var e envelope
	if err := json.Unmarshal(text, &e); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	var set bytes.Buffer
	switch {
	case e.Format != format:
		return nil, fmt.Errorf("%w: its format is %q", ErrManifest, e.Format)
	case e.Version != version || slices.ContainsFunc(e.Incompatible, func(name string) bool { return name != featureCompress }):
		return nil, fmt.Errorf("%w: version %d with features %q, written by a later nvmecr", ErrManifest, e.Version, e.Incompatible)
	case json.Compact(&set, e.Set) != nil || crc64.Checksum(set.Bytes()) != uint64(e.Sum):
		return nil, fmt.Errorf("%w: its checksum is wrong", ErrManifest)
	}
	s := &Set{}
	if err := json.Unmarshal(e.Set, s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	return s, s.check(!s.Drained.IsZero())
}
