package attachments_test

import (
	"testing"

	"github.com/google/uuid"

	"mlsd/features/attachments"
)

// An attachment has one name: what is written otherwise names none.
func FuzzNamed(f *testing.F) {
	const id = "0192f3a4-5b6c-7d8e-9f01-23456789abcd"
	for _, uri := range []string{"mlsd:attachment/" + id, "mlsd:attachment/urn:uuid:" + id, "mlsd:attachment/{" + id + "}",
		"mlsd:attachment/0192F3A4-5B6C-7D8E-9F01-23456789ABCD", "mlsd:attachment/", "https://example.com/" + id, ""} {
		f.Add(uri)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		id, ok := attachments.Named(uri)
		if a := (&attachments.Attachment{ID: id}); ok && id != uuid.Nil && a.URI() != uri {
			t.Errorf("%q names %s", uri, id)
		}
		if !ok && id != uuid.Nil {
			t.Errorf("%q names nothing, and %s", uri, id)
		}
	})
}
