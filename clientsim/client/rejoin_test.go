package client

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
)

// A phone that lost everything rejoins by external commit. The commit is on the disk before it is
// sent. A killed app sends the same bytes. The phone is in the group when the server acknowledges
// the commit, and not before.
func TestRejoinSurvivesAKill(t *testing.T) {
	t.Parallel()
	var bodies [][]byte
	var info []byte
	down := true
	p, convo := lonelyPhone(t, func(req *http.Request) (*http.Response, error) {
		if strings.HasSuffix(req.URL.Path, "getGroupInfo") {
			out := mlsapi.GetGroupInfoOutput{GroupInfo: info}
			return respond(200, string(out.AppendJSON(nil))), nil
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, body)
		if down {
			return nil, errNoNetwork
		}
		return respond(200, `{"newEpoch":1,"seq":5}`), nil
	})
	group, err := p.Group(convo)
	if err != nil {
		t.Fatal(err)
	}
	if info, err = group.GroupInfo(); err != nil {
		t.Fatal(err)
	}
	key := p.Device.SignatureKey()
	if err := p.LoseState(false); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(key, p.Device.SignatureKey()) || len(p.Disk.List(threadPrefix)) != 0 {
		t.Error("the phone has lost nothing")
	}
	got, err := p.GroupInfo(t.Context(), convo)
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.DraftRejoin(convo, got)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Net.Once(t.Context(), p.Account, d.Call); err == nil {
		t.Fatal("the network is down")
	}
	p.Kill()
	if err := p.Launch(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Group(convo); err == nil {
		t.Error("in the group before the server said so")
	}
	down = false
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bodies[0], bodies[1]) {
		t.Error("the retry after the kill has other bytes")
	}
	thread, group, err := p.Open(convo)
	if err != nil {
		t.Fatal(err)
	}
	if thread.Cursor != 5 || thread.Entered != 1 || group.Epoch() != 1 || len(group.Leaves()) != 1 {
		t.Errorf("thread %+v in epoch %d with %d leaves", thread, group.Epoch(), len(group.Leaves()))
	}
	if c := p.Model.Snapshot()[0]; len(c.Commits) != 1 || c.Commits[d.Digest].Seq != 5 {
		t.Errorf("the model has the commits %+v", c.Commits)
	}
}

// A device skips the messages from before it joined the group, and no others.
func TestSyncPassesOverThePast(t *testing.T) {
	t.Parallel()
	page := mlsapi.GetMessagesOutput{}
	var body string
	p, convo := lonelyPhone(t, func(*http.Request) (*http.Response, error) { return respond(200, body), nil })
	for seq := range int64(3) {
		d, err := p.DraftSend(convo, fmt.Sprint("message ", seq))
		if err != nil {
			t.Fatal(err)
		}
		page.Messages = append(page.Messages, mlsapi.MessageView{
			ID: fmt.Sprint(seq), ConvoID: convo, Sender: p.Account.DID, Seq: seq + 1, Ciphertext: ciphertextOf(t, d.Call.Body),
		})
		p.Disk.Write(map[string][]byte{ownName(d.Digest): nil}) // as if another device had sent it
	}
	body = string(page.AppendJSON(nil))
	p.Threads[convo].Entered = 1
	if err := p.Sync(t.Context(), convo); err != nil {
		t.Fatal(err)
	}
	items, err := p.Inbox(convo)
	if err != nil {
		t.Fatal(err)
	}
	if len(items) != 3 || slices.ContainsFunc(items, func(i history.Item) bool { return !i.Past }) {
		t.Errorf("the inbox is %+v", items)
	}
}
