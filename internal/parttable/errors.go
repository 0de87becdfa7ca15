package parttable

import "errors"

// Errors of reading a table.
var (
	// ErrNoTable means that the namespace was never formatted, or was released.
	ErrNoTable = errors.New("is not formatted")
	// ErrForeign means that the namespace has data that is not nvmecr's.
	ErrForeign = errors.New("holds data of something else")
	// ErrVersion means that the table has an unknown version, or unknown features.
	ErrVersion = errors.New("has a partition table of an unknown version")
	// ErrCorrupt means that the magic is present but neither copy is valid.
	ErrCorrupt = errors.New("has a damaged partition table")
)

// Errors of Table.Check.
var (
	// ErrOtherName means that the table belongs to another store.
	ErrOtherName = errors.New("belongs to another store")
	// ErrOtherOwner means that the table belongs to another user.
	ErrOtherOwner = errors.New("belongs to another user")
	// ErrOtherSize means that the job had another number of ranks.
	ErrOtherSize = errors.New("was written by a job of another size")
	// ErrOtherTree means that the partitions have another kind of tree.
	ErrOtherTree = errors.New("was formatted with another --view")
	// ErrOtherTargets means that the targets differ, or have another order.
	ErrOtherTargets = errors.New("was written with other targets")
	// ErrOtherMirror means that a mirrored namespace is opened alone, or one that is not mirrored as a mirror.
	ErrOtherMirror = errors.New("was formatted with another --copies-sync")
)
