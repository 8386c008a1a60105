package clientsim

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A push is judged by all that docs/PUSH.md says of it: one that is as it must
// be passes, and one with any single thing changed does not.
func TestReceiverJudgesPushes(t *testing.T) {
	t.Parallel()
	const job = "0192f3a4-5c6d-7e8f-9a0b-1c2d3e4f5a6b"
	const good = `{"type":"message","deviceId":"phone","jobId":"` + job + `"}`
	now := time.Now()
	tests := map[string]struct {
		body, key, secret string
		stamp             time.Time
		header            string // one more
		want              string
	}{
		"good":             {good, "mlsd-" + job, "s", now, "", ""},
		"another secret":   {good, "mlsd-" + job, "t", now, "", "signature"},
		"old":              {good, "mlsd-" + job, "s", now.Add(-6 * time.Minute), "", "timestamp"},
		"another's key":    {good, "mlsd-", "s", now, "", "key"},
		"one more header":  {good, "mlsd-" + job, "s", now, "X-Sender", "header"},
		"one more field":   {strings.Replace(good, "{", `{"n":1,`, 1), "mlsd-" + job, "s", now, "", "unknown field"},
		"something behind": {good + "{}", "mlsd-" + job, "s", now, "", "follows"},
		"another type":     {strings.Replace(good, "message", "leave", 1), "mlsd-" + job, "s", now, "", "type"},
		"another's device": {strings.Replace(good, "phone", "tablet", 1), "mlsd-" + job, "s", now, "", "device"},
		"a word too many":  {good, "mlsd-" + job, "s", now, "", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stamp := strconv.FormatInt(tt.stamp.Unix(), 10)
			mac := hmac.New(sha256.New, []byte(tt.secret))
			mac.Write([]byte(stamp + "." + tt.body))
			header := http.Header{
				"Idempotency-Key": {tt.key}, "X-Mlsd-Timestamp": {stamp},
				"X-Mlsd-Signature": {"sha256=" + hex.EncodeToString(mac.Sum(nil))},
			}
			if tt.header != "" {
				header.Set(tt.header, "a")
			}
			r := &Receiver{bells: map[string]*Bell{}}
			b := &Bell{Device: "phone", r: r, secrets: []string{"s"}, rings: []ring{{at: now, header: header, body: []byte(tt.body), answer: 200}}}
			r.bells["/"] = b
			w := newWorld(target{transport: http.DefaultTransport}, Options{}, 0, func(string) {})
			words, want := []string{"did:plc:somebody"}, tt.want
			if name == "a word too many" {
				words, want = []string{"PHONE"}, "has \"PHONE\" in it"
			}
			w.checkPushes(r, words)
			found := w.Found()
			if want == "" && len(found) > 0 || want != "" && (len(found) != 1 || !strings.Contains(found[0].What, want)) {
				t.Errorf("found %v, want %q", found, want)
			}
		})
	}
}
