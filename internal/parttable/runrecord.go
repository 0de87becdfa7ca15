package parttable

import "nvmecr/nvmf"

// RunRecordSize is the size of a copy of the run record, at the end of each slot.
const RunRecordSize nvmf.Bytes = 4096

// RunRecordOffset returns the offset of copy 0 or 1 of the run record in the namespace.
func RunRecordOffset(copy int) nvmf.Bytes { return CopyOffset(copy) + slotSize - RunRecordSize }

// HasRunRecord reports whether the table leaves space for a run record. A table of an earlier version with more than MaxEntries
// partitions does not.
func (t *Table) HasRunRecord() bool { return len(t.Entries) <= MaxEntries }
