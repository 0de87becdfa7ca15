package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/time/rate"

	"nvmecr/internal/crc64"
)

// A cutting is the state of a set that is being cut into shards.
type cutting struct {
	Code
	set   *Set       // with whole files
	parts []*partial // by the number of the shard; nil: it exists, or its target cannot be used
	o     *Options
}

// shardOf returns the set of the shards with one number, for the target that gets them.
func (s *Set) shardOf(c Code, number int, targets []int) *Set {
	p := *s
	p.Code, p.Shard, p.Parts, p.Files = c, number, targets, nil
	for _, f := range s.Files {
		f.Whole = &Whole{Size: f.Size}
		f.Size, f.Sums = c.shardSize(f.Size), nil
		p.Files = append(p.Files, f)
	}
	return &p
}

// copy cuts the segments that are not in the journals of all shards.
func (c *cutting) copy(ctx context.Context, src Source) error {
	open := c.parts[slices.IndexFunc(c.parts, func(p *partial) bool { return p != nil })]
	due := open.set.places(func(at place) bool {
		return slices.ContainsFunc(c.parts, func(p *partial) bool { return p != nil && !p.done[at] })
	})
	limit := c.o.limiter()
	return c.o.each(ctx, due, func(ctx context.Context, queue <-chan place) error {
		coder, err := newCoder(c.Code)
		if err != nil {
			return err
		}
		w := &cutter{cutting: c, coder: coder, src: src, file: -1, limit: limit}
		for at := range queue {
			if err = w.cut(ctx, at); err != nil {
				err = fmt.Errorf("%s: %w", c.set.In(&c.set.Files[at.file]), err)
				break
			}
		}
		return errors.Join(err, w.close())
	})
}

// A cutter is one worker. It keeps its last file open.
type cutter struct {
	*cutting
	coder *coder
	src   Source
	file  int // -1: none
	from  Reader
	to    []file // by the number of the shard

	limit *rate.Limiter // shared by the workers; or nil
}

// cut cuts the part of a file that belongs to one segment of its shards.
func (c *cutter) cut(ctx context.Context, at place) error {
	if err := c.open(at.file); err != nil {
		return err
	}
	whole, shards := summer{}, make([]uint64, len(c.parts))
	size := c.coder.shardSize(c.coder.size)
	off := int64(at.segment) * SegmentSize
	for end := min(off+SegmentSize, size); off < end; off += c.Unit {
		rows, err := c.row(ctx, off, &whole)
		if err != nil {
			return err
		}
		for i, to := range c.to {
			if to == nil {
				continue
			}
			shards[i] = crc64.Update(shards[i], rows[i])
			if err := errors.Join(c.o.at("write"), intoHoles(to)(rows[i], off)); err != nil {
				return c.failed(i, err)
			}
		}
	}
	sums := whole.end()
	for i, to := range c.to {
		if to == nil {
			continue
		}
		err := errors.Join(c.o.at("sync"), to.Sync())
		if err == nil {
			err = c.parts[i].record(entry{File: at.file, Segment: at.segment, Sum: Sum(shards[i]), Whole: sums})
		}
		if err != nil {
			return c.failed(i, err)
		}
	}
	c.o.progress(whole.all, 0)
	return nil
}

func (c *cutting) failed(shard int, err error) error { return fmt.Errorf("shard %d: %w", shard, err) }

// row returns a row, and adds its bytes to the checksum of the file. Holes in the store are not read.
func (c *cutter) row(ctx context.Context, off int64, whole *summer) ([][]byte, error) {
	start, width := c.coder.row(c.coder.size, off)
	end := min(start+width*int64(c.Data), c.coder.size)
	read := func(b []byte, off int64) error { return c.read(ctx, b, off) }
	data, _, err := c.from.Data(start)
	switch {
	case errors.Is(err, io.EOF) || err == nil && data >= end:
		read = func(b []byte, _ int64) error { clear(b); return nil }
	case err != nil:
		return nil, err
	}
	rows, err := c.coder.encode(off, width, c.coder.ofFile(read))
	for i := 0; i < c.Data && err == nil; i++ {
		at := start + int64(i)*width
		whole.add(rows[i][:min(max(end-at, 0), width)])
	}
	return rows, err
}

func (c *cutter) read(ctx context.Context, b []byte, off int64) error {
	if err := await(ctx, c.limit, len(b)); err != nil {
		return err
	}
	n, err := c.from.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = ErrChanged // it is shorter now
	}
	return err
}

func (c *cutter) open(index int) (err error) {
	if c.file == index {
		return nil
	}
	if err := c.close(); err != nil {
		return err
	}
	f := &c.set.Files[index]
	if c.from, err = c.src.Open(f.Rank, f.Path); err != nil {
		return err
	}
	c.file, c.to, c.coder.size = index, make([]file, len(c.parts)), f.Size
	for i, p := range c.parts {
		if p == nil {
			continue
		}
		if c.to[i], err = p.create(&p.set.Files[index]); err != nil {
			return c.failed(i, err)
		}
	}
	return nil
}

func (c *cutter) close() (err error) {
	if c.file < 0 {
		return nil
	}
	c.file, err = -1, c.from.Close()
	for _, to := range c.to {
		if to != nil {
			err = errors.Join(err, to.Close())
		}
	}
	return err
}
