package drain

import (
	"context"
	"io"
	"time"
)

// A Bucket is an object store. Names are paths without a slash in front. Several goroutines call the methods at once.
type Bucket interface {
	// Put writes an object: all of it, or it is as it was. Where a try fails r is read again from its start.
	Put(ctx context.Context, name string, r io.ReadSeeker, size int64) error
	// Begin begins an object that is written in parts.
	Begin(ctx context.Context, name string) (Upload, error)
	// Get reads n bytes from off on; all of the object if n is negative. The error is in fs.ErrNotExist if there is no object.
	Get(ctx context.Context, name string, off, n int64) (io.ReadCloser, error)
	// List returns all objects whose names begin with a prefix, in the order of names.
	List(ctx context.Context, prefix string) ([]Object, error)
	// Dirs returns what names have between a prefix and the next slash, if they have one: each once, in order.
	Dirs(ctx context.Context, prefix string) ([]string, error)
	// Remove removes objects, those that are there.
	Remove(ctx context.Context, names ...string) error
}

// An Upload is an object that is being written. It is there when Complete returns, with all of its parts.
type Upload interface {
	// Part writes a part, numbered from 0. All but the last one have SegmentSize.
	Part(ctx context.Context, number int, r io.ReadSeeker, size int64) error
	Complete(ctx context.Context) error
	// Abort gives up what has been written, as far as that can be.
	Abort()
}

// maxParts is how many an object of S3 may have.
const maxParts = 10000

// An Object is one of a listing.
type Object struct {
	Name     string
	Size     int64
	Modified time.Time // by the clock of the object store
}
