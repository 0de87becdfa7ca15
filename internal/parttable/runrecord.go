package parttable

import "nvmecr/nvmf"

// RunRecordSize is what a copy of the run record takes at the end of each slot.
const RunRecordSize nvmf.Bytes = 4096

// RunRecordOffset returns where in the namespace a copy of the run record lies:
// 0 or 1.
func RunRecordOffset(copy int) nvmf.Bytes { return CopyOffset(copy) + slotSize - RunRecordSize }

// HasRunRecord reports whether the table leaves space for a run record. One with more than
// MaxEntries partitions, which an earlier version wrote, does not.
func (t *Table) HasRunRecord() bool { return len(t.Entries) <= MaxEntries }
