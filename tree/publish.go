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

// publish makes written data durable, and sends its ranges to the index. After an error, ranges that the index may
// not know stay to be published. The caller holds in.mu alone.
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
	return in.closeOldShard()
}

// begin tells the index that a complete file is about to be written. Ranges that are mapped to the shard already are
// written in place, which the index would otherwise learn only at publication. The caller holds in.mu alone.
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

// tell sends the ranges of written data to the index. With last, it leaves out the last message, which the caller
// sends. The caller holds in.mu alone.
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

// publication returns the next message about written data; without ranges if there is none.
func (in *inode) publication(mtime time.Time) wire.Publication {
	in.writtenMu.Lock()
	defer in.writtenMu.Unlock()
	p := wire.Publication{Ino: in.ino, Birth: in.birth, Cut: in.cut, Mtime: mtime, Durable: true, Ranges: in.written.head(in.fs.ranges)}
	if n := len(p.Ranges); n > 0 {
		p.Size = p.Ranges[n-1].Off + p.Ranges[n-1].Len
	}
	return p
}

// published removes ranges that the index knows now from those to be published.
func (in *inode) published(p *wire.Publication) {
	in.writtenMu.Lock()
	defer in.writtenMu.Unlock()
	in.attr.Size = max(in.attr.Size, p.Size)
	in.written.drop(len(p.Ranges))
}

// finish handles the close of one descriptor, of a writer or a reader, and publishes written data. The last writer's
// shard is then complete; data that cannot be published is lost with that shard. The caller holds in.mu alone.
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
		in.writtenMu.Lock()
		in.written = nil
		in.writtenMu.Unlock()
	}
	return errors.Join(err, closed)
}

// complete makes written data durable, with closing by closing the shard, and fills the last message about it.
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
