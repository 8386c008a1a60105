package mls

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testRef(n int) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 24), uint64(n))
}

func TestParseWelcome(t *testing.T) {
	t.Parallel()
	msg := testWelcome(testRef(1), testRef(2), testRef(3))
	got, err := ParseWelcome(msg)
	if err != nil {
		t.Fatal(err)
	}
	want := Welcome{SuiteX25519AES128, []KeyPackageRef{testRef(1), testRef(2), testRef(3)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := checkExact(codecs["Welcome"].parse, msg); err != nil {
		t.Error(err)
	}
}

func TestParseWelcomeRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		msg   []byte
		want  error
		field string
	}{
		"nobody":        {testWelcome(), ErrMalformed, "Welcome.secrets"},
		"one twice":     {testWelcome(testRef(1), testRef(2), testRef(1)), ErrMalformed, "Welcome.secrets.new_member"},
		"short ref":     {testWelcome(make([]byte, 31)), ErrMalformed, "Welcome.secrets.new_member"},
		"empty ref":     {testWelcome(nil), ErrMalformed, "Welcome.secrets.new_member"},
		"bare":          {testWelcome(testRef(1))[4:], ErrMalformed, "MLSMessage.wire_format"},
		"GroupInfo":     {framed(4, newGroupInfo().build()), ErrMalformed, "MLSMessage.wire_format"},
		"too large":     {make([]byte, MaxWelcomeSize+1), ErrTooLarge, ""},
		"empty":         {nil, ErrMalformed, "MLSMessage.version"},
		"half an entry": {framed(3, cat(u16(1), vec(vec(testRef(1))), vec())), ErrMalformed, "Welcome.kem_output"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseWelcome(c.msg)
			wantError(t, err, c.want, c.field)
		})
	}
}

func TestParseWelcomeLarge(t *testing.T) {
	t.Parallel()
	refs := make([][]byte, 5000)
	for i := range refs {
		refs[i] = testRef(i)
	}
	w, err := ParseWelcome(testWelcome(refs...))
	if err != nil || len(w.Refs) != len(refs) || !bytes.Equal(w.Refs[4999], refs[4999]) {
		t.Errorf("%d refs, %v", len(w.Refs), err)
	}
}
