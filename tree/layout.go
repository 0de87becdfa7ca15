package tree

import (
	"sort"

	"nvmecr/tree/wire"
)

// An origin tells where bytes of a file are: their kind, and the shard if they are in one.
type origin struct {
	kind       wire.Kind
	place, cut uint32 // identify a shard
}

// unknown is the origin of bytes for which the index has to be asked.
var unknown = origin{kind: 255}

// A piece is a part of a file whose bytes have one origin.
type piece struct {
	span
	from origin
}

// A layout is the map of a file as received from the index: from the beginning to end, without gaps. The part behind
// end has to be requested.
type layout struct {
	segments []wire.Segment
	end      int64
}

// forget discards all that is known.
func (l *layout) forget() { l.segments, l.end = l.segments[:0], 0 }

// extend adds the answer of the index for the part between l.end and end.
func (l *layout) extend(answer *wire.File, end int64) {
	l.segments = append(l.segments, answer.Segments...)
	if n := len(l.segments); n > 0 {
		l.end = max(l.end, l.segments[n-1].Off+l.segments[n-1].Len)
	}
	if !answer.More {
		l.end = max(l.end, end)
	}
}

// at returns the piece that begins at off, and ends at end or before.
func (l *layout) at(off, end int64) piece {
	if off >= l.end {
		return piece{span{off, end}, unknown}
	}
	end = min(end, l.end)
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].Off+l.segments[i].Len > off })
	if i == len(l.segments) {
		return piece{span{off, end}, origin{}}
	}
	s := &l.segments[i]
	return piece{span{off, min(end, s.Off+s.Len)}, origin{s.Kind, s.Partition, s.Cut}}
}
