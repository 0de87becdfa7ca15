// Package s3 keeps checkpoint sets in a bucket of S3, or of another object store that speaks it.
//
// A second level is named s3://BUCKET/PREFIX; the prefix may be missing. Keys, region and endpoint are looked for
// where the tools of AWS look: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile AWS_PROFILE of
// AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials); AWS_REGION or AWS_DEFAULT_REGION; AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL.
//
// A file of a set is an object, and the manifest is one. The manifest is written last: with it the set is there. The layout is that of
// package drain, but that the directory of a set has ~ and 16 digits behind its name: no two sets share one, as an object
// store cannot rename.
//
//	s3://BUCKET/PREFIX/STORE/melt.400~0c1d84ee6f0d29a1/melt.400.0
//	s3://BUCKET/PREFIX/STORE/melt.400~0c1d84ee6f0d29a1/.nvmecr-set
//
// All functions, and the methods of what they return, are safe for concurrent use.
package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"nvmecr/drain"
)

// Scheme is the prefix of the URL of a second level in a bucket.
const Scheme = "s3://"

// tries is the number of attempts at a request. The callers repeat failed copies later.
const tries = 4

// Open returns the level of a store in an existing bucket: s3://BUCKET/PREFIX. getenv is os.Getenv.
func Open(where, store string, getenv func(string) string) (drain.Archive, error) {
	name, prefix, _ := strings.Cut(strings.TrimPrefix(where, Scheme), "/")
	prefix = strings.Trim(prefix, "/")
	client, err := connect(getenv)
	if err == nil {
		b := &bucket{client, name}
		if err = b.check(context.Background()); err == nil {
			return drain.OpenBucket(b, strings.TrimSuffix(where, "/"), prefix, store), nil
		}
	}
	return nil, fmt.Errorf("second level %s: %w", where, err)
}

func connect(getenv func(string) string) (*minio.Core, error) {
	first := func(names ...string) string {
		for _, name := range names {
			if v := getenv(name); v != "" {
				return v
			}
		}
		return ""
	}
	endpoint := first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
	if endpoint == "" {
		endpoint = "https://s3.amazonaws.com"
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("endpoint %q: not the URL of a host, such as https://s3.example.org:9000 (AWS_ENDPOINT_URL)", endpoint)
	}
	keys := credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}})
	if v, err := keys.GetWithContext(nil); err != nil || v.AccessKeyID == "" {
		return nil, errors.Join(errors.New("no keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE to a profile of ~/.aws/credentials"), err)
	}
	return minio.NewCore(u.Host, &minio.Options{
		Creds: keys, Secure: u.Scheme == "https", Region: first("AWS_REGION", "AWS_DEFAULT_REGION"), MaxRetries: tries,
	})
}

// A bucket is a drain.Bucket.
type bucket struct {
	*minio.Core
	name string
}

// check returns an error if the settings are invalid, before a job starts.
func (b *bucket) check(ctx context.Context) error {
	there, err := b.BucketExists(ctx, b.name)
	if err == nil && !there {
		err = fmt.Errorf("%s has no bucket %q: make it", b.EndpointURL(), b.name)
	}
	return b.explain(err)
}

// explain adds the remedy to an error.
func (b *bucket) explain(err error) error {
	var e minio.ErrorResponse
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case minio.NoSuchKey:
		return fmt.Errorf("%w: object %s", fs.ErrNotExist, e.Key)
	case minio.AccessDenied, "InvalidAccessKeyId", "SignatureDoesNotMatch":
		return fmt.Errorf("%w: %s refuses the keys for bucket %q (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION): %w", fs.ErrPermission, b.EndpointURL(), b.name, err)
	}
	return err
}

func (b *bucket) Put(ctx context.Context, name string, r io.ReadSeeker, size int64) error {
	_, err := b.PutObject(ctx, b.name, name, r, size, "", "", minio.PutObjectOptions{})
	return b.explain(err)
}

func (b *bucket) Begin(ctx context.Context, name string) (drain.Upload, error) {
	id, err := b.NewMultipartUpload(ctx, b.name, name, minio.PutObjectOptions{})
	return &upload{bucket: b, object: name, id: id}, b.explain(err)
}

func (b *bucket) Get(ctx context.Context, name string, off, n int64) (io.ReadCloser, error) {
	var o minio.GetObjectOptions
	if n >= 0 {
		if err := o.SetRange(off, off+n-1); err != nil {
			return nil, err
		}
	}
	r, _, _, err := b.GetObject(ctx, b.name, name, o)
	return r, b.explain(err)
}

func (b *bucket) List(ctx context.Context, prefix string) (list []drain.Object, err error) {
	for o := range b.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			return nil, b.explain(o.Err)
		}
		list = append(list, drain.Object{Name: o.Key, Size: o.Size, Modified: o.LastModified})
	}
	return list, nil
}

func (b *bucket) Dirs(ctx context.Context, prefix string) (list []string, err error) {
	for o := range b.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{Prefix: prefix}) {
		if o.Err != nil {
			return nil, b.explain(o.Err)
		}
		if name, dir := strings.CutSuffix(strings.TrimPrefix(o.Key, prefix), "/"); dir {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list, nil
}

func (b *bucket) Remove(ctx context.Context, names ...string) error {
	queue := make(chan minio.ObjectInfo, len(names))
	for _, name := range names {
		queue <- minio.ObjectInfo{Key: name}
	}
	close(queue)
	var all error
	for e := range b.RemoveObjects(ctx, b.name, queue, minio.RemoveObjectsOptions{}) {
		if err := b.explain(e.Err); !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, fmt.Errorf("%s: %w", e.ObjectName, err))
		}
	}
	return all
}
