package lexcodec_test

import (
	"bytes"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"mlsd/api/mlsapi"
)

// Bodies as large as the server lets through, each built to be expensive. They
// take under a second and little more memory than they are long themselves.
//
// It is not parallel, because it measures.
func TestHostileBodies(t *testing.T) {
	if testing.Short() {
		t.Skip("volume")
	}
	const size = 15 << 20
	fill := func(open, unit, end string) []byte {
		return []byte(open + strings.Repeat(unit, (size-len(open)-len(end))/len(unit)) + end)
	}
	for _, tc := range []struct {
		name string
		body []byte
	}{
		{"deep arrays", fill(`{"zz":`, `[`, ``)},
		{"deep objects", fill(`{"zz":`, `{"a":`, ``)},
		{"deep, many times", fill(`{"zz":[`, strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+",", `0]}`)},
		{"wide object inside", fill(`{"zz":{`, `"k":0,`, `"k":0}}`)},
		{"long unknown string", fill(`{"zz":"`, `a`, `"}`)},
		{"long unknown name", fill(`{"`, `a`, `":1}`)},
		{"long escaped name", fill(`{"`, `\u0061`, `":1}`)},
		{"long groupId", fill(`{"groupId":"`, `a`, `"}`)},
		{"long escaped groupId", fill(`{"groupId":"`, `\u0061`, `"}`)},
		{"long groupInfo", fill(`{"groupInfo":{"$bytes":"`, `A`, `"}}`)},
		{"long DID", fill(`{"initialMembers":["did:web:`, `a`, `"]}`)},
		{"many members", fill(`{"initialMembers":[`, `"did:web:a",`, `"did:web:a"]}`)},
		{"many hashes", fill(`{"keyPackageHashes":[`, `{"did":"did:a:b","hash":""},`, `0]}`)},
		{"many hashes with unknown fields", fill(`{"keyPackageHashes":[`, `{"did":"did:a:b","hash":"","x":1,"y":1},`, `0]}`)},
		{"long integer", fill(`{"currentEpoch":`, `9`, `}`)},
		{"white space", fill(``, ` `, `{}`)},
		{"nulls", fill(`{"zz":[`, `null,`, `null]}`)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := processorTime(t)
			_, err := mlsapi.DecodeCreateConvoInput(tc.body)
			took := processorTime(t) - start
			runtime.ReadMemStats(&after)
			allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
			t.Logf("%v, %d MiB: %v", took.Round(time.Millisecond), allocated, err)
			if err == nil {
				t.Error("accepted")
			}
			if measurable && took > 3*time.Second { // it is 0.2 s
				t.Errorf("took %v", took)
			}
			if measurable && allocated > 400 {
				t.Errorf("allocated %d MiB", allocated)
			}
			if err != nil && len(err.Error()) > 200 {
				t.Error("the message repeats the body")
			}
		})
	}
}

// processorTime returns what the process has used so far, which other processes do not change.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A decoder that is used again must not remember the request before.
func TestDecoderForgets(t *testing.T) {
	t.Parallel()
	good := []byte(`{"convoId":"c","\u0073eq":1}`)
	for range 100 {
		for _, bad := range []string{`{"convoId":"c","seq":1`, `{"convoId":[[`, `{"convoId":"\u0061","seq":{}}`, ``,
			`{"z\u0061":1,"convoId":null}`} {
			if _, err := mlsapi.DecodeUpdateCursorInput([]byte(bad)); err == nil {
				t.Fatalf("%s: accepted", bad)
			}
			body := bytes.Clone(good)
			in, err := mlsapi.DecodeUpdateCursorInput(body)
			if err != nil || in.ConvoID != "c" || in.Seq != 1 {
				t.Fatalf("after %s: %v, %v", bad, in, err)
			}
			if !bytes.Equal(body, good) {
				t.Fatal("the body was changed")
			}
			clear(body)
			if in.ConvoID != "c" {
				t.Fatal("the result shares the body's memory")
			}
		}
	}
}
