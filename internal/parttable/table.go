package parttable

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"nvmecr/nvmf"
)

// HeadSize is the size of the table at the start of a namespace. Partitions begin behind it.
const HeadSize = 2 * slotSize

// MaxEntries is the maximum number of partitions of a namespace.
const MaxEntries = int((slotSize - headerSize - RunRecordSize) / entrySize)

// maxEntries is the maximum number of entries of a table that an earlier version wrote.
const maxEntries = int((slotSize - headerSize) / entrySize)

// MaxName is the maximum length of the name of a store.
const MaxName = 64

// Singleton is the rank in the entry of the singleton partition, of job scripts and programs without a launcher.
const Singleton = -1

// Shards is the incompatible feature of a store with one tree for all ranks: the singleton partition has the names, and the partitions
// of ranks have shards of its files (docs/dev/tree.md).
const Shards = 1 << 0

// CopyArea is the incompatible feature of a namespace with a copy area (Table.Copies): a program that does not know the area would give
// it to ranks.
const CopyArea = 1 << 1

// Mirrored is the incompatible feature of a namespace whose first half is mirrored on another one (package mirror): a program that does
// not know it would write to one side only.
const Mirrored = 1 << 2

// Copies is the rank of the copy area in lists of partitions.
const Copies = -4

// A Table is the content of a partition table.
type Table struct {
	// Features, as masks; see the package comment.
	Incompatible, ReadOnlyCompatible, Compatible uint64

	Sequence   uint64 // set by Write
	Name       string
	UID        uint32
	Generation uint64
	Namespace  uuid.UUID // for people; a copied namespace keeps it
	JobSize    int
	Target     int // index of this namespace in the store
	Targets    int // number of namespaces of the store
	Hugeblock  nvmf.Bytes
	Created    time.Time
	Written    time.Time // set by Write
	Entries    []Entry   // ascending, by rank and by start
	Copies     Extent    // the copy area, with the feature CopyArea
}

// An Extent is a part of a namespace.
type Extent struct{ Start, Length nvmf.Bytes }

// End returns the end of the space for partitions on a namespace of that capacity.
func (t *Table) End(capacity nvmf.Bytes) nvmf.Bytes {
	if t.Incompatible&CopyArea != 0 {
		return t.Copies.Start
	}
	return capacity
}

// Empty reports whether the namespace has no partition; it may have a copy area. Ranks treat it as unformatted, and keep the area.
func (t *Table) Empty() bool { return len(t.Entries) == 0 }

// FileSystems returns the partitions, followed by the copy area, if any.
func (t *Table) FileSystems() []Entry {
	if t.Incompatible&CopyArea == 0 {
		return t.Entries
	}
	return append(slices.Clip(t.Entries), Entry{Rank: Copies, Start: t.Copies.Start, Length: t.Copies.Length})
}

// An Entry is one partition.
type Entry struct {
	Rank          int // or Singleton
	Flags         uint32
	Start, Length nvmf.Bytes
}

// Entry returns the partition of rank, or the copy area.
func (t *Table) Entry(rank int) (Entry, bool) {
	for _, e := range t.FileSystems() {
		if e.Rank == rank {
			return e, true
		}
	}
	return Entry{}, false
}

// SingletonEntry returns the singleton partition. In a store of one rank it is that of the rank.
func (t *Table) SingletonEntry() (Entry, bool) {
	if t.JobSize == 1 {
		return t.Entry(0)
	}
	return t.Entry(Singleton)
}

// Tree returns the kind of tree of the store.
func (t *Table) Tree() Tree {
	if t.Incompatible&Shards != 0 {
		return TreeOfJob
	}
	return TreeOfRanks
}

// Keeper returns the rank whose process repairs damaged copies of the table: the lowest rank with a partition here, otherwise
// Singleton, or Copies if there is only a copy area.
func (t *Table) Keeper() int {
	keeper := Singleton
	if t.Empty() {
		return Copies
	}
	for _, e := range t.Entries {
		if e.Rank != Singleton && (keeper == Singleton || e.Rank < keeper) {
			keeper = e.Rank
		}
	}
	return keeper
}

// version returns the version to write: the lowest that can hold the table.
func (t *Table) version() uint32 {
	last := -1
	for _, e := range t.Entries {
		if e.Rank <= last || e.Rank >= t.JobSize {
			return version2
		}
		last = e.Rank
	}
	return version1
}

// A Tree is the kind of file systems in the partitions of a store.
type Tree int

// Kinds of trees.
const (
	AnyTree     Tree = iota
	TreeOfRanks      // each a file system of its own
	TreeOfJob        // one file system together: Shards
)

// Want is what a process expects of a table.
type Want struct {
	Name string
	UID  uint32
	// AnyUser accepts the table of another user, for root to read or release it.
	AnyUser bool
	// Size is the number of ranks; 0 accepts any number.
	Size int
	// Tree is the required kind of tree.
	Tree Tree
	// Target is the index of the namespace among Targets; Targets 0 accepts any.
	Target, Targets int
	// Mirrored is whether the namespace is opened as part of a mirror; if Targets is 0, both are accepted.
	Mirrored bool
	// ReadOnly accepts features that forbid only writing.
	ReadOnly bool
}

// Check returns an error unless the table is as w requires. The error names the difference and a remedy.
func (t *Table) Check(w Want) error {
	switch {
	case t.Incompatible&^(Shards|CopyArea|Mirrored) != 0 || t.ReadOnlyCompatible != 0 && !w.ReadOnly:
		return fmt.Errorf("%w: features %#x and %#x; use the nvmecr that wrote it",
			ErrVersion, t.Incompatible, t.ReadOnlyCompatible)
	case t.Name != w.Name:
		return fmt.Errorf("%w: to %q of user %d, this one is %q; use another target, or --name %s, or free it with: nvmecr release --name %s",
			ErrOtherName, t.Name, t.UID, w.Name, t.Name, t.Name)
	case t.UID != w.UID && !w.AnyUser:
		return fmt.Errorf("%w: %q of user %d, this one runs as user %d; use another target, or let that user release it",
			ErrOtherOwner, t.Name, t.UID, w.UID)
	case w.Targets != 0 && (t.Target != w.Target || t.Targets != w.Targets):
		return fmt.Errorf("%w: it was number %d of %d and is now number %d of %d; name the same targets in the same order, or start over with --fresh, which deletes the checkpoints",
			ErrOtherTargets, t.Target+1, t.Targets, w.Target+1, w.Targets)
	case w.Targets != 0 && w.Mirrored != (t.Incompatible&Mirrored != 0):
		return fmt.Errorf("%w; give it to each command that names targets, or leave it out, as when the store was made; or start over with --fresh, which deletes the checkpoints",
			ErrOtherMirror)
	case w.Tree != AnyTree && w.Tree != t.Tree():
		return fmt.Errorf("%w: it was formatted with --view=%s, and keeps that; leave --view out, use another --name, or start over with --fresh, which deletes the checkpoints",
			ErrOtherTree, t.Tree())
	case w.Size != 0 && t.JobSize != w.Size:
		return fmt.Errorf("%w: %d ranks, this one has %d; start %d ranks, or start over with --fresh, which deletes the checkpoints",
			ErrOtherSize, t.JobSize, w.Size, t.JobSize)
	}
	return nil
}

// String returns the value of --view.
func (t Tree) String() string {
	return [...]string{AnyTree: "any", TreeOfRanks: "rank", TreeOfJob: "job"}[t]
}

// CheckName returns an error unless name can be the name of a store: 1 to 64
// of A-Z a-z 0-9 . _ - and neither "." nor "..".
func CheckName(name string) error {
	ok := len(name) >= 1 && len(name) <= MaxName && name != "." && name != ".."
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("._-", c) >= 0
	}
	if !ok {
		return fmt.Errorf("%q is not 1 to %d letters, digits, dots, dashes or underscores", name, MaxName)
	}
	return nil
}

// validate returns an error unless the table is valid on a namespace of capacity bytes, in a version. Hostile media can have valid
// checksums.
func (t *Table) validate(version uint32, capacity nvmf.Bytes) error {
	if err := CheckName(t.Name); err != nil {
		return fmt.Errorf("name %w", err)
	}
	h := t.Hugeblock
	switch {
	case t.Generation == 0:
		return fmt.Errorf("generation 0")
	case h < 4*nvmf.KiB || h > 4*nvmf.MiB || h&(h-1) != 0:
		return fmt.Errorf("hugeblock of %d bytes", h)
	case t.Targets < 1 || t.Target < 0 || t.Target >= t.Targets:
		return fmt.Errorf("target %d of %d", t.Target, t.Targets)
	case t.JobSize < 1 || version == version1 && len(t.Entries) > t.JobSize:
		return fmt.Errorf("%d partitions for %d ranks", len(t.Entries), t.JobSize)
	case len(t.Entries) > maxEntries:
		return fmt.Errorf("%d partitions, at most %d fit a table", len(t.Entries), maxEntries)
	}
	if version < t.version() {
		return fmt.Errorf("ranks that are not in ascending order below %d", t.JobSize)
	}
	if t.Incompatible&CopyArea != 0 && (t.Copies.Start < HeadSize || t.Copies.Start > capacity || t.Copies.Length == 0 || t.Copies.Length > capacity-t.Copies.Start) {
		return fmt.Errorf("copy area at %d, %d bytes long", t.Copies.Start, t.Copies.Length)
	}
	capacity = t.End(capacity)
	// They are ascending, so they do not overlap.
	end, ranks := HeadSize, make(map[int]bool)
	for _, e := range t.Entries {
		if e.Rank < Singleton || ranks[e.Rank] {
			return fmt.Errorf("rank %d, which cannot be or is there twice", e.Rank)
		}
		if e.Start < end || e.Length == 0 || e.Start > capacity || e.Length > capacity-e.Start {
			return fmt.Errorf("partition of rank %d at %d, %d bytes long", e.Rank, e.Start, e.Length)
		}
		if end = e.Start + e.Length; version > version1 { // in version 1 they ascend
			ranks[e.Rank] = true
		}
	}
	return nil
}
