package clientsim

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// soundView makes a convo of real MLS objects as a flawless server would show
// it to its founder: messages in two epochs with a commit between them.
func soundView(t *testing.T) (*convoModel, *view) {
	t.Helper()
	const alice, convo = "did:plc:alice", "the-convo"
	device := mustDevice(t, alice, SuiteX25519)
	group, err := device.Create([]byte("checked"))
	if err != nil {
		t.Fatal(err)
	}
	model := NewModel()
	model.Created(convo, []byte("checked"), 0, true, alice, nil)
	v := &view{who: "alice", did: alice}
	entry := func(kind string, body []byte, epoch uint64) *mlsapi.MessageView {
		v.lastSeq++
		v.log = append(v.log, mlsapi.MessageView{
			ID: fmt.Sprint("id-", v.lastSeq), ConvoID: convo, Sender: alice, Ciphertext: body,
			Epoch: int64(epoch), Seq: v.lastSeq, MessageType: &kind, CreatedAt: mlsapi.NewDatetime(time.Now()),
		})
		return &v.log[len(v.log)-1]
	}
	say := func(text string) {
		body, err := group.Encrypt([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		d := digest(sha256.Sum256(body))
		e := entry("application", body, group.Epoch())
		model.Attempted(convo, text, d)
		if _, err := model.Acked(convo, sent{text: text, sender: alice, digest: d, epoch: group.Epoch(), id: e.ID, seq: e.Seq}); err != nil {
			t.Fatal(err)
		}
		v.apps = append(v.apps, *e)
		v.inbox = append(v.inbox, Item{Seq: e.Seq, ID: e.ID, Own: true, Sender: alice, Text: text})
	}
	say("one")
	say("two")
	staged, err := group.StageUpdate()
	if err != nil {
		t.Fatal(err)
	}
	e := entry("commit", staged.Commit, group.Epoch())
	model.AttemptedCommit(convo, digestOf(staged.Commit), commit{sender: alice, epoch: 1, public: true})
	if err := model.Committed(convo, digestOf(staged.Commit), e.Seq); err != nil {
		t.Fatal(err)
	}
	v.commits = []mlsapi.CommitView{{CommitData: staged.Commit, Epoch: 1, Sender: alice, CreatedAt: e.CreatedAt}}
	v.inbox = append(v.inbox, Item{Seq: e.Seq, ID: e.ID, Commit: true, Own: true, Sender: alice})
	if err := group.Confirm(); err != nil {
		t.Fatal(err)
	}
	say("three")
	v.epoch = 1
	snapshot := model.snapshot()
	return &snapshot[0], v
}

func TestCheckerPassesASoundLog(t *testing.T) {
	t.Parallel()
	c, v := soundView(t)
	if found := checkView(c, v); len(found) != 0 {
		t.Errorf("violations in a sound log: %v", found)
	}
}

// A checker that cannot fail is worthless: each of these is one flaw of a
// server, and has to be seen, and counted as what it is.
func TestCheckerSeesSeededViolations(t *testing.T) {
	t.Parallel()
	mallory := syntax.DID("did:plc:mallory")
	tests := map[string]struct {
		seed func(*convoModel, *view)
		kind ViolationKind
		want string
	}{
		"a lost message": {func(_ *convoModel, v *view) {
			v.log = slices.Delete(v.log, 1, 2)
			for i := 1; i < len(v.log); i++ {
				v.log[i].Seq--
			}
			v.lastSeq--
		}, Lost, `"two", acknowledged at seq 2, is not in the log`},
		"a commit of nobody": {func(c *convoModel, _ *view) { clear(c.commits) }, Broken, "seq 3 holds a commit that no phone has made"},
		"a refused commit": {func(c *convoModel, v *view) {
			c.refused[digestOf(v.log[2].Ciphertext)] = struct{}{}
		}, Broken, "the commit at seq 3 was refused"},
		"a commit elsewhere": {func(c *convoModel, v *view) {
			c.commits[digestOf(v.log[2].Ciphertext)] = commit{sender: mallory, epoch: 1, seq: 2}
		}, Broken, "acknowledged at seq 2, stands at 3"},
		"a lost commit": {func(c *convoModel, _ *view) {
			c.commits[digest{1}] = commit{sender: mallory, epoch: 2, seq: 4}
		}, Lost, "creates epoch 2, acknowledged at seq 4, is not in the log"},
		"a gap": {func(_ *convoModel, v *view) {
			v.log[3].Seq++
			v.lastSeq++
		}, Lost, "seq 5 follows 3"},
		"a lost end":     {func(_ *convoModel, v *view) { v.lastSeq++ }, Lost, "ends at seq 4, and lastSeq is 5"},
		"a repeated seq": {func(_ *convoModel, v *view) { v.log[1].Seq = 1 }, Duplicated, "seq 1 again"},
		"a doubled row": {func(_ *convoModel, v *view) {
			again := v.log[3]
			again.Seq, again.ID = 5, "id-5"
			v.log, v.apps, v.lastSeq = append(v.log, again), append(v.apps, again), 5
		}, Duplicated, "stands at 5 as well"},
		"a doubled id":             {func(_ *convoModel, v *view) { v.log[1].ID = v.log[0].ID }, Duplicated, "id id-1 at seq 1"},
		"a message encrypted anew": {reencrypted, Duplicated, "encrypted anew"},
		"bytes that nobody sent":   {func(c *convoModel, v *view) { clear(c.attempted) }, Broken, "no phone has sent"},
		"a refused message":        {func(c *convoModel, v *view) { c.refused[c.sent["one"].digest] = struct{}{} }, Broken, "was refused"},
		"another sender":           {func(_ *convoModel, v *view) { v.log[0].Sender = mallory }, Broken, "by did:plc:mallory"},
		"a moved message": {func(_ *convoModel, v *view) {
			v.log[0].Ciphertext, v.log[1].Ciphertext = v.log[1].Ciphertext, v.log[0].Ciphertext
		}, Broken, "acknowledged as"},
		"a wrong epoch in the view": {func(_ *convoModel, v *view) { v.log[3].Epoch = 7 }, Broken, "says epoch 7"},
		"a commit out of order": {func(_ *convoModel, v *view) {
			v.log[2].Ciphertext, v.log[3].Ciphertext = v.log[3].Ciphertext, v.log[2].Ciphertext
		}, Broken, "stands in epoch"},
		"a wrong current epoch":       {func(_ *convoModel, v *view) { v.epoch = 2 }, Broken, "getEpoch says 2"},
		"a missing commit":            {func(_ *convoModel, v *view) { v.commits = nil }, Broken, "getCommits has 0"},
		"a renumbered commit":         {func(_ *convoModel, v *view) { v.commits[0].Epoch = 0 }, Broken, "getCommits and seq 3 differ"},
		"a message hidden by default": {func(_ *convoModel, v *view) { v.apps = v.apps[:2] }, Lost, "shows 2 messages of 3"},
		"a commit shown by default":   {func(_ *convoModel, v *view) { v.apps[1] = v.log[2] }, Broken, "without a type shows"},
		"an unread message":           {func(_ *convoModel, v *view) { v.inbox = v.inbox[:3] }, Lost, `"three", acknowledged at seq 4, was never read`},
		"a message read twice":        {func(_ *convoModel, v *view) { v.inbox = append(v.inbox, v.inbox[0]) }, Duplicated, `"one" was read at seq 1 and at 1`},
		"a stranger's view":           {func(_ *convoModel, v *view) { v.did = mallory }, Broken, "is no member"},
		"history before the joining":  {func(c *convoModel, v *view) { c.members[v.did].from = 3 }, Duplicated, "below the first visible 3"},
		"a joiner without its commit": {func(c *convoModel, v *view) { c.members[v.did].from = 2; v.log = v.log[1:] }, Broken, "not the commit that added it"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, v := soundView(t)
			tt.seed(c, v)
			found := checkView(c, v)
			if !slices.ContainsFunc(found, func(got Violation) bool {
				return got.Kind == tt.kind && strings.Contains(got.What, tt.want)
			}) {
				t.Errorf("no %s violation with %q among %v", tt.kind, tt.want, found)
			}
		})
	}
}

// reencrypted is epoch-before-key: the client was told to encrypt anew although
// the first ciphertext was stored.
func reencrypted(c *convoModel, v *view) {
	again := v.log[0]
	again.Ciphertext = slices.Clone(again.Ciphertext)
	again.Ciphertext[len(again.Ciphertext)-1] ^= 1
	again.Seq, again.ID = 5, "id-5"
	c.attempted[sha256.Sum256(again.Ciphertext)] = "one"
	v.log, v.apps, v.lastSeq = append(v.log, again), append(v.apps, again), 5
}

// What a server could check follows from the commits alone.
func TestFollowedCommits(t *testing.T) {
	t.Parallel()
	commits := map[string]commit{
		"V": {public: true, withInfo: true}, "v": {public: true}, "H": {withInfo: true}, "h": {},
	}
	for _, tt := range []struct {
		created bool // with a GroupInfo
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
		c := &convoModel{withInfo: tt.created, commits: map[digest]commit{}, members: map[syntax.DID]*membership{"did:plc:a": {from: 1}}}
		v := &view{did: "did:plc:a"}
		for i, name := range tt.history {
			body := fmt.Append(nil, i)
			c.commits[digestOf(body)] = commits[string(name)]
			v.log = append(v.log, mlsapi.MessageView{Ciphertext: body, MessageType: &kind})
		}
		level, info, known := c.followed(v)
		if level != tt.level || info != tt.info || !known {
			t.Errorf("%t, %q: %s, %t, known %t; want %s, %t", tt.created, tt.history, level, info, known, tt.level, tt.info)
		}
	}
}
