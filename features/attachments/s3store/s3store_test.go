package s3store_test

import (
	"context"
	"os"
	"testing"
	"time"

	"mlsd/features/attachments/s3store"
	"mlsd/features/attachments/storetest"
)

// TestStore needs a real S3 server: features/attachments/s3store/check.sh starts one.
func TestStore(t *testing.T) {
	t.Parallel()
	endpoint := os.Getenv("MLSD_TEST_S3_ENDPOINT")
	if endpoint == "" {
		t.Skip("MLSD_TEST_S3_ENDPOINT is not set: features/attachments/s3store/check.sh starts an S3 server and sets it")
	}
	s, err := s3store.New(s3store.Config{
		Endpoint: endpoint, Bucket: os.Getenv("MLSD_TEST_S3_BUCKET"), Key: os.Getenv("MLSD_TEST_S3_ACCESS_KEY"),
		Secret: os.Getenv("MLSD_TEST_S3_SECRET_KEY"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	storetest.Check(t, s)
}

// A service that is not there fails soon, and says so.
func TestNobodyThere(t *testing.T) {
	t.Parallel()
	s, err := s3store.New(s3store.Config{Endpoint: "http://127.0.0.1:1", Bucket: "b", Key: "k", Secret: "s"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := s.Open(ctx, "a", 0, 1); err == nil {
		t.Error("an object was opened at nobody")
	}
	if ctx.Err() != nil {
		t.Error("it takes a minute to notice")
	}
}

func TestEndpoint(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "s3.example.com", "ftp://s3.example.com"} {
		if _, err := s3store.New(s3store.Config{Endpoint: bad, Bucket: "b", Key: "k", Secret: "s"}); err == nil {
			t.Errorf("%q is taken for a URL", bad)
		}
	}
}
