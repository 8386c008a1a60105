package archive

import (
	"encoding/base64"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"
)

// A position survives its text, for each part and for keys of each kind.
func TestPositions(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 17, 0, 0, 123456000, time.UTC)
	example := map[kind]any{
		textKey: "did:plc:\"a\"<é>", bytesKey: []byte{0, 255}, uuidKey: [16]byte{1, 15: 2}, smallKey: int32(-7),
		largeKey: int64(1) << 60,
		timeKey:  at, dateKey: time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC),
	}
	for i, p := range parts {
		key := []any{}
		for _, k := range p.keys {
			key = append(key, example[k.kind])
		}
		for _, want := range []Position{{part: i}, {part: i, key: key}} {
			got, err := ParsePosition(want.String())
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v came back as %+v, %v", p.name, want, got, err)
			}
		}
	}
}

// Cursors name the parts, so each name is that of one part.
func TestPartNames(t *testing.T) {
	t.Parallel()
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	if slices.Sort(names); len(slices.Compact(slices.Clone(names))) != len(parts) {
		t.Errorf("names of parts: %q", names)
	}
}

// What clients send as a cursor is refused, or is a position whose text is a position again.
func FuzzParsePosition(f *testing.F) {
	for _, text := range []string{
		``, `[]`, `["members"]`, `["members","0192f3a4-5b6c-7d8e-9f01-23456789abcd"]`, `["blocks","did:plc:a"]`,
		`["audit_log","2026-01-01 00:00:00Z","7"]`,
		`["audit_log","2026-01-01 00:00:00+23:59","7"]`, `["quota_counts","2026-01-01","x"]`, `["key_packages","\\x00ff"]`,
		`["audit_log","infinity","7"]`, `["quota_counts","infinity","x"]`, `["audit_log","0001-01-01 00:00:00Z BC","7"]`,
		`["outbox","-1"]`, `["outbox",1]`,
		`["welcomes","urn:uuid:0192f3a4-5b6c-7d8e-9f01-23456789abcd","{0192f3a4-5b6c-7d8e-9f01-23456789abcd}"]`,
	} {
		f.Add(base64.RawURLEncoding.EncodeToString([]byte(text)))
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePosition(text)
		if err != nil {
			if !errors.Is(err, ErrPosition) || !reflect.DeepEqual(p, Position{}) {
				t.Fatalf("%q: %+v, %v", text, p, err)
			}
			return
		}
		again, err := ParsePosition(p.String())
		if err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("%q is %+v, and its text is %+v, %v", text, p, again, err)
		}
	})
}
