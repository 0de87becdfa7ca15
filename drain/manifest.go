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
	"unicode/utf8"

	"nvmecr/internal/crc64"
)

// The package comment describes the layout. These values must not change within version 1.
const (
	manifestName  = ".nvmecr-set"
	journalPrefix = ".nvmecr-journal-"
	format        = "nvmecr-set"
	version       = 1
	// featureCompress is the feature of sets whose files are compressed.
	featureCompress = "compress"
	// featureShards is the feature of sets whose files are shards.
	featureShards = "shards"
	// SegmentSize is the number of bytes that a checksum covers.
	SegmentSize = 64 << 20
)

// maxRanks is more than any job has.
const maxRanks = 1 << 24

// ErrManifest is wrapped by errors about a manifest that is damaged, or of a later version.
var ErrManifest = errors.New("not a manifest of a drained set")

// errLater is wrapped, with ErrManifest, by errors about a manifest that a later version can read.
var errLater = errors.New("written by a later nvmecr")

// A Set is a checkpoint: files that belong together.
type Set struct {
	Store   string    `json:"store"`   // name of the store
	Pattern string    `json:"pattern"` // pattern of its series, with {step} or {name}
	Name    string    `json:"name"`    // the text in place of {step} or {name}
	Ranks   int       `json:"ranks"`   // number of ranks of the job
	Tree    bool      `json:"tree"`    // the job had one tree for all ranks, not one for each
	Ended   time.Time `json:"ended"`   // the last change of one of its files
	Drained time.Time `json:"drained"` // when it became complete; zero before
	Files   []File    `json:"files"`
	// Compress says how all files are stored.
	Compress Compression `json:"compress,omitempty"`

	// Parts are the numbers of the targets that have parts of the set, if this is one of them; Rest are the files of
	// the other parts; see Copies. Division is a checksum of the assignment of files to parts.
	Parts    []int  `json:"parts,omitempty"`
	Rest     []File `json:"rest,omitempty"`
	Division Sum    `json:"division,omitzero"`
	// Code is the erasure code, and Shard the number of this shard, if Files are shards.
	Code  Code `json:"code,omitzero"`
	Shard int  `json:"shard,omitzero"`
	// Call is set while peers help to copy; nil in a complete set.
	Call *call `json:"call,omitempty"`
	// Dir is the absolute path of its directory; "" for a set that is not stored.
	Dir string `json:"-"`
	// Shared is the number of bytes that the Put which returned the set has shared with the previous set.
	Shared int64 `json:"-"`
	// Hosts is the number of processes that copied it, in the Put which returned the set.
	Hosts int `json:"-"`

	present []part  // existing parts, in a set of Copies
	at      [][]int // for each file, the indices in present of the parts that have it
}

// A File is a regular file of a set.
type File struct {
	Rank     int       `json:"rank"` // the owner, or in a tree the writer; negative if unknown or several
	Path     string    `json:"path"` // from the root of the rank's file system, or of the tree: /melt.400.0
	Size     int64     `json:"size"` // bytes
	Mode     Mode      `json:"mode"`
	Modified time.Time `json:"modified"`
	// Sums are the checksums of its segments; empty until the set is complete.
	Sums []Sum `json:"crc64nvme,omitempty"`
	// Whole is the file that it is a shard of; nil if it is a whole file.
	Whole *Whole `json:"whole,omitempty"`
}

// A Whole describes the file to which a shard belongs.
type Whole struct {
	Size int64 `json:"size"` // bytes
	Sums []Sum `json:"crc64nvme,omitempty"`
}

// A Mode has the permission bits of a file.
type Mode uint32

// MarshalText returns at least four octal digits.
func (m Mode) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%04o", uint32(m)), nil }

// UnmarshalText parses the result of MarshalText.
func (m *Mode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 8, 12)
	*m = Mode(n)
	return err
}

// A Sum is the CRC-64/NVME of a segment.
type Sum uint64

// MarshalText returns 16 hexadecimal digits.
func (s Sum) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(s)), nil }

// UnmarshalText parses the result of MarshalText.
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

// Same reports whether two sets are the same checkpoint, even if they were found by different patterns: files of the
// same names, sizes and times; or the same shards of these.
func (s *Set) Same(other *Set) bool {
	return s.Code == other.Code && s.Shard == other.Shard && s.sameFiles(other)
}

// Covers reports whether for each file of another set this set has a file of the same name.
func (s *Set) Covers(other *Set) bool {
	names := map[string]bool{}
	for i := range s.Files {
		names[s.In(&s.Files[i])] = true
	}
	return !slices.ContainsFunc(other.Files, func(f File) bool { return !names[other.In(&f)] })
}

// sameFiles reports whether two sets are of the same files in the same order, even if one has shards.
func (s *Set) sameFiles(other *Set) bool {
	return slices.EqualFunc(s.Files, other.Files, func(f, g File) bool {
		return s.In(&f) == other.In(&g) && f.whole().Size == g.whole().Size && f.Modified.Equal(g.Modified)
	})
}

// whole returns the file to which a shard belongs, or the file itself.
func (f *File) whole() Whole {
	if f.Whole != nil {
		return *f.Whole
	}
	return Whole{f.Size, f.Sums}
}

// In returns the path of a file in the directory of the set.
func (s *Set) In(f *File) string { return inSet(s.Tree, f.Rank, f.Path) }

// inSet is In for a file of a store.
func inSet(tree bool, rank int, name string) string {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if !tree && rank >= 0 {
		name = path.Join(fmt.Sprintf("rank%d", rank), name)
	}
	return name
}

// stored returns the path under which a file is stored.
func (s *Set) stored(f *File) string { return s.In(f) + s.Compress.suffix() }

func (f *File) segments() int { return segments(f.Size) }

func (w *Whole) segments() int { return segments(w.Size) }

func segments(size int64) int { return int((size + SegmentSize - 1) / SegmentSize) }

// segment returns the offset and the length of a segment.
func (f *File) segment(i int) (off, n int64) {
	off = int64(i) * SegmentSize
	return off, min(SegmentSize, f.Size-off)
}

// check returns an error for an invalid set. Any user may have written the manifest.
func (s *Set) check(whole bool) error {
	if s.Ranks < 1 || s.Ranks > maxRanks {
		return fmt.Errorf("%w: a job of %d ranks", ErrManifest, s.Ranks)
	}
	if _, err := parseCompression(string(s.Compress)); err != nil {
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
			return fmt.Errorf("%w: a file of the checkpoint has the name %s, which is reserved for the manifest", ErrManifest, in)
		case !utf8.ValidString(f.Path): // JSON would change the name
			return fmt.Errorf("%w: file %q has a name that is not UTF-8, which a manifest cannot have: rename it", ErrManifest, f.Path)
		case whole && i < len(s.Files) && len(f.Sums) != f.segments():
			return fmt.Errorf("%w: %d checksums of file %q, of %d segments", ErrManifest, len(f.Sums), f.Path, f.segments())
		}
		seen[in] = true
	}
	return s.checkShards(whole)
}

// checkShards is check for shards.
func (s *Set) checkShards(whole bool) error {
	coded := s.Code != Code{}
	if coded {
		if err := s.Code.check(); err != nil {
			return err
		}
		if s.Shard < 0 || s.Shard >= s.Code.shards() || len(s.Parts) != s.Code.shards() || len(s.Rest) > 0 || s.Compress != Plain {
			return fmt.Errorf("%w: shard %d of %s on targets %v", ErrManifest, s.Shard, s.Code, s.Parts)
		}
	}
	for i := range s.Files {
		f := &s.Files[i]
		switch w := f.Whole; {
		case coded != (w != nil):
			return fmt.Errorf("%w: file %q: no shard, or one without a code", ErrManifest, f.Path)
		case coded && (w.Size < 0 || f.Size != s.Code.shardSize(w.Size)):
			return fmt.Errorf("%w: a shard of %d bytes of file %q of %d bytes", ErrManifest, f.Size, f.Path, w.Size)
		case coded && whole && len(w.Sums) != w.segments():
			return fmt.Errorf("%w: %d checksums of file %q, of %d segments", ErrManifest, len(w.Sums), f.Path, w.segments())
		}
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
	if s.Code != (Code{}) {
		e.Incompatible = append(e.Incompatible, featureShards)
	}
	text, err := json.MarshalIndent(e, "", "  ")
	return append(text, '\n'), err
}

// decode decodes a manifest. Its errors wrap ErrManifest.
func decode(text []byte) (*Set, error) {
	var e envelope
	if err := json.Unmarshal(text, &e); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	var set bytes.Buffer
	switch {
	case e.Format != format:
		return nil, fmt.Errorf("%w: its format is %q", ErrManifest, e.Format)
	case e.Version != version || slices.ContainsFunc(e.Incompatible, func(name string) bool { return name != featureCompress && name != featureShards }):
		return nil, fmt.Errorf("%w: version %d with features %q, %w", ErrManifest, e.Version, e.Incompatible, errLater)
	case json.Compact(&set, e.Set) != nil || crc64.Checksum(set.Bytes()) != uint64(e.Sum):
		return nil, fmt.Errorf("%w: its checksum is wrong", ErrManifest)
	}
	s := &Set{}
	if err := json.Unmarshal(e.Set, s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	return s, s.check(!s.Drained.IsZero())
}
