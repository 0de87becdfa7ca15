package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// A source identifies the writer of bytes: the number of an actor, from 1 on, and the version of its operation. The zero source is a
// hole.
type source struct {
	actor   uint8
	version uint32
}

// The word at offset 8*i of a file is a mix of these fields (and the same
// function is in rank.c):
//
//	63..56  actor
//	55..24  version
//	23..0   i
func (s source) word(i int64) uint64 {
	if s == (source{}) {
		return 0
	}
	return mix(uint64(s.actor)<<56 | uint64(s.version)<<24 | uint64(i)&0xffffff)
}

// mix is a bijection (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// unmix is the inverse of mix.
func unmix(x uint64) uint64 {
	x = (x ^ x>>31 ^ x>>62) * 0x319642b2d24d8ec3
	x = (x ^ x>>27 ^ x>>54) * 0x96de1b173f119089
	return x ^ x>>30 ^ x>>60
}

// fill writes the bytes of s at offset off.
func (s source) fill(b []byte, off int64) {
	var word [8]byte
	for len(b) > 0 {
		if skip := off % 8; skip == 0 && len(b) >= 8 {
			binary.LittleEndian.PutUint64(b, s.word(off/8))
			b, off = b[8:], off+8
			continue
		}
		binary.LittleEndian.PutUint64(word[:], s.word(off/8))
		n := copy(b, word[off%8:])
		b, off = b[n:], off+int64(n)
	}
}

// describe describes the bytes at offset off of a file.
func describe(b []byte, off int64) string {
	aligned := (8 - off%8) % 8
	if int64(len(b)) < aligned+8 {
		return fmt.Sprintf("% x", b)
	}
	word := b[aligned : aligned+8]
	if bytes.Equal(word, make([]byte, 8)) {
		return "zeros"
	}
	x := unmix(binary.LittleEndian.Uint64(word))
	s := source{uint8(x >> 56), uint32(x >> 24)}
	at := (off + aligned) / 8
	if from := int64(x & 0xffffff); from != at {
		return fmt.Sprintf("% x (if ever written: by %v at offset %d)", word, s, from*8)
	}
	return fmt.Sprintf("what %v wrote there", s)
}

func (s source) String() string {
	if s == (source{}) {
		return "nobody (a hole)"
	}
	a := int(s.actor) - 1
	return fmt.Sprintf("rank %d, actor %d, operation %d", a/actors, a%actors, s.version)
}
