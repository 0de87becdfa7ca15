package parttable

import "errors"

// Errors of reading a table.
var (
	// ErrNoTable: the namespace was never formatted, or was released.
	ErrNoTable = errors.New("is not formatted")
	// ErrForeign: it holds data that is not ours.
	ErrForeign = errors.New("holds data of something else")
	// ErrVersion: the table is of a version, or has features, not known here.
	ErrVersion = errors.New("has a partition table of an unknown version")
	// ErrCorrupt: the magic is there but neither copy is valid.
	ErrCorrupt = errors.New("has a damaged partition table")
)

// Errors of Table.Check.
var (
	// ErrOtherName: the table is of another store.
	ErrOtherName = errors.New("belongs to another store")
	// ErrOtherOwner: the table is of another user.
	ErrOtherOwner = errors.New("belongs to another user")
	// ErrOtherSize: the job had another number of ranks.
	ErrOtherSize = errors.New("was written by a job of another size")
	// ErrOtherTree: the partitions hold something else.
	ErrOtherTree = errors.New("was formatted with another --view")
	// ErrOtherTargets: the targets were others, or in another order.
	ErrOtherTargets = errors.New("was written with other targets")
	// ErrOtherMirror: it is mirrored, and was to be opened alone, or the other way round.
	ErrOtherMirror = errors.New("was formatted with another --copies-sync")
)
