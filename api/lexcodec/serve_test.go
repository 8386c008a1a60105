package lexcodec_test

import (
	"errors"
	"net/url"
	"testing"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
)

type none struct{}

// decode decodes a request and returns what the handler would get. Any error that is not a Violation
// fails the test.
func decode(t *testing.T, r mlsapi.Route[none], query url.Values, body []byte) (any, *lexcodec.Violation) {
	t.Helper()
	got, err := r.Decode(query, body)
	if err == nil {
		return got, nil
	}
	var v *lexcodec.Violation
	if !errors.As(err, &v) || v.Rule == "" || v.Message == "" {
		t.Fatalf("%s: %T %v is no Violation", r.Method.NSID, err, err)
	}
	return nil, v
}
