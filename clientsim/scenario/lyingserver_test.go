package scenario

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// lyingServer stands between the simulator and a correct server and breaks one promise. It is below
// the ledger and the faults. So the simulator sees the answers of a server with that bug.
type lyingServer struct {
	wire http.RoundTripper
	// before may send requests of its own before the request.
	before func(*lyingServer, *http.Request, xrpc.CallInfo) error
	// after may change an answer; n counts this method's answers from 1.
	after func(t xrpc.CallInfo, n int, a *http.Response, body []byte) []byte

	mu    sync.Mutex // guards count
	count map[string]int
}

func (l *lyingServer) RoundTrip(req *http.Request) (*http.Response, error) {
	t, ok := xrpc.CallInfoFrom(req.Context())
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
	l.count[t.Call.Method.Name()]++
	body = l.after(t, l.count[t.Call.Method.Name()], resp, body)
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

// doubled sends each message once more under another key, like a server without idempotency.
func doubled(l *lyingServer, req *http.Request, t xrpc.CallInfo) error {
	if t.Call.Method != mlsapi.NSIDSendMessage || t.Call.Key == "" {
		return nil
	}
	in, err := mlsapi.DecodeSendMessageInput(t.Call.Body)
	if err != nil {
		return err
	}
	key := xrpc.NewKey()
	in.IdempotencyKey = &key
	token, err := t.Who.Token(t.Audience, t.Call.Method)
	if err != nil {
		return err
	}
	again := req.Clone(req.Context())
	body := xrpc.Encode(in)
	again.Header.Set("Authorization", "Bearer "+token)
	again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	resp, err := l.wire.RoundTrip(again)
	if err != nil {
		return err
	}
	return xrpc.Drain(resp)
}

// edited changes the outputs of a method; n counts its answers from 1.
func edited[P interface {
	*T
	AppendJSON(dst []byte) []byte
}, T any](method syntax.NSID, change func(out P, n int)) func(xrpc.CallInfo, int, *http.Response, []byte) []byte {
	return func(t xrpc.CallInfo, n int, a *http.Response, body []byte) []byte {
		if t.Call.Method != method || a.StatusCode != 200 {
			return body
		}
		out, err := xrpc.Decode[T](body)
		if err != nil {
			return body
		}
		change(out, n)
		return P(out).AppendJSON(nil)
	}
}

// forgetful leaves out the first entry of a log.
func forgetful(out *mlsapi.GetMessagesOutput, _ int) {
	out.Messages = slices.DeleteFunc(out.Messages, func(m mlsapi.MessageView) bool { return m.Seq == 1 })
}

// sliding moves the grace with every fetch.
func sliding(out *mlsapi.GetWelcomeOutput, n int) {
	later := lexcodec.NewDatetime(out.GraceExpiresAt.Add(time.Duration(n) * time.Second))
	out.GraceExpiresAt = &later
}

// level is the level at which the server has checked a commit.
var level = regexp.MustCompile(`"commitLevel":"(header|verified)"`)

// TestALyingServerIsCaught checks that the scenarios and the checks can fail. Each lie is a bug
// that a real server had.
func TestALyingServerIsCaught(t *testing.T) {
	t.Parallel()
	to := bootServer(t)
	lies := []struct {
		name, scenario string
		lyingServer    *lyingServer
		kind           history.ViolationKind
		want           string
	}{
		{"a message is stored twice", "lost-answer", &lyingServer{before: doubled}, history.Duplicated, "stands at"},
		{"a message is forgotten", "lost-answer",
			&lyingServer{after: edited(mlsapi.NSIDGetMessages, forgetful)}, history.Lost, "acknowledged at seq 1"},
		{"a replay is changed", "lost-answer",
			&lyingServer{after: func(_ xrpc.CallInfo, _ int, a *http.Response, body []byte) []byte {
				if a.Header.Get("X-Idempotency-Replay") == "true" {
					body = append(body, ' ')
				}
				return body
			}}, history.Broken, "and before 200"},
		{"a replay does not say so", "twice-at-once",
			&lyingServer{after: func(_ xrpc.CallInfo, _ int, a *http.Response, body []byte) []byte {
				a.Header.Del("X-Idempotency-Replay")
				return body
			}}, history.Broken, "as if for the first time"},
		{"the epoch is checked before the key", "lost-answer",
			&lyingServer{after: func(t xrpc.CallInfo, _ int, a *http.Response, body []byte) []byte {
				if t.Call.Method == mlsapi.NSIDSendMessage && a.Header.Get("X-Idempotency-Replay") == "true" {
					return refuse(a, 409, mlsapi.ErrEpochMismatch, "epoch 1 is stale; currentEpoch=2")
				}
				return body
			}}, history.Broken, "was refused and stands in the log"},
		{"a retried leave is refused", "lost-answer",
			&lyingServer{after: func(t xrpc.CallInfo, _ int, a *http.Response, body []byte) []byte {
				if t.Call.Method == mlsapi.NSIDLeaveConvo && a.Header.Get("X-Idempotency-Replay") == "true" {
					return refuse(a, 403, mlsapi.ErrNotMember, "you left")
				}
				return body
			}}, history.Broken, "NotMember"},
		{"outsiders learn that a convo exists", "lost-answer",
			&lyingServer{after: func(t xrpc.CallInfo, _ int, a *http.Response, body []byte) []byte {
				if t.Call.Method == mlsapi.NSIDGetEpoch && a.StatusCode == 404 {
					return refuse(a, 403, mlsapi.ErrNotMember, "not a member")
				}
				return body
			}}, history.Broken, "answers an outsider 403"},
		{"a second fetch is gone", "lost-answer",
			&lyingServer{after: func(t xrpc.CallInfo, n int, a *http.Response, body []byte) []byte {
				if t.Call.Method == mlsapi.NSIDGetWelcome && n == 2 {
					return refuse(a, 410, mlsapi.ErrWelcomeConsumed, "gone")
				}
				return body
			}}, history.Broken, "WelcomeConsumed"},
		{"the grace slides", "lost-answer",
			&lyingServer{after: edited(mlsapi.NSIDGetWelcome, sliding)}, history.Broken, "moved the grace"},
		{"a member is missing from the roster", "lost-answer",
			&lyingServer{after: shortRoster}, history.Broken, "the roster of"},
		{"a convo is listed twice", "lost-answer", &lyingServer{after: relist(func(out *mlsapi.GetConvosOutput) {
			out.Conversations = append(out.Conversations, out.Conversations...)
		})}, history.Duplicated, "lists it twice"},
		{"a convo is not listed", "lost-answer", &lyingServer{after: relist(func(out *mlsapi.GetConvosOutput) {
			out.Conversations = nil
		})}, history.Lost, "does not list it"},
		{"an old epoch is listed", "lost-answer", &lyingServer{after: relist(func(out *mlsapi.GetConvosOutput) {
			out.Conversations[0].Epoch--
		})}, history.Broken, "says epoch 5, want 6"},
		{"own messages are unread", "lost-answer", &lyingServer{after: relist(func(out *mlsapi.GetConvosOutput) {
			*out.Conversations[0].Unread += 3
		})}, history.Broken, "unread behind seq"},
		{"the cursor moves back", "lost-answer",
			&lyingServer{after: func(t xrpc.CallInfo, _ int, a *http.Response, body []byte) []byte {
				if in, err := mlsapi.DecodeUpdateCursorInput(t.Call.Body); err == nil && a.StatusCode == 200 {
					return fmt.Appendf(nil, `{"seq":%d}`, in.Seq)
				}
				return body
			}}, history.Broken, "and must stand between"},
		{"an old GroupInfo is handed out", "lost-answer",
			&lyingServer{after: firstForEver(mlsapi.NSIDGetGroupInfo)}, history.Broken, "getGroupInfo shows group"},
		{"a removed member is no outsider", "lost-answer",
			&lyingServer{after: func(_ xrpc.CallInfo, _ int, a *http.Response, body []byte) []byte {
				if bytes.Contains(body, []byte(mlsapi.ErrNotMember)) {
					return refuse(a, 404, mlsapi.ErrConvoNotFound, "no such convo")
				}
				return body
			}}, history.Broken, "answers a former member"},
		{"another level of checks is shown", "lost-answer",
			&lyingServer{after: func(_ xrpc.CallInfo, _ int, _ *http.Response, body []byte) []byte {
				return level.ReplaceAll(body, []byte(`"commitLevel":"structure"`))
			}}, history.Broken, `"structure", want`},
		{"a removal by anybody is taken", "malicious-commit",
			&lyingServer{after: func(_ xrpc.CallInfo, _ int, a *http.Response, body []byte) []byte {
				if bytes.Contains(body, []byte(mlsapi.ErrNotPermitted)) {
					a.StatusCode = 200
					return []byte(`{"newEpoch":9,"seq":9}`)
				}
				return body
			}}, history.Broken, "the removal of another member: "},
		{"a commit that won is said to have lost", "contended-commits",
			&lyingServer{after: func(t xrpc.CallInfo, n int, a *http.Response, body []byte) []byte {
				if t.Call.Method == mlsapi.NSIDSubmitCommit && a.StatusCode == 200 && n > 8 {
					return refuse(a, 409, mlsapi.ErrEpochMismatch, "epoch 1 is stale; currentEpoch=2")
				}
				return body
			}}, history.Broken, "was refused and stands in the log|asked again: blue.catbird.mls.submitCommit: 409"},
		{"a last-resort KeyPackage does not say so", "claim-at-once",
			&lyingServer{after: func(_ xrpc.CallInfo, _ int, _ *http.Response, body []byte) []byte {
				return bytes.ReplaceAll(body, []byte(`"lastResort":true`), []byte(`"lastResort":false`))
			}}, history.Broken, "says lastResort false"},
		{"a KeyPackage is handed out twice", "claim-at-once", &lyingServer{after: firstForEver(mlsapi.NSIDGetKeyPackages)},
			history.Broken, "was handed out for the claims"},
		{"an entry has another time", "verified-log", &lyingServer{after: reshow(12, func(m *mlsapi.MessageView) {
			m.CreatedAt = lexcodec.NewDatetime(m.CreatedAt.Add(-time.Hour))
		})}, history.Broken, "entry 12 is the first that differs|entry 12 is mine, was acknowledged at"},
		{"an entry has another sender", "verified-log", &lyingServer{after: reshow(12, func(m *mlsapi.MessageView) {
			m.Sender = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
		})}, history.Broken, "does not say what stands for it in the log|entry 12 is mine, and is shown as one of"},
		{"a head is stale", "verified-log", &lyingServer{after: firstForEver(mlsapi.NSIDGetLogHead)}, history.Broken,
			"the head is stale|does not say what stands for it"},
		{"a head has another signature", "verified-log",
			&lyingServer{after: edited(mlsapi.NSIDGetLogHead, func(out *mlsapi.GetLogHeadOutput, n int) {
				if n >= 6 {
					out.Head = strings.Replace(out.Head, "\ntime 2", "\ntime 3", 1)
				}
			})}, history.Broken, "is not signed with the key"},
		{"a proof is wrong", "verified-log",
			&lyingServer{after: edited(mlsapi.NSIDGetLogProof, func(out *mlsapi.GetLogProofOutput, _ int) {
				if len(out.Hashes) > 0 {
					out.Hashes[0][0] ^= 1
				}
			})}, history.Broken, "its proof is wrong"},
	}
	for _, tt := range lies {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			lied := to
			tt.lyingServer.wire = to.Transport
			lied.Transport = tt.lyingServer
			result := playNamed(t, tt.scenario, lied, testbed.Options{Seed: 1, Clients: 4, Messages: 10})
			for _, v := range result.Violations {
				// The first visible violation can depend on which client asks first.
				if v.Kind == tt.kind && slices.ContainsFunc(strings.Split(tt.want, "|"),
					func(want string) bool { return strings.Contains(v.What, want) }) {
					return
				}
			}
			t.Errorf("no %s violation with %q among %v", tt.kind, tt.want, result.Violations)
		})
	}
}

// firstForEver answers every call of a method with the first successful answer.
func firstForEver(method string) func(xrpc.CallInfo, int, *http.Response, []byte) []byte {
	var first []byte
	return func(t xrpc.CallInfo, _ int, a *http.Response, body []byte) []byte {
		if t.Call.Method.String() != method || a.StatusCode != 200 {
			return body
		}
		if first == nil && bytes.Contains(body, []byte(`"missing"`)) { // a caller that came too late may get the first answer
			return body
		}
		if first == nil {
			first = bytes.Clone(body)
		}
		return first
	}
}

// reshow changes an entry of the log.
func reshow(seq int64, change func(*mlsapi.MessageView)) func(xrpc.CallInfo, int, *http.Response, []byte) []byte {
	return edited(mlsapi.NSIDGetMessages, func(out *mlsapi.GetMessagesOutput, _ int) {
		for i := range out.Messages {
			if out.Messages[i].Seq == seq {
				change(&out.Messages[i])
			}
		}
	})
}

// relist changes a list of convos.
func relist(change func(*mlsapi.GetConvosOutput)) func(xrpc.CallInfo, int, *http.Response, []byte) []byte {
	return edited(mlsapi.NSIDGetConvos, func(out *mlsapi.GetConvosOutput, _ int) {
		if len(out.Conversations) > 0 {
			change(out)
		}
	})
}

// shortRoster leaves the last member out of getConvo.
func shortRoster(t xrpc.CallInfo, _ int, a *http.Response, body []byte) []byte {
	if t.Call.Method != mlsapi.NSIDGetConvo || a.StatusCode != 200 {
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
