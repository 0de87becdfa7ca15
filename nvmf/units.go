package nvmf

import "fmt"

// LBA is a logical block address, or a count of logical blocks.
type LBA uint64

// Bytes is a size or an offset in bytes.
type Bytes uint64

// Binary sizes.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// AlignUp returns b rounded up to a multiple of unit, a power of two.
func (b Bytes) AlignUp(unit Bytes) Bytes { return (b + unit - 1) &^ (unit - 1) }

// AlignDown returns b rounded down to a multiple of unit, a power of two.
func (b Bytes) AlignDown(unit Bytes) Bytes { return b &^ (unit - 1) }

// String prints b with a binary unit when it is a whole number of them.
func (b Bytes) String() string {
	for _, u := range []struct {
		size Bytes
		name string
	}{{TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if b >= u.size && b%u.size == 0 {
			return fmt.Sprintf("%d %s", b/u.size, u.name)
		}
	}
	if b >= 10*MiB {
		return fmt.Sprintf("%.1f MiB", float64(b)/float64(MiB))
	}
	return fmt.Sprintf("%d bytes", uint64(b))
}
