package mirror

import "nvmecr/nvmf"

// Used says of each MiB of a mirror whether it is in use: the others may have any bytes, which may differ on the two sides.
type Used []bool

// NewUsed returns that nothing is in use of a mirror of that length.
func NewUsed(length nvmf.Bytes) Used { return make(Used, length/align) }

// Add says that a part is in use.
func (u Used) Add(start, length nvmf.Bytes) {
	for i := start / align; i < nvmf.Bytes(len(u)) && i*align < start+length; i++ {
		u[i] = true
	}
}

// bytes returns how much is in use.
func (u Used) bytes() (n nvmf.Bytes) {
	for _, used := range u {
		if used {
			n += align
		}
	}
	return n
}
