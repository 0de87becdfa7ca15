package tree

import (
	"errors"
	"time"

	"nvmecr/tree/wire"
)

// lockAndPublish is publish for a caller that does not hold in.mu.
func (in *inode) lockAndPublish() error {
	in.lock()
	defer in.mu.Unlock()
	return in.publish()
}

// publish makes what was written durable, and tells the index. After an error what the index may not know stays to be
// published. The caller holds in.mu alone.
func (in *inode) publish() error {
	if end, _ := in.noted(); end == 0 {
		return nil
	}
	mtime, err := in.mtime()
	if err == nil {
		err = in.shard.Sync()
	}
	if err == nil {
		err = in.tell(mtime, false)
	}
	if err != nil {
		return err
	}
	in.reserved = 0
	return in.settle()
}

// begin tells the index that a file which is complete is about to be written: what is mapped to the shard already is written in place, and
// the index does not hear of that before it is published. The caller holds in.mu alone.
func (in *inode) begin() error {
	if !in.attr.Closed {
		return nil
	}
	p := wire.Publication{Ino: in.ino, Birth: in.birth, Cut: in.attr.Cut, Mtime: time.Now(), Durable: true}
	var answer wire.AttrAnswer
	if err := in.fs.client.Call(wire.OpPublish, &p, &answer); err != nil {
		return err
	}
	if a := &answer.Attr; a.Cut != in.attr.Cut || a.Size != in.attr.Size {
		in.layout.forget()
	}
	in.attr = answer.Attr
	return nil
}

// tell tells the index of what was written, but for the last message if `last` is to say that. The caller holds in.mu alone.
func (in *inode) tell(mtime time.Time, last bool) error {
	in.layout.forget()
	rest := 0
	if last {
		rest = in.fs.ranges
	}
	for len(in.written) > rest {
		p := in.publication(mtime)
		var answer wire.AttrAnswer
		if err := in.fs.client.Call(wire.OpPublish, &p, &answer); err != nil {
			return err
		}
		in.attr = answer.Attr
		in.published(&p)
	}
	return nil
}

// publication is the next message about what was written; without ranges if nothing was.
func (in *inode) publication(mtime time.Time) wire.Publication {
	in.noting.Lock()
	defer in.noting.Unlock()
	p := wire.Publication{Ino: in.ino, Birth: in.birth, Cut: in.cut, Mtime: mtime, Durable: true, Ranges: in.written.head(in.fs.ranges)}
	if n := len(p.Ranges); n > 0 {
		p.Size = p.Ranges[n-1].Off + p.Ranges[n-1].Len
	}
	return p
}

// published takes what the index knows now from what was written.
func (in *inode) published(p *wire.Publication) {
	in.noting.Lock()
	defer in.noting.Unlock()
	in.attr.Size = max(in.attr.Size, p.Size)
	in.written.drop(len(p.Ranges))
}

// finish ends one opening of the file, of a writer or not, and publishes what was written. The last writer's shard is
// complete then; what cannot be published is lost with it. The caller holds in.mu alone.
func (in *inode) finish(writer bool) error {
	request := wire.Close{Writer: writer, Publication: wire.Publication{Ino: in.ino, Birth: in.birth}}
	var err error
	if writer {
		in.writers--
		err = in.complete(in.writers == 0, &request.Publication)
		request.Failed = err != nil
	}
	closed := in.fs.client.Call(wire.OpClose, &request, nil)
	if closed == nil {
		in.published(&request.Publication)
	}
	if in.shard == nil {
		in.noting.Lock()
		in.written = nil
		in.noting.Unlock()
	}
	return errors.Join(err, closed)
}

// complete makes what was written durable, by closing the shard if that is to be, and makes the last message about it.
func (in *inode) complete(closing bool, last *wire.Publication) error {
	end, _ := in.noted()
	if end == 0 {
		if closing {
			return in.closeShard()
		}
		return nil
	}
	mtime, err := in.mtime()
	switch {
	case closing:
		err = errors.Join(err, in.closeShard())
	case err == nil:
		err = in.shard.Sync()
	}
	if err == nil {
		err = in.tell(mtime, true)
	}
	if err == nil {
		*last = in.publication(mtime)
	}
	return err
}
