package client

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

// A correct push passes. A push with one thing changed does not.
func TestReceiverJudgesPushes(t *testing.T) {
	t.Parallel()
	const job = "0192f3a4-5c6d-7e8f-9a0b-1c2d3e4f5a6b"
	const good = `{"type":"message","deviceId":"phone","jobId":"` + job + `"}`
	now := time.Now()
	tests := map[string]struct {
		body, key, secret string
		stamp             time.Time
		header            string // one more header
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
		"a secret":         {good, "mlsd-" + job, "s", now, "", ""},
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
			r := &Receiver{targets: map[string]*PushTarget{}}
			b := &PushTarget{Device: "phone", r: r, secrets: []string{"s"},
				pushes: []Push{{At: now, header: header, body: []byte(tt.body), Answer: 200}}}
			r.targets["/"] = b
			words, want := []string{"did:plc:somebody"}, tt.want
			if name == "a secret" {
				words, want = []string{"PHONE"}, "has \"PHONE\" in it"
			}
			found := r.Faults(words)
			if want == "" && len(found) > 0 || want != "" && (len(found) != 1 || !strings.Contains(found[0], want)) {
				t.Errorf("found %v, want %q", found, want)
			}
		})
	}
}
