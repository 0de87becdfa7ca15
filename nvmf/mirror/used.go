package mirror

import "nvmecr/nvmf"

// Used tells for each MiB of a mirror whether it is in use. The contents of an unused MiB do not matter, and may differ between the
// sides.
type Used []bool

// NewUsed returns a Used for a mirror of the given length, without any MiB in use.
func NewUsed(length nvmf.Bytes) Used { return make(Used, length/align) }

// Add marks each MiB that a part touches as used.
func (u Used) Add(start, length nvmf.Bytes) {
	for i := start / align; i < nvmf.Bytes(len(u)) && i*align < start+length; i++ {
		u[i] = true
	}
}

// bytes returns the number of bytes in use.
func (u Used) bytes() (n nvmf.Bytes) {
	for _, used := range u {
		if used {
			n += align
		}
	}
	return n
}
