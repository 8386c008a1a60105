package clientsim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"mlsd/api/mlsapi"
)

// liar stands between the simulator and an honest server and makes it break
// one promise, below the ledger and the faults: what a server with that bug
// would have said.
type liar struct {
	wire http.RoundTripper
	// before may act on its own, ahead of the request.
	before func(*liar, *http.Request, trip) error
	// after may change an answer; n counts this method's answers from 1.
	after func(t trip, n int, a *http.Response, body []byte) []byte

	mu    sync.Mutex // guards count
	count map[string]int
}

func (l *liar) RoundTrip(req *http.Request) (*http.Response, error) {
	t, ok := tripFrom(req.Context())
	if !ok {
		return l.wire.RoundTrip(req)
	}
	if l.before != nil {
		if err := l.before(l, req, t); err != nil {
			return nil, err
		}
	}
	resp, err := l.wire.RoundTrip(req)
	if err != nil || l.after == nil {
		return resp, err
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if err := resp.Body.Close(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	if l.count == nil {
		l.count = map[string]int{}
	}
	l.count[t.call.Method.Name()]++
	body = l.after(t, l.count[t.call.Method.Name()], resp, body)
	l.mu.Unlock()
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return resp, nil
}

// refuse makes an answer an error.
func refuse(a *http.Response, status int, name, message string) []byte {
	a.StatusCode = status
	a.Header.Del("X-Idempotency-Replay")
	return fmt.Appendf(nil, `{"error":%q,"message":%q}`, name, message)
}

// doubled forwards each message once more under a key of its own, as a server
// without idempotency stores it.
func doubled(l *liar, req *http.Request, t trip) error {
	if t.call.Method != mlsapi.NSIDSendMessage || t.call.Key == "" {
		return nil
	}
	in, err := mlsapi.DecodeSendMessageInput(t.call.Body)
	if err != nil {
		return err
	}
	key := newKey()
	in.IdempotencyKey = &key
	token, err := t.who.Token(t.audience, t.call.Method)
	if err != nil {
		return err
	}
	again := req.Clone(req.Context())
	body := in.AppendJSON(nil)
	again.Header.Set("Authorization", "Bearer "+token)
	again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	resp, err := l.wire.RoundTrip(again)
	if err != nil {
		return err
	}
	return swallow(resp)
}

// forgetful never shows the first entry of a log.
func forgetful(t trip, _ int, a *http.Response, body []byte) []byte {
	if t.call.Method != mlsapi.NSIDGetMessages || a.StatusCode != 200 {
		return body
	}
	out, err := mlsapi.DecodeGetMessagesOutput(body)
	if err != nil {
		return body
	}
	kept := out.Messages[:0]
	for _, m := range out.Messages {
		if m.Seq != 1 {
			kept = append(kept, m)
		}
	}
	out.Messages = kept
	return out.AppendJSON(nil)
}

// sliding moves the grace with every fetch.
func sliding(t trip, n int, a *http.Response, body []byte) []byte {
	if t.call.Method != mlsapi.NSIDGetWelcome || a.StatusCode != 200 {
		return body
	}
	out, err := mlsapi.DecodeGetWelcomeOutput(body)
	if err != nil {
		return body
	}
	later := mlsapi.NewDatetime(out.GraceExpiresAt.Add(time.Duration(n) * time.Second))
	out.GraceExpiresAt = &later
	return out.AppendJSON(nil)
}

// TestALyingServerIsCaught has the scenarios and the checker prove that they
// can fail: each lie is a bug that a real server had.
func TestALyingServerIsCaught(t *testing.T) {
	t.Parallel()
	to := bootServer(t)
	lies := []struct {
		name, scenario string
		liar           *liar
		kind           ViolationKind
		want           string
	}{
		{"a message is stored twice", "lost-answer-send", &liar{before: doubled}, Duplicated, "stands at"},
		{"a message is forgotten", "lost-answer-send", &liar{after: forgetful}, Lost, "acknowledged at seq 1"},
		{"a replay is changed", "lost-answer-send", &liar{after: func(_ trip, _ int, a *http.Response, body []byte) []byte {
			if a.Header.Get("X-Idempotency-Replay") == "true" {
				body = append(body, ' ')
			}
			return body
		}}, Broken, "and before 200"},
		{"a replay does not say so", "twice-at-once", &liar{after: func(_ trip, _ int, a *http.Response, body []byte) []byte {
			a.Header.Del("X-Idempotency-Replay")
			return body
		}}, Broken, "as if for the first time"},
		{"the epoch is checked before the key", "retry-after-epoch", &liar{after: func(t trip, _ int, a *http.Response, body []byte) []byte {
			if t.call.Method == mlsapi.NSIDSendMessage && a.Header.Get("X-Idempotency-Replay") == "true" {
				return refuse(a, 409, mlsapi.ErrEpochMismatch, "epoch 1 is stale; currentEpoch=2")
			}
			return body
		}}, Broken, "was refused and stands in the log"},
		{"a retried leave is refused", "retry-after-leave", &liar{after: func(t trip, _ int, a *http.Response, body []byte) []byte {
			if t.call.Method == mlsapi.NSIDLeaveConvo && a.Header.Get("X-Idempotency-Replay") == "true" {
				return refuse(a, 403, mlsapi.ErrNotMember, "you left")
			}
			return body
		}}, Broken, "NotMember"},
		{"the current epoch is kept secret", "same-epoch", &liar{after: func(_ trip, _ int, a *http.Response, body []byte) []byte {
			if bytes.Contains(body, []byte(mlsapi.ErrEpochMismatch)) {
				return refuse(a, 409, mlsapi.ErrEpochMismatch, "conflict")
			}
			return body
		}}, Broken, "want currentEpoch=2"},
		{"another commit is said to have won", "same-epoch", &liar{after: func(_ trip, _ int, a *http.Response, body []byte) []byte {
			if bytes.Contains(body, []byte(mlsapi.ErrEpochMismatch)) {
				return []byte(`{"error":"EpochMismatch","message":"epoch 1 is stale; currentEpoch=2","currentEpoch":2,"seq":7}`)
			}
			return body
		}}, Broken, "says that seq 7 has won"},
		{"a key's other body is ignored", "key-other-body", &liar{after: func(_ trip, _ int, a *http.Response, body []byte) []byte {
			if bytes.Contains(body, []byte(mlsapi.ErrIdempotencyConflict)) {
				a.StatusCode = 200
				return []byte(`{"messageId":"the first","receivedAt":"2026-01-01T00:00:00.000Z"}`)
			}
			return body
		}}, Broken, "no refusal"},
		{"strangers learn that a convo exists", "no-key", &liar{after: func(t trip, _ int, a *http.Response, body []byte) []byte {
			if t.call.Method == mlsapi.NSIDGetEpoch && a.StatusCode == 404 {
				return refuse(a, 403, mlsapi.ErrNotMember, "not a member")
			}
			return body
		}}, Broken, "answers a stranger 403"},
		{"the group's members are told", "create-existing", &liar{after: func(t trip, _ int, a *http.Response, body []byte) []byte {
			if bytes.Contains(body, []byte(mlsapi.ErrGroupAlreadyExists)) {
				return refuse(a, 409, mlsapi.ErrGroupAlreadyExists, "created by "+t.who.DID.String())
			}
			return body
		}}, Broken, "tells who is in the group"},
		{"a second fetch is gone", "welcome-app-killed", &liar{after: func(t trip, n int, a *http.Response, body []byte) []byte {
			if t.call.Method == mlsapi.NSIDGetWelcome && n == 2 {
				return refuse(a, 410, mlsapi.ErrWelcomeConsumed, "gone")
			}
			return body
		}}, Broken, "WelcomeConsumed"},
		{"the grace slides", "welcome-app-killed", &liar{after: sliding}, Broken, "moved the grace"},
		{"nothing is confirmed", "confirm-twice", &liar{after: func(t trip, _ int, a *http.Response, body []byte) []byte {
			if t.call.Method == mlsapi.NSIDConfirmWelcome && a.StatusCode == 404 {
				a.StatusCode = 200
				return []byte(`{"confirmed":true}`)
			}
			return body
		}}, Broken, "confirming a Welcome that never was"},
		{"a member is missing from the roster", "no-key", &liar{after: shortRoster}, Broken, "the roster of"},
		{"a convo is listed twice", "lost-answer-cursor", &liar{after: relist(func(out *mlsapi.GetConvosOutput) {
			out.Conversations = append(out.Conversations, out.Conversations...)
		})}, Duplicated, "lists it twice"},
		{"a convo is not listed", "lost-answer-cursor", &liar{after: relist(func(out *mlsapi.GetConvosOutput) {
			out.Conversations = nil
		})}, Lost, "does not list it"},
		{"an old epoch is listed", "lost-answer-cursor", &liar{after: relist(func(out *mlsapi.GetConvosOutput) {
			out.Conversations[0].Epoch--
		})}, Broken, "says epoch 0, want 1"},
		{"own messages are unread", "lost-answer-cursor", &liar{after: relist(func(out *mlsapi.GetConvosOutput) {
			*out.Conversations[0].Unread += 3
		})}, Broken, "unread behind seq"},
		{"the cursor moves back", "lost-answer-cursor", &liar{after: func(t trip, _ int, a *http.Response, body []byte) []byte {
			if in, err := mlsapi.DecodeUpdateCursorInput(t.call.Body); err == nil && a.StatusCode == 200 {
				return fmt.Appendf(nil, `{"seq":%d}`, in.Seq)
			}
			return body
		}}, Broken, "and it stands at"},
		{"an old GroupInfo is handed out", "removed-cannot-return", &liar{after: firstForEver(mlsapi.NSIDGetGroupInfo)}, Broken, "getGroupInfo shows group"},
		{"a removed member is no stranger", "removed-cannot-return", &liar{after: func(_ trip, _ int, a *http.Response, body []byte) []byte {
			if bytes.Contains(body, []byte(mlsapi.ErrNotMember)) {
				return refuse(a, 404, mlsapi.ErrConvoNotFound, "no such convo")
			}
			return body
		}}, Broken, "asked for the GroupInfo"},
		{"more is checked than can be", "hidden-handshakes", &liar{after: func(_ trip, _ int, _ *http.Response, body []byte) []byte {
			return bytes.ReplaceAll(body, []byte(`"commitLevel":"header"`), []byte(`"commitLevel":"verified"`))
		}}, Broken, `want "header"`},
		{"a removal by anybody is taken", "malicious-commit", &liar{after: func(_ trip, _ int, a *http.Response, body []byte) []byte {
			if bytes.Contains(body, []byte(mlsapi.ErrNotPermitted)) {
				a.StatusCode = 200
				return []byte(`{"newEpoch":9,"seq":9}`)
			}
			return body
		}}, Broken, "the removal of another member: "},
		{"a commit that won is said to have lost", "contended-commits", &liar{after: func(t trip, n int, a *http.Response, body []byte) []byte {
			if t.call.Method == mlsapi.NSIDSubmitCommit && a.StatusCode == 200 && n > 8 {
				return refuse(a, 409, mlsapi.ErrEpochMismatch, "epoch 1 is stale; currentEpoch=2")
			}
			return body
		}}, Broken, "was refused and stands in the log"},
		{"a last-resort KeyPackage does not say so", "keys-exhausted", &liar{after: func(_ trip, _ int, _ *http.Response, body []byte) []byte {
			return bytes.ReplaceAll(body, []byte(`"lastResort":true`), []byte(`"lastResort":false`))
		}}, Broken, "says lastResort false"},
		{"a KeyPackage is handed out twice", "claim-at-once", &liar{after: firstForEver(mlsapi.NSIDGetKeyPackages)}, Broken, "was handed out for the claims"},
		{"an embed is dropped", "metadata", &liar{after: func(_ trip, _ int, _ *http.Response, body []byte) []byte {
			return bytes.ReplaceAll(body, []byte(`"embedUri"`), []byte(`"embed"`))
		}}, Broken, "is shown the embeds"},
		{"a name is changed", "metadata", &liar{after: func(_ trip, _ int, _ *http.Response, body []byte) []byte {
			return bytes.ReplaceAll(body, []byte("Lunch"), []byte("lunch"))
		}}, Broken, "shows other metadata"},
	}
	for _, tt := range lies {
		t.Run(tt.name, func(t *testing.T) {
			lied := to
			tt.liar.wire = to.transport
			lied.transport = tt.liar
			result := playNamed(t, tt.scenario, lied, Options{Seed: 1, Clients: 4, Messages: 10})
			for _, v := range result.Violations {
				if v.Kind == tt.kind && strings.Contains(v.What, tt.want) {
					return
				}
			}
			t.Errorf("no %s violation with %q among %v", tt.kind, tt.want, result.Violations)
		})
	}
}

// firstForEver answers every call of a method as the first one that got what it asked for.
func firstForEver(method string) func(trip, int, *http.Response, []byte) []byte {
	var first []byte
	return func(t trip, _ int, a *http.Response, body []byte) []byte {
		if t.call.Method.String() != method || a.StatusCode != 200 {
			return body
		}
		if first == nil && bytes.Contains(body, []byte(`"missing"`)) { // whoever came too late may be answered first
			return body
		}
		if first == nil {
			first = bytes.Clone(body)
		}
		return first
	}
}

// relist changes a list of convos.
func relist(change func(*mlsapi.GetConvosOutput)) func(trip, int, *http.Response, []byte) []byte {
	return func(t trip, _ int, a *http.Response, body []byte) []byte {
		if t.call.Method != mlsapi.NSIDGetConvos || a.StatusCode != 200 {
			return body
		}
		out, err := mlsapi.DecodeGetConvosOutput(body)
		if err != nil || len(out.Conversations) == 0 {
			return body
		}
		change(out)
		return out.AppendJSON(nil)
	}
}

// shortRoster leaves the last member out of getConvo.
func shortRoster(t trip, _ int, a *http.Response, body []byte) []byte {
	if t.call.Method != mlsapi.NSIDGetConvo || a.StatusCode != 200 {
		return body
	}
	var out struct {
		Convo map[string]json.RawMessage `json:"convo"`
	}
	var members []json.RawMessage
	if json.Unmarshal(body, &out) != nil || json.Unmarshal(out.Convo["members"], &members) != nil {
		return body
	}
	short, err := json.Marshal(members[:len(members)-1])
	if err != nil {
		return body
	}
	out.Convo["members"] = short
	changed, err := json.Marshal(out)
	if err != nil {
		return body
	}
	return changed
}
