package unionfs

import "nvmecr/microfs"

// Inode numbers of the own file system are unchanged. Those of ranks have the rank in their upper bits, so that a directory can be
// found by its number.
const rankShift = 40

// own stands for a rank in parts of the own file system.
const own = -1

func tag(rank int, ino microfs.Ino) microfs.Ino { return microfs.Ino(rank+1)<<rankShift | ino }

func untag(ino microfs.Ino) (rank int, inside microfs.Ino) {
	return int(ino>>rankShift) - 1, ino & (1<<rankShift - 1)
}

// shown returns attributes as the process sees them. The link count of a directory is 1, as in other file systems that do not count
// subdirectories.
func (p *part) shown() microfs.Attr {
	a := p.attr
	a.Ino = tag(p.rank, a.Ino)
	if isDir(a.Mode) {
		a.Nlink = min(a.Nlink, 1)
	}
	return a
}
