package client

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/xrpc"
)

// The server has lost the last two of five entries that the phone has read. One entry comes back at
// another place. The phone could not decrypt this entry again, and recognises it by its bytes. The
// phone keeps the other entry.
func TestLostEntriesKeepTheirText(t *testing.T) {
	t.Parallel()
	p, convo := lonelyPhone(t, func(req *http.Request) (*http.Response, error) {
		since := req.URL.Query().Get("sinceMessage")
		switch {
		case since == "id-4", since == "id-5":
			return respond(400, `{"error":"InvalidCursor","message":"lost"}`), nil
		case req.URL.Query().Get("limit") == "1":
			return respond(200, `{"messages":[],"lastSeq":4}`), nil
		case since == "id-3":
			last := int64(4)
			out := mlsapi.GetMessagesOutput{LastSeq: &last, Messages: []mlsapi.MessageView{entryView("id-6", 4, "body 5")}}
			return respond(200, string(out.AppendJSON(nil))), nil
		}
		return nil, fmt.Errorf("asked for %s", req.URL)
	})
	changes := map[string][]byte{}
	for seq := int64(1); seq <= 5; seq++ {
		view := entryView(fmt.Sprint("id-", seq), seq, fmt.Sprint("body ", seq))
		item := history.Item{Seq: seq, ID: view.ID, Sender: view.Sender, Text: fmt.Sprint("text ", seq),
			Digest: history.DigestOf(view.Ciphertext)}
		if err := p.writeItem(inboxName(convo, seq), item, changes); err != nil {
			t.Fatal(err)
		}
	}
	thread := p.Threads[convo]
	thread.First, thread.Cursor, thread.Last = 1, 5, "id-5"
	if err := p.Save(changes); err != nil {
		t.Fatal(err)
	}
	if err := p.Sync(t.Context(), convo); err != nil {
		t.Fatal(err)
	}
	inbox, err := p.Inbox(convo)
	if err != nil {
		t.Fatal(err)
	}
	if len(inbox) != 4 || inbox[3].Seq != 4 || inbox[3].ID != "id-6" || inbox[3].Text != "text 5" {
		t.Errorf("the inbox is %+v", inbox)
	}
	loose, err := p.Loose(convo)
	if err != nil {
		t.Fatal(err)
	}
	if len(loose) != 1 || loose[0].Text != "text 4" {
		t.Errorf("loose is %+v", loose)
	}
	if thread.Cursor != 4 || thread.Last != "id-6" || !thread.Rewound {
		t.Errorf("the thread is %+v", thread)
	}
}

func entryView(id string, seq int64, body string) mlsapi.MessageView {
	kind := mlsapi.MessageViewMessageTypeApplication
	return mlsapi.MessageView{ID: id, Seq: seq, Ciphertext: []byte(body), MessageType: &kind, Sender: "did:plc:other"}
}

// A phone keeps its last 200 acknowledged drafts, and no draft that is older than a week.
func TestKeptDraftsAreBounded(t *testing.T) {
	t.Parallel()
	p, convo := lonelyPhone(t, func(*http.Request) (*http.Response, error) { return nil, errNoNetwork })
	old := fmt.Sprintf("%s%020d", keptPrefix, time.Now().Add(-longestKept-time.Minute).UnixNano())
	p.Disk.Write(map[string][]byte{old: []byte("{}")})
	for i := range maxKept + 5 {
		changes := map[string][]byte{}
		if err := p.keep(&Draft{Kind: kindSend, Text: fmt.Sprint(i),
			Call: xrpc.Call{Method: xrpc.NSID("sendMessage"), Convo: convo}}, changes); err != nil {
			t.Fatal(err)
		}
		if err := p.Save(changes); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := p.keptDrafts(convo)
	if err != nil {
		t.Fatal(err)
	}
	if len(kept) != maxKept || kept[0].Text != "5" {
		t.Errorf("%d drafts are kept, the oldest is %q", len(kept), kept[0].Text)
	}
	if _, ok := p.Disk.Read(old); ok {
		t.Error("a draft is kept for more than a week")
	}
}
