package lexcodec

import (
	"encoding/base64"
	"math/rand/v2"
	"testing"
	"time"
)

// The functions of this package append what the standard library writes.
func TestAppendLikeTheStandardLibrary(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 200 {
		src := make([]byte, n, n+random.IntN(3))
		for i := range src {
			src[i] = byte(random.Uint32())
		}
		dst := append(make([]byte, 0, random.IntN(400)), "before"...)
		if got, want := string(appendBase64(dst, src)), "before"+base64.RawStdEncoding.EncodeToString(src); got != want {
			t.Fatalf("%x is written as %s, want %s", src, got, want)
		}
	}
	for range 10_000 {
		at := time.Unix(random.Int64N(400_000_000_000)-100_000_000_000, random.Int64N(1e9)).UTC()
		if got, want := string(appendDatetime(nil, at)), at.Format(datetimeLayout); got != want {
			t.Fatalf("%v is written as %s, want %s", at, got, want)
		}
	}
	for c := range 256 {
		for _, s := range []string{string([]byte{byte(c)}), "a" + string(rune(c)), "did:web:" + string(rune(c)) + "x"} {
			if got, want := string(AppendString(nil, s)), string(appendQuoted(nil, s)); got != want {
				t.Fatalf("%q is written as %s, want %s", s, got, want)
			}
		}
	}
}
