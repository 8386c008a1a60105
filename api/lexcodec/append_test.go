package lexcodec

import "testing"

// A string that needs no escapes is written as the others are.
func TestAppendString(t *testing.T) {
	t.Parallel()
	for c := range 256 {
		for _, s := range []string{string([]byte{byte(c)}), "a" + string(rune(c)), "did:web:" + string(rune(c)) + "x"} {
			if got, want := string(AppendString(nil, s)), string(appendQuoted(nil, s)); got != want {
				t.Fatalf("%q is written as %s, want %s", s, got, want)
			}
		}
	}
}
