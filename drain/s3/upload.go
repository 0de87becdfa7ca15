package s3

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"

	"github.com/minio/minio-go/v7"
)

// An upload is a multipart upload.
type upload struct {
	*bucket
	object, id string

	mu    sync.Mutex // for parts
	parts []minio.CompletePart
}

func (u *upload) Part(ctx context.Context, number int, r io.ReadSeeker, size int64) error {
	p, err := u.PutObjectPart(ctx, u.name, u.object, u.id, number+1, r, size, minio.PutObjectPartOptions{})
	if err != nil {
		return u.explain(err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.parts = append(u.parts, minio.CompletePart{PartNumber: number + 1, ETag: p.ETag})
	return nil
}

func (u *upload) Complete(ctx context.Context) error {
	slices.SortFunc(u.parts, func(a, b minio.CompletePart) int { return cmp.Compare(a.PartNumber, b.PartNumber) })
	_, err := u.CompleteMultipartUpload(ctx, u.name, u.object, u.id, u.parts, minio.PutObjectOptions{})
	return u.explain(err)
}

// Abort discards the parts. If it fails, a lifecycle rule of the bucket removes them.
func (u *upload) Abort() {
	_ = u.AbortMultipartUpload(context.Background(), u.name, u.object, u.id)
}
