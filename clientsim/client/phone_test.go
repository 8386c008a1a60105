package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/xrpc"
	"mlsd/clientsim/xrpc/xrpctest"
)

// errNoNetwork is what a call gets while the network is down.
var errNoNetwork = errors.New("no network")

// roundTrip is a function that acts as the network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func respond(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

// lonelyPhone is a phone that is alone in a convo and talks to net.
func lonelyPhone(t *testing.T, net roundTrip) (*Phone, string) {
	t.Helper()
	const convo = "the-convo"
	client := xrpc.NewClient("http://server.test", xrpc.DefaultServiceDID, net, &xrpc.Stats{})
	p, err := NewPhone("phone", xrpctest.Account(t, 0), mlsclient.SuiteX25519, client, history.NewModel())
	if err != nil {
		t.Fatal(err)
	}
	group, err := p.Device.Create([]byte("lonely"))
	if err != nil {
		t.Fatal(err)
	}
	p.Model.Created(convo, group.ID(), 0, true, p.Account.DID, nil)
	changes := map[string][]byte{}
	if err := p.openThread(&Thread{ConvoID: convo, GroupID: group.ID()}, changes); err != nil {
		t.Fatal(err)
	}
	if err := p.Save(changes); err != nil {
		t.Fatal(err)
	}
	return p, convo
}

// The ciphertext and its key are on the disk before the first byte is sent. An app that is killed
// after that sends the same bytes again. It encrypts nothing under a ratchet key that it has used.
func TestJournalBeforeSending(t *testing.T) {
	t.Parallel()
	var p *Phone
	var sentBodies [][]byte
	down := true
	p, convo := lonelyPhone(t, func(req *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		sentBodies = append(sentBodies, body)
		found := false
		for _, name := range p.Disk.List(OutboxPrefix) {
			draft, err := p.readDraft(strings.TrimPrefix(name, OutboxPrefix))
			if err != nil {
				return nil, err
			}
			found = found || bytes.Equal(draft.Call.Body, body)
		}
		if !found {
			t.Error("bytes on the wire that are not on the disk")
		}
		if down {
			return nil, errNoNetwork
		}
		return respond(200, fmt.Sprintf(`{"messageId":"id-%d","receivedAt":"2026-01-01T00:00:00.000Z","seq":%d,"epoch":0}`,
			len(sentBodies), len(sentBodies))), nil
	})
	d, err := p.DraftSend(convo, "one")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Net.Once(t.Context(), p.Account, d.Call); !errors.Is(err, errNoNetwork) {
		t.Fatalf("Once = %v", err)
	}
	p.Kill()
	if _, err := p.DraftSend(convo, "x"); !errors.Is(err, ErrKilled) {
		t.Errorf("a killed app drafts: %v", err)
	}
	if err := p.Launch(); err != nil {
		t.Fatal(err)
	}
	down = false
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sentBodies[0], sentBodies[1]) {
		t.Error("the retry after the kill has other bytes")
	}
	if left := p.Disk.List(OutboxPrefix); len(left) != 0 {
		t.Errorf("still in the outbox: %v", left)
	}
	if err := p.Send(t.Context(), convo, "two"); err != nil {
		t.Fatal(err)
	}
	first, second := ciphertextOf(t, sentBodies[0]), ciphertextOf(t, sentBodies[2])
	if bytes.Equal(first, second) {
		t.Error("two messages are one ciphertext")
	}
	c := p.Model.Snapshot()[0]
	if len(c.Sent) != 2 || len(c.Attempted) != 2 {
		t.Errorf("the model has %d acknowledged and %d attempted, want 2 and 2", len(c.Sent), len(c.Attempted))
	}
}

func ciphertextOf(t *testing.T, body []byte) []byte {
	t.Helper()
	in, err := mlsapi.DecodeSendMessageInput(body)
	if err != nil {
		t.Fatal(err)
	}
	return in.Ciphertext
}

// After EpochMismatch the text is encrypted again under a new key. The model knows that the first
// ciphertext must never appear.
func TestEpochMismatchNeedsANewKey(t *testing.T) {
	t.Parallel()
	var keys []string
	p, convo := lonelyPhone(t, func(req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodGet {
			return respond(200, `{"messages":[],"lastSeq":0}`), nil
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		in, err := mlsapi.DecodeSendMessageInput(body)
		if err != nil {
			return nil, err
		}
		keys = append(keys, *in.IdempotencyKey)
		if len(keys) == 1 {
			return respond(409, `{"error":"EpochMismatch","message":"epoch 0 is stale; currentEpoch=1"}`), nil
		}
		return respond(200, `{"messageId":"id","receivedAt":"2026-01-01T00:00:00.000Z","seq":1,"epoch":0}`), nil
	})
	if err := p.Send(t.Context(), convo, "hello"); err != nil {
		t.Fatal(err)
	}
	if len(keys) != 2 || keys[0] == keys[1] {
		t.Errorf("keys %v, want two different ones", keys)
	}
	c := p.Model.Snapshot()[0]
	if len(c.Refused) != 1 || len(c.Sent) != 1 {
		t.Errorf("the model has %d refused and %d acknowledged, want 1 and 1", len(c.Refused), len(c.Sent))
	}
}

// The same text acknowledged under two ids is reported at once.
func TestSecondAcknowledgement(t *testing.T) {
	t.Parallel()
	n := 0
	p, convo := lonelyPhone(t, func(*http.Request) (*http.Response, error) {
		n++
		return respond(200, fmt.Sprintf(`{"messageId":"id-%d","receivedAt":"2026-01-01T00:00:00.000Z","seq":%d,"epoch":0}`, n,
			n)), nil
	})
	d, err := p.DraftSend(convo, "hello")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Deliver(t.Context(), d); err == nil {
		t.Error("one message was acknowledged as two")
	}
}

// A page with a gap is refused.
func TestSyncRefusesAGap(t *testing.T) {
	t.Parallel()
	var p *Phone
	var body string
	p, convo := lonelyPhone(t, func(*http.Request) (*http.Response, error) { return respond(200, body), nil })
	page := mlsapi.GetMessagesOutput{}
	for _, seq := range []int64{1, 3} {
		d, err := p.DraftSend(convo, fmt.Sprint("message ", seq))
		if err != nil {
			t.Fatal(err)
		}
		page.Messages = append(page.Messages, mlsapi.MessageView{
			ID: fmt.Sprint(seq), ConvoID: convo, Sender: p.Account.DID, Seq: seq, Ciphertext: ciphertextOf(t, d.Call.Body),
		})
	}
	body = string(page.AppendJSON(nil))
	if err := p.Sync(t.Context(), convo); err == nil || !strings.Contains(err.Error(), "a gap: it follows 1") {
		t.Errorf("Sync = %v, want a gap", err)
	}
}

func TestDisk(t *testing.T) {
	t.Parallel()
	d := NewDisk()
	d.Write(map[string][]byte{"a/1": []byte("x"), "a/2": {}, "b": []byte("y")})
	d.Write(map[string][]byte{"a/1": nil, "a/3": []byte("z")})
	if diff := cmp.Diff([]string{"a/2", "a/3"}, d.List("a/")); diff != "" {
		t.Error(diff)
	}
	if _, ok := d.Read("a/1"); ok {
		t.Error("a removed file is there")
	}
}
