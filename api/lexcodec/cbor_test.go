package lexcodec_test

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atdata"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
)

// messages are all that a subscription sends.
func messages() []lexcodec.Message {
	return []lexcodec.Message{
		&mlsapi.MessageEvent{}, &mlsapi.CommitEvent{}, &mlsapi.WelcomeEvent{}, &mlsapi.MembershipEvent{},
		&mlsapi.KeyPackagesEvent{}, &mlsapi.InfoEvent{},
	}
}

// sample are values of the kinds that fields have.
type sample struct {
	text    string
	integer int64
	bytes   []byte
	boolean bool
	at      time.Time
}

// fill sets every field of the struct, or with least only those that are always written.
func (s sample) fill(v reflect.Value, least bool) {
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() == reflect.Pointer {
			if least {
				continue
			}
			f.Set(reflect.New(f.Type().Elem()))
			f = f.Elem()
		}
		switch {
		case f.Type() == reflect.TypeFor[lexcodec.Datetime]():
			f.Set(reflect.ValueOf(lexcodec.NewDatetime(s.at)))
		case f.Kind() == reflect.Struct:
			s.fill(f, least)
		case f.Kind() == reflect.String:
			f.SetString(s.text)
		case f.Kind() == reflect.Int64:
			f.SetInt(s.integer)
		case f.Kind() == reflect.Bool:
			f.SetBool(s.boolean)
		default:
			f.SetBytes(s.bytes)
		}
	}
}

// Another implementation of DAG-CBOR reads every body and writes the same bytes: they are
// canonical.
func TestCBORIsCanonical(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 10, 20, 30, 400e6, time.UTC)
	samples := []sample{
		{text: "did:plc:ewvi7nxzyoun6zhxrhs64oiz", integer: 7, bytes: []byte{1, 2, 3}, boolean: true, at: at},
		{text: "", integer: 0, bytes: []byte{}, at: at},
		{text: "grüße, 世界 🜁", integer: 1<<53 - 1, bytes: bytes.Repeat([]byte{0xa5}, 70<<10), at: time.Time{}},
		{text: string(bytes.Repeat([]byte("x"), 300)), integer: 1 << 32, bytes: bytes.Repeat([]byte{0}, 256), boolean: true,
			at: at},
	}
	for _, n := range []int64{23, 24, 255, 256, 65535, 65536, 1<<32 - 1, -1, -24, -25, -257, -(1<<53 - 1)} {
		samples = append(samples, sample{integer: n, bytes: bytes.Repeat([]byte{1}, int(max(0, n%70_000))), at: at})
	}
	for _, m := range messages() {
		t.Run(m.FrameType(), func(t *testing.T) {
			t.Parallel()
			for _, s := range samples {
				for _, least := range []bool{true, false} {
					v := reflect.New(reflect.TypeOf(m).Elem())
					s.fill(v.Elem(), least)
					got := v.Interface().(lexcodec.Message).AppendCBOR(nil)
					decoded, err := atdata.UnmarshalCBOR(got)
					if err != nil {
						t.Fatalf("integer %d, least %t: %v", s.integer, least, err)
					}
					if _, ok := decoded["$type"]; ok {
						t.Error("the body has a $type")
					}
					want, err := atdata.MarshalCBOR(decoded)
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(got, want) {
						t.Fatalf("integer %d, least %t:\n got %.300x\nwant %.300x", s.integer, least, got, want)
					}
					fields := v.Elem().NumField()
					if !least && len(decoded) != fields || least && len(decoded) > fields {
						t.Errorf("%d fields of %d were written", len(decoded), fields)
					}
				}
			}
		})
	}
}

// The bytes of a frame, as the specification of event streams has them.
func TestFrames(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		got  []byte
		want string
	}{
		"message": {lexcodec.AppendFrame(nil, &mlsapi.InfoEvent{Name: "OutdatedCursor"}),
			"a2" + "6174" + "6a" + hex.EncodeToString([]byte("#infoEvent")) + "626f70" + "01" +
				"a1" + "646e616d65" + "6e" + hex.EncodeToString([]byte("OutdatedCursor"))},
		"error": {lexcodec.AppendErrorFrame(nil, "FutureCursor", "no"),
			"a1" + "626f70" + "20" +
				"a2" + "656572726f72" + "6c" + hex.EncodeToString([]byte("FutureCursor")) + "676d657373616765" + "626e6f"},
	} {
		if got := hex.EncodeToString(tc.got); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, tc.want)
		}
	}
}

// The lines of an event, the last of them empty.
func TestServerSentEvents(t *testing.T) {
	t.Parallel()
	e := &mlsapi.StreamConvoEventsInfoEvent{Cursor: "7", Info: "a\nb"}
	data := `data: {"$type":"blue.catbird.mls.streamConvoEvents#infoEvent","cursor":"7","info":"a\nb"}` + "\n\n"
	want := "event: infoEvent\nid: 7\n" + data
	if got := string(lexcodec.AppendServerSentEvent(nil, "7", e)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	want = "event: infoEvent\n" + data
	if got := string(lexcodec.AppendServerSentEvent(nil, "", e)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
