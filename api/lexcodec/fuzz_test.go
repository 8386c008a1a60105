package lexcodec_test

import (
	"bytes"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/internal/lexgen/examples"
)

// maxSeed keeps bodies of megabytes out of the corpus.
const maxSeed = 4 << 10

// FuzzDecode feeds every method. No panic; a refusal is a Violation; what is
// accepted is equal after a round trip, and so are its Fields.
func FuzzDecode(f *testing.F) {
	routes := mlsapi.Routes[none]()
	for i, r := range routes {
		for _, c := range append(examples.Valid(r.Method.NSID), examples.Invalid(r.Method.NSID)...) {
			if c.Body != nil && len(c.Body) <= maxSeed {
				f.Add(uint8(i), c.Body)
			}
		}
	}
	f.Fuzz(func(t *testing.T, i uint8, body []byte) {
		r := routes[int(i)%len(routes)]
		if !r.Method.HasInput {
			return
		}
		original := bytes.Clone(body)
		got, v := decode(t, r, nil, body)
		if !bytes.Equal(body, original) {
			t.Fatal("the body was changed")
		}
		if v != nil {
			return
		}
		clear(body) // the result must not share its memory
		encoded := mustMarshal(t, got)
		again, v := decode(t, r, nil, encoded)
		if v != nil {
			t.Fatalf("refused its own encoding %s: %v", encoded, v)
		}
		if diff := cmp.Diff(got, again); diff != "" {
			t.Fatalf("round trip:\n%s", diff)
		}
		type fielder interface{ Fields() []lexcodec.Field }
		if diff := cmp.Diff(got.(fielder).Fields(), again.(fielder).Fields()); diff != "" {
			t.Fatalf("fields:\n%s", diff)
		}
	})
}

// FuzzParams does the same for query strings.
func FuzzParams(f *testing.F) {
	routes := mlsapi.Routes[none]()
	for i, r := range routes {
		for _, c := range append(examples.Valid(r.Method.NSID), examples.Invalid(r.Method.NSID)...) {
			if q := c.Query.Encode(); c.Query != nil && len(q) <= maxSeed {
				f.Add(uint8(i), q)
			}
		}
	}
	f.Fuzz(func(t *testing.T, i uint8, text string) {
		query, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		r := routes[int(i)%len(routes)]
		if r.Method.Kind == mlsapi.Procedure {
			return
		}
		first, v := decode(t, r, query, nil)
		second, w := decode(t, r, query, nil)
		if diff := cmp.Diff(first, second); diff != "" || (v == nil) != (w == nil) {
			t.Fatalf("not the same twice: %s %v %v", diff, v, w)
		}
	})
}

// FuzzBytes: an accepted value has exactly two spellings, padded and not.
func FuzzBytes(f *testing.F) {
	for _, s := range []string{"", "AA", "AA==", "+/8=", "AAEC", "AB", "A\nA", "-_8"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := lexcodec.ParseBytes(text)
		if err != nil {
			return
		}
		want := `{"$bytes":"` + string(bytes.TrimRight(text, "=")) + `"}`
		if got := string(mustMarshal(t, b)); got != want {
			t.Fatalf("%q is written as %s", text, got)
		}
		var again lexcodec.Bytes
		if err := again.UnmarshalJSON([]byte(want)); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%q is read again as %q, %v", text, again, err)
		}
	})
}

// FuzzBase64: an accepted value is one of the four spellings of its bytes.
func FuzzBase64(f *testing.F) {
	for _, s := range []string{"", "AA", "AA==", "+/8=", "-_8", "+_8", "AAEC", "AB", "A\rA"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := lexcodec.ParseBase64(text)
		if err != nil {
			return
		}
		url := bytes.ReplaceAll(bytes.ReplaceAll(bytes.TrimRight(text, "="), []byte("+"), []byte("-")), []byte("/"),
			[]byte("_"))
		if got := string(mustMarshal(t, b)); got != `"`+string(url)+`"` {
			t.Fatalf("%q is written as %s", text, got)
		}
		again, err := lexcodec.ParseBase64(url)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%q is read again as %q, %v", text, again, err)
		}
	})
}

func BenchmarkDecodeSendMessage1KiB(b *testing.B) {
	in := &mlsapi.SendMessageInput{ConvoID: "01890a5d-ac96-774b-bcce-b302099a8057",
		Ciphertext: bytes.Repeat([]byte{0xa5}, 1024), Epoch: 7,
		SenderDID: "did:plc:ewvi7nxzyoun6zhxrhs64oiz"}
	key := "01890a5d-ac96-774b-bcce-b302099a8058"
	in.IdempotencyKey = &key
	body, err := lexcodec.Marshal(in)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := mlsapi.DecodeSendMessageInput(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMarshalMessages50(b *testing.B) {
	out := &mlsapi.GetMessagesOutput{}
	for range 50 {
		out.Messages = append(out.Messages,
			mlsapi.MessageView{ID: "01890a5d-ac96-774b-bcce-b302099a8057", ConvoID: "01890a5d-ac96-774b-bcce-b302099a8058",
				Sender: "did:plc:ewvi7nxzyoun6zhxrhs64oiz", Ciphertext: bytes.Repeat([]byte{0xa5}, 1024)})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := lexcodec.Marshal(out); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAppendMessages50 is the same into a buffer that is there already.
func BenchmarkAppendMessages50(b *testing.B) {
	out := &mlsapi.GetMessagesOutput{}
	for range 50 {
		out.Messages = append(out.Messages,
			mlsapi.MessageView{ID: "01890a5d-ac96-774b-bcce-b302099a8057", ConvoID: "01890a5d-ac96-774b-bcce-b302099a8058",
				Sender: "did:plc:ewvi7nxzyoun6zhxrhs64oiz", Ciphertext: bytes.Repeat([]byte{0xa5}, 1024)})
	}
	buf := out.AppendJSON(nil)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		buf = out.AppendJSON(buf[:0])
	}
}

// BenchmarkAppendMembers1000 is the roster of the largest convo, into a buffer that is there
// already.
func BenchmarkAppendMembers1000(b *testing.B) {
	view := &mlsapi.ConvoView{}
	for range 1000 {
		view.Members = append(view.Members,
			mlsapi.MemberView{DID: "did:plc:ewvi7nxzyoun6zhxrhs64oiz", JoinedAt: lexcodec.NewDatetime(time.Now())})
	}
	buf := view.AppendJSON(nil)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		buf = view.AppendJSON(buf[:0])
	}
}
