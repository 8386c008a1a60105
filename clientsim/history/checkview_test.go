package history

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
)

// soundView makes a convo of real MLS objects as a correct server would show it to its founder:
// messages in two epochs with a commit between them.
func soundView(t *testing.T) (*ConvoModel, *View) {
	t.Helper()
	const alice, convo = "did:plc:alice", "the-convo"
	device, err := mlsclient.NewDevice(alice, mlsclient.SuiteX25519)
	if err != nil {
		t.Fatal(err)
	}
	group, err := device.Create([]byte("checked"))
	if err != nil {
		t.Fatal(err)
	}
	model := NewModel()
	model.Created(convo, []byte("checked"), 0, true, alice, nil)
	v := &View{Who: "alice", DID: alice}
	entry := func(kind string, body []byte, epoch uint64) *mlsapi.MessageView {
		v.LastSeq++
		v.Log = append(v.Log, mlsapi.MessageView{
			ID: fmt.Sprint("id-", v.LastSeq), ConvoID: convo, Sender: alice, Ciphertext: body,
			Epoch: int64(epoch), Seq: v.LastSeq, MessageType: &kind, CreatedAt: lexcodec.NewDatetime(time.Now()),
		})
		return &v.Log[len(v.Log)-1]
	}
	say := func(text string) {
		body, err := group.Encrypt([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		d := Digest(sha256.Sum256(body))
		e := entry("application", body, group.Epoch())
		model.Attempted(convo, text, d)
		if _, err := model.Acked(convo,
			Sent{Text: text, Sender: alice, Digest: d, Epoch: group.Epoch(), ID: e.ID, Seq: e.Seq}); err != nil {
			t.Fatal(err)
		}
		v.Apps = append(v.Apps, *e)
		v.Inbox = append(v.Inbox, Item{Seq: e.Seq, ID: e.ID, Own: true, Sender: alice, Text: text})
	}
	say("one")
	say("two")
	staged, err := group.StageUpdate()
	if err != nil {
		t.Fatal(err)
	}
	e := entry("commit", staged.Commit, group.Epoch())
	model.AttemptedCommit(convo, DigestOf(staged.Commit), Commit{Sender: alice, Epoch: 1, Public: true})
	if err := model.Committed(convo, DigestOf(staged.Commit), e.Seq); err != nil {
		t.Fatal(err)
	}
	v.Commits = []mlsapi.CommitView{{CommitData: staged.Commit, Epoch: 1, Sender: alice, CreatedAt: e.CreatedAt}}
	v.Inbox = append(v.Inbox, Item{Seq: e.Seq, ID: e.ID, Commit: true, Own: true, Sender: alice})
	if err := group.Confirm(); err != nil {
		t.Fatal(err)
	}
	say("three")
	v.Epoch = 1
	snapshot := model.Snapshot()
	return &snapshot[0], v
}

func TestCheckerPassesASoundLog(t *testing.T) {
	t.Parallel()
	c, v := soundView(t)
	if found := CheckView(c, v); len(found) != 0 {
		t.Errorf("violations in a sound log: %v", found)
	}
}

// A readable proposal that its sender makes again has the bytes of the accepted one, and is refused.
func TestRefusedAgain(t *testing.T) {
	t.Parallel()
	const convo = "c"
	model := NewModel()
	model.Created(convo, nil, 0, false, "did:plc:alice", nil)
	accepted, refused := Digest{1}, Digest{2}
	model.Attempted(convo, "accepted", accepted)
	if _, err := model.Acked(convo, Sent{Text: "accepted", Digest: accepted}); err != nil {
		t.Fatal(err)
	}
	model.Attempted(convo, "refused", refused)
	model.Refused(convo, accepted)
	model.Refused(convo, refused)
	if got := slices.Collect(maps.Keys(model.Snapshot()[0].Refused)); !slices.Equal(got, []Digest{refused}) {
		t.Errorf("refused are %v, want %v alone", got, refused)
	}
}

// Each case is one fault of a server. The checker must report it, and count it as the right kind.
func TestCheckerSeesSeededViolations(t *testing.T) {
	t.Parallel()
	mallory := syntax.DID("did:plc:mallory")
	tests := map[string]struct {
		seed func(*ConvoModel, *View)
		kind ViolationKind
		want string
	}{
		"a lost message": {func(_ *ConvoModel, v *View) {
			v.Log = slices.Delete(v.Log, 1, 2)
			for i := 1; i < len(v.Log); i++ {
				v.Log[i].Seq--
			}
			v.LastSeq--
		}, Lost, `"two", acknowledged at seq 2, is not in the log`},
		"a commit of nobody": {func(c *ConvoModel, _ *View) { clear(c.Commits) }, Broken,
			"seq 3 holds a commit that no phone has made"},
		"a refused commit": {func(c *ConvoModel, v *View) {
			c.Refused[DigestOf(v.Log[2].Ciphertext)] = struct{}{}
		}, Broken, "the commit at seq 3 was refused"},
		"a commit elsewhere": {func(c *ConvoModel, v *View) {
			c.Commits[DigestOf(v.Log[2].Ciphertext)] = Commit{Sender: mallory, Epoch: 1, Seq: 2}
		}, Broken, "acknowledged at seq 2, stands at 3"},
		"a lost commit": {func(c *ConvoModel, _ *View) {
			c.Commits[Digest{1}] = Commit{Sender: mallory, Epoch: 2, Seq: 4}
		}, Lost, "creates epoch 2, acknowledged at seq 4, is not in the log"},
		"a gap": {func(_ *ConvoModel, v *View) {
			v.Log[3].Seq++
			v.LastSeq++
		}, Lost, "seq 5 follows 3"},
		"a lost end":     {func(_ *ConvoModel, v *View) { v.LastSeq++ }, Lost, "ends at seq 4, and lastSeq is 5"},
		"a repeated seq": {func(_ *ConvoModel, v *View) { v.Log[1].Seq = 1 }, Duplicated, "seq 1 again"},
		"a doubled row": {func(_ *ConvoModel, v *View) {
			again := v.Log[3]
			again.Seq, again.ID = 5, "id-5"
			v.Log, v.Apps, v.LastSeq = append(v.Log, again), append(v.Apps, again), 5
		}, Duplicated, "stands at 5 as well"},
		"a doubled id": {func(_ *ConvoModel, v *View) { v.Log[1].ID = v.Log[0].ID }, Duplicated,
			"id id-1 at seq 1"},
		"a message encrypted anew": {reencrypted, Duplicated, "encrypted anew"},
		"bytes that nobody sent":   {func(c *ConvoModel, v *View) { clear(c.Attempted) }, Broken, "no phone has sent"},
		"a refused message": {func(c *ConvoModel, v *View) { c.Refused[c.Sent["one"].Digest] = struct{}{} }, Broken,
			"was refused"},
		"another sender": {func(_ *ConvoModel, v *View) { v.Log[0].Sender = mallory }, Broken,
			"by did:plc:mallory"},
		"a moved message": {func(_ *ConvoModel, v *View) {
			v.Log[0].Ciphertext, v.Log[1].Ciphertext = v.Log[1].Ciphertext, v.Log[0].Ciphertext
		}, Broken, "acknowledged as"},
		"a wrong epoch in the view": {func(_ *ConvoModel, v *View) { v.Log[3].Epoch = 7 }, Broken, "says epoch 7"},
		"a commit out of order": {func(_ *ConvoModel, v *View) {
			v.Log[2].Ciphertext, v.Log[3].Ciphertext = v.Log[3].Ciphertext, v.Log[2].Ciphertext
		}, Broken, "stands in epoch"},
		"a wrong current epoch": {func(_ *ConvoModel, v *View) { v.Epoch = 2 }, Broken, "getEpoch says 2"},
		"a missing commit":      {func(_ *ConvoModel, v *View) { v.Commits = nil }, Broken, "getCommits has 0"},
		"a renumbered commit": {func(_ *ConvoModel, v *View) { v.Commits[0].Epoch = 0 }, Broken,
			"getCommits and seq 3 differ"},
		"a message hidden by default": {func(_ *ConvoModel, v *View) { v.Apps = v.Apps[:2] }, Lost, "shows 2 messages of 3"},
		"a commit shown by default": {func(_ *ConvoModel, v *View) { v.Apps[1] = v.Log[2] }, Broken,
			"without a messageType shows"},
		"an unread message": {func(_ *ConvoModel, v *View) { v.Inbox = v.Inbox[:3] }, Lost,
			`"three", acknowledged at seq 4, was never read`},
		"a message read twice": {func(_ *ConvoModel, v *View) { v.Inbox = append(v.Inbox, v.Inbox[0]) }, Duplicated,
			`"one" was read at seq 1 and at 1`},
		"an outsider's view": {func(_ *ConvoModel, v *View) { v.DID = mallory }, Broken, "is no member"},
		"history before the joining": {func(c *ConvoModel, v *View) { c.Members[v.DID].from = 3 }, Duplicated,
			"below the first visible 3"},
		"a joiner without its commit": {func(c *ConvoModel, v *View) { c.Members[v.DID].from = 2; v.Log = v.Log[1:] }, Broken,
			"not the commit that added it"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, v := soundView(t)
			tt.seed(c, v)
			found := CheckView(c, v)
			if !slices.ContainsFunc(found, func(got Violation) bool {
				return got.Kind == tt.kind && strings.Contains(got.What, tt.want)
			}) {
				t.Errorf("no %s violation with %q among %v", tt.kind, tt.want, found)
			}
		})
	}
}

// reencrypted is the fault that the client was told to encrypt again although the server had stored
// the first ciphertext.
func reencrypted(c *ConvoModel, v *View) {
	again := v.Log[0]
	again.Ciphertext = slices.Clone(again.Ciphertext)
	again.Ciphertext[len(again.Ciphertext)-1] ^= 1
	again.Seq, again.ID = 5, "id-5"
	c.Attempted[sha256.Sum256(again.Ciphertext)] = "one"
	v.Log, v.Apps, v.LastSeq = append(v.Log, again), append(v.Apps, again), 5
}

// Only the commits decide what a server could check.
func TestFollowedCommits(t *testing.T) {
	t.Parallel()
	commits := map[string]Commit{
		"V": {Public: true, WithInfo: true}, "v": {Public: true}, "H": {WithInfo: true}, "h": {},
	}
	for _, tt := range []struct {
		created bool // created with a GroupInfo
		history string
		level   string
		info    bool
	}{
		{false, "", "header", false},
		{true, "", "verified", true},
		{true, "V", "verified", true},
		{true, "v", "verified", false},
		{true, "vv", "verified", false},
		{true, "H", "header", true},
		{true, "HV", "verified", true},
		{true, "h", "header", false},
		{true, "hv", "structure", false},
		{true, "hV", "structure", true},
		{true, "hVv", "verified", false},
		{false, "v", "structure", false},
		{false, "Hv", "verified", false},
	} {
		kind := "commit"
		c := &ConvoModel{withInfo: tt.created, Commits: map[Digest]Commit{},
			Members: map[syntax.DID]*Member{"did:plc:a": {from: 1}}}
		v := &View{DID: "did:plc:a"}
		for i, name := range tt.history {
			body := fmt.Append(nil, i)
			c.Commits[DigestOf(body)] = commits[string(name)]
			v.Log = append(v.Log, mlsapi.MessageView{Ciphertext: body, MessageType: &kind})
		}
		level, info, known := c.Followed(v)
		if level != tt.level || info != tt.info || !known {
			t.Errorf("%t, %q: %s, %t, known %t; want %s, %t", tt.created, tt.history, level, info, known, tt.level, tt.info)
		}
	}
}
