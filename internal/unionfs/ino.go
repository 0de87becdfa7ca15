package unionfs

import "nvmecr/microfs"

// Inode numbers of the own file system stay what they are. Those of ranks have the rank in
// their upper bits: so a directory can be found again by its number.
const rankShift = 40

// own is the rank of what is the own file system's.
const own = -1

func tag(rank int, ino microfs.Ino) microfs.Ino { return microfs.Ino(rank+1)<<rankShift | ino }

func untag(ino microfs.Ino) (rank int, inside microfs.Ino) {
	return int(ino>>rankShift) - 1, ino & (1<<rankShift - 1)
}

// shown is an attribute as the process sees it. The links of a directory say nothing about how
// many directories it has: 1 is what file systems say then.
func (p *part) shown() microfs.Attr {
	a := p.attr
	a.Ino = tag(p.rank, a.Ino)
	if isDir(a.Mode) {
		a.Nlink = min(a.Nlink, 1)
	}
	return a
}
