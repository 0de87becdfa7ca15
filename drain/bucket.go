package drain

import (
	"context"
	"io"
	"time"
)

// A Bucket is an object store. Names are paths without a leading slash. All methods can be called concurrently.
type Bucket interface {
	// Put writes an object atomically. If an attempt fails it reads r again from the start.
	Put(ctx context.Context, name string, r io.ReadSeeker, size int64) error
	// Begin begins an upload of an object in parts.
	Begin(ctx context.Context, name string) (Upload, error)
	// Get reads n bytes from off on, or the whole object if n is negative. If there is no object the error wraps
	// fs.ErrNotExist.
	Get(ctx context.Context, name string, off, n int64) (io.ReadCloser, error)
	// List returns the objects with a prefix, in the order of names.
	List(ctx context.Context, prefix string) ([]Object, error)
	// Dirs returns the parts of names between a prefix and the next slash, each once, in order.
	Dirs(ctx context.Context, prefix string) ([]string, error)
	// Remove removes those of the objects that exist.
	Remove(ctx context.Context, names ...string) error
}

// An Upload is an object that is being written. The object appears when Complete returns, with all of its parts.
type Upload interface {
	// Part writes a part, numbered from 0. All parts but the last have SegmentSize bytes.
	Part(ctx context.Context, number int, r io.ReadSeeker, size int64) error
	Complete(ctx context.Context) error
	// Abort discards the parts, as far as possible.
	Abort()
}

// maxParts is the maximum number of parts of an object in S3.
const maxParts = 10000

// An Object is an entry of a listing.
type Object struct {
	Name     string
	Size     int64
	Modified time.Time // by the clock of the object store
}
