// Package s3store keeps objects of attachments in a bucket of an S3-compatible service.
package s3store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"mlsd/features/attachments"
)

// Config says where the bucket is.
type Config struct {
	Endpoint string // for example https://s3.example.com
	Bucket   string
	Region   string // "" means us-east-1, which most services other than Amazon's accept
	Key      string // access key
	Secret   string
}

const (
	defaultRegion = "us-east-1"
	// headerTimeout bounds the wait for an answer after a request was sent.
	headerTimeout = 15 * time.Second
	// idleConns is how many idle connections are kept.
	idleConns = 64
)

// Store is an attachments.Store in a bucket.
type Store struct {
	client *minio.Client
	core   *minio.Core
	bucket string
}

// New returns a store. It does not wait for the service to answer.
func New(c Config) (*Store, error) {
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("want the URL of an S3 service such as https://s3.example.com")
	}
	c.Region = cmp.Or(c.Region, defaultRegion)
	transport, err := minio.DefaultTransport(u.Scheme == "https")
	if err != nil {
		return nil, err
	}
	transport.ResponseHeaderTimeout, transport.MaxIdleConnsPerHost = headerTimeout, idleConns
	options := &minio.Options{
		Creds: credentials.NewStaticV4(c.Key, c.Secret, ""), Secure: u.Scheme == "https", Region: c.Region,
		Transport:    transport,
		BucketLookup: minio.BucketLookupAuto, MaxRetries: 1, // the caller's client tries again
	}
	client, err := minio.New(u.Host, options)
	if err != nil {
		return nil, err
	}
	return &Store{client: client, core: &minio.Core{Client: client}, bucket: c.Bucket}, nil
}

// Check reports whether the bucket can be used.
func (s *Store) Check(ctx context.Context) error {
	there, err := s.client.BucketExists(ctx, s.bucket)
	if err == nil && !there {
		err = fmt.Errorf("there is no bucket %q", s.bucket)
	}
	return err
}

// Put implements attachments.Store. The service stores an object as a whole or not at all. Put
// passes the body on as it arrives.
func (s *Store) Put(ctx context.Context, name string, body io.Reader, size int64) error {
	info, err := s.client.PutObject(ctx, s.bucket, name, onlyReader{body}, size, minio.PutObjectOptions{
		ContentType: "application/octet-stream", DisableMultipart: true,
	})
	if err == nil && info.Size != size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// onlyReader hides other methods of a body, because the body cannot be read again.
type onlyReader struct{ io.Reader }

// Open implements attachments.Store.
func (s *Store) Open(ctx context.Context, name string, offset, n int64) (io.ReadCloser, error) {
	var options minio.GetObjectOptions
	if err := options.SetRange(offset, offset+n-1); err != nil {
		return nil, err
	}
	body, _, _, err := s.core.GetObject(ctx, s.bucket, name, options)
	if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		return nil, attachments.ErrNoObject
	}
	return body, err
}

// Delete implements attachments.Store.
func (s *Store) Delete(ctx context.Context, name string) error {
	err := s.client.RemoveObject(ctx, s.bucket, name, minio.RemoveObjectOptions{})
	if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		return nil
	}
	return err
}

// List implements attachments.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]attachments.Object, error) {
	ctx, stop := context.WithCancel(ctx) // ends the listing after the limit
	defer stop()
	var found []attachments.Object
	for o := range s.client.ListObjects(ctx, s.bucket,
		minio.ListObjectsOptions{Prefix: prefix, StartAfter: after, Recursive: true, MaxKeys: limit}) {
		if o.Err != nil {
			return nil, o.Err
		}
		found = append(found, attachments.Object{Name: o.Key, At: o.LastModified})
		if len(found) == limit {
			break
		}
	}
	return found, nil
}
