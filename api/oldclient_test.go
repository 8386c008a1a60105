package api_test

import (
	"bytes"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
)

// S12: clients that speak only the frozen part of the contract have a whole conversation: no
// idempotency key, no confirmation, no GroupInfo, no device, no new method or parameter. They use
// real MLS. docs/OLD-CLIENTS.md states what happens here.
func TestOldClients(t *testing.T) {
	t.Parallel()
	for name, hidden := range map[string]bool{"public handshakes": false, "private handshakes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, live)
			alice, bob, carol, dave := w.old(), w.old(), w.old(), w.old()
			for _, o := range []*oldClient{alice, bob, carol, dave} {
				o.mls.HideHandshakes(hidden)
			}
			convo := alice.creates(bob, dave)
			events := bob.stream(url.Values{"cursor": {"0"}})
			bob.joins(convo)

			// A message and its retries.
			first := alice.draft(convo, "hello")
			sent := alice.call("sendMessage", first)
			if again := alice.call("sendMessage", first); !bytes.Equal(again.body, sent.body) {
				t.Errorf("the retry got %s, the first answer was %s", again.body, sent.body)
			}
			alice.call("sendMessage", alice.draft(convo, "how are you?")).ok()
			alice.call("sendMessage", alice.draft(convo, "well?")).ok()
			texts, last := bob.reads(convo, "")
			if diff := cmp.Diff([]string{"hello", "how are you?", "well?"}, texts); diff != "" {
				t.Fatalf("bob reads (-want +got):\n%s", diff)
			}

			// A member is added only with a commit.
			carol.publishes()
			alice.adds(convo, carol)
			bob.call("sendMessage", bob.draft(convo, "late")).fails(http.StatusConflict, "EpochMismatch", true)
			bob.catchesUp(convo)
			carol.joins(convo)
			bob.call("sendMessage", bob.draft(convo, "welcome")).ok()
			if texts, _ := carol.reads(convo, ""); len(texts) != 1 || texts[0] != "welcome" {
				t.Errorf("carol reads %q", texts)
			}
			if texts, _ := alice.reads(convo, last); len(texts) != 1 || texts[0] != "welcome" {
				t.Errorf("alice reads %q", texts)
			}
			bob.seesEvents(events, "messageEvent", 4)

			alice.loses(convo, bob)
			alice.departures(convo, bob, carol)
		})
	}
}

// creates makes a convo with bob, and retries. dave has no KeyPackage.
func (o *oldClient) creates(bob, dave *oldClient) (convo string) {
	t := o.w.t
	t.Helper()
	bob.publishes()
	out := o.call("getKeyPackages", fields{"dids": dids(bob, dave)}).ok()
	if missing := out["missing"].([]any); len(missing) != 1 || missing[0] != dave.did().String() {
		t.Fatalf("without a KeyPackage are %v", missing)
	}
	o.group = must(o.mls.Create(newGroup(t)))(o.w)
	staged := must(o.group.StageAdd(raw(t, out["keyPackages"].([]any)[0].(fields)["keyPackage"])))(o.w)
	in := fields{
		"groupId": hex.EncodeToString(o.group.ID()), "cipherSuite": mlsclient.SuiteX25519.Name(),
		"initialMembers": dids(bob), "welcomeMessage": oldText(staged.Welcome),
	}
	first := o.call("createConvo", in)
	view := first.ok()
	if again := o.call("createConvo", in); !bytes.Equal(again.body, first.body) {
		t.Errorf("the retry got %s, the first answer was %s", again.body, first.body)
	}
	if view["epoch"] != 1.0 || len(view["members"].([]any)) != 2 {
		t.Errorf("the new convo is %v", view)
	}
	o.applies()
	return view["id"].(string)
}

// adds adds carol. Without a commit the roster stays as it is.
func (o *oldClient) adds(convo string, carol *oldClient) {
	t := o.w.t
	t.Helper()
	in := fields{"convoId": convo, "didList": dids(carol)}
	o.call("addMembers", in).fails(http.StatusBadRequest, "CommitRequired", false)
	carol.call("getEpoch", fields{"convoId": convo}).fails(http.StatusNotFound, "ConvoNotFound", true)
	staged := must(o.group.StageAdd(o.packages(carol)...))(o.w)
	in["commit"], in["welcomeMessage"] = oldText(staged.Commit), oldText(staged.Welcome)
	first := o.call("addMembers", in)
	if first.ok()["newEpoch"] != 2.0 {
		t.Errorf("the addition gives %s", first.body)
	}
	if again := o.call("addMembers", in); !bytes.Equal(again.body, first.body) {
		t.Errorf("the retry got %s, the first answer was %s", again.body, first.body)
	}
	o.applies()
	o.call("addMembers", in).ok() // even now: the first answer
	convos := carol.call("getConvos", fields{"limit": 10}).ok()["conversations"].([]any)
	if len(convos) != 1 || convos[0].(fields)["epoch"] != 2.0 {
		t.Errorf("carol's convos are %v", convos)
	}
}

// seesEvents reads events until n of the kind have come. The others are events that an old client
// does not know, and skips.
func (o *oldClient) seesEvents(events *reader, kind string, n int) {
	t := o.w.t
	t.Helper()
	var skipped, cursors []string
	for n > 0 {
		e := events.event()
		known, isKnown := frozenEvents[e.event]
		if !isKnown {
			skipped = append(skipped, e.event)
			continue
		}
		decodeFrozen(t, e.event, []byte(e.data), known)
		if e.event == kind {
			cursors = append(cursors, e.id)
			n--
		}
	}
	next := o.stream(url.Values{"cursor": {cursors[0]}}).event() // behind the event that it names
	if next.event != kind || next.id != cursors[1] {
		t.Errorf("behind the cursor %s is %+v", cursors[0], next)
	}
	for _, unknown := range []string{"membershipEvent", "welcomeEvent", "commitEvent"} {
		if !slices.Contains(skipped, unknown) {
			t.Errorf("there was no %s among the events that an old client skips: %v", unknown, skipped)
		}
	}
}

// loses has two members commit in the same epoch. The loser reads the commit that won.
func (o *oldClient) loses(convo string, bob *oldClient) {
	t := o.w.t
	t.Helper()
	erin, frank := o.w.old(), o.w.old()
	erin.publishes()
	frank.publishes()
	franks := bob.packages(frank) // one claim for both attempts
	addition := func(by, who *oldClient, packages [][]byte) fields {
		staged := must(by.group.StageAdd(packages...))(o.w)
		return fields{"convoId": convo, "didList": dids(who), "commit": oldText(staged.Commit),
			"welcomeMessage": oldText(staged.Welcome)}
	}
	winner, loser := addition(o, erin, o.packages(erin)), addition(bob, frank, franks)
	o.call("addMembers", winner).ok()
	message := bob.call("addMembers", loser).fails(http.StatusConflict, "EpochMismatch", false)
	if message != "epoch 2 is stale; currentEpoch=3" {
		t.Errorf("the loser is told %q", message)
	}
	o.applies()
	bob.catchesUp(convo) // and discards its own commit
	bob.call("addMembers", addition(bob, frank, franks)).ok()
	bob.applies()
	o.catchesUp(convo)
	if !bytes.Equal(o.group.Authenticator(), bob.group.Authenticator()) {
		t.Error("the two do not agree on the group")
	}
}

// departures has bob leave, o remove bob's leaf and carol, and the others go.
func (o *oldClient) departures(convo string, bob, carol *oldClient) {
	t := o.w.t
	t.Helper()
	carol.catchesUp(convo)
	leave := fields{"convoId": convo}
	left := bob.call("leaveConvo", leave).ok()
	if left["newEpoch"] != 4.0 {
		t.Errorf("the departure gives %v", left)
	}
	bob.call("leaveConvo", leave).ok()
	bob.call("getMessages", leave).fails(http.StatusForbidden, "NotMember", true)

	// The leaf of a former member stays in the group until a member commits its removal.
	target := fields{"convoId": convo, "targetDid": bob.did()}
	o.call("leaveConvo", target).fails(http.StatusBadRequest, "CommitRequired", false)
	target["commit"] = oldText(must(o.group.StageRemove(bob.did().String()))(o.w).Commit)
	first := o.call("leaveConvo", target)
	if first.ok()["newEpoch"] != 5.0 {
		t.Errorf("the removal gives %s", first.body)
	}
	if again := o.call("leaveConvo", target); !bytes.Equal(again.body, first.body) {
		t.Errorf("the retry got %s, the first answer was %s", again.body, first.body)
	}
	o.applies()
	carol.catchesUp(convo)
	if !bytes.Equal(o.group.Authenticator(), carol.group.Authenticator()) {
		t.Error("the two do not agree on the group")
	}
	if epoch := carol.call("getEpoch", fields{"convoId": convo}).ok()["currentEpoch"]; epoch != 5.0 {
		t.Errorf("the epoch is %v", epoch)
	}

	// Commits came without a GroupInfo: no device can join by external commit.
	carol.get(mlsapi.NSIDGetGroupInfo, "convoId", convo).fails(http.StatusNotFound, mlsapi.ErrGroupInfoNotFound)

	carol.call("leaveConvo", leave).ok()
	for _, m := range o.call("getConvos", fields{}).ok()["conversations"].([]any)[0].(fields)["members"].([]any) {
		if did := m.(fields)["did"]; did == bob.did().String() || did == carol.did().String() {
			t.Errorf("%v is still on the roster", did)
		}
	}
}

// Old clients notice nothing of roles, but for the better: their views and events are as before, a name
// that another client has changed is where it was, and the convo goes on when its creator has left.
func TestOldClientsUnderAdmins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live)
	alice, bob, carol, dave := w.old(), w.old(), w.old(), w.old()
	convo := alice.creates(bob, dave)
	events := bob.stream(url.Values{"cursor": {"0"}})
	bob.joins(convo)
	carol.publishes()
	alice.adds(convo, carol)
	bob.catchesUp(convo)
	carol.joins(convo)
	for _, o := range []*oldClient{bob, carol} {
		o.call("sendMessage", o.draft(convo, "here")).ok()
	}
	removal := func() fields {
		return fields{"convoId": convo, "targetDid": carol.did(),
			"commit": oldText(must(bob.group.StageRemove(carol.did().String()))(w).Commit)}
	}
	bob.call("leaveConvo", removal()).fails(http.StatusForbidden, "NotPermitted", false)
	bob.group.Discard()

	// A newer client of alice's acts, and alice leaves.
	name := "Family"
	for nsid, in := range map[string]any{
		mlsapi.NSIDPromoteAdmin: &mlsapi.PromoteAdminInput{ConvoID: convo, DID: carol.did()},
		mlsapi.NSIDUpdateConvo:  &mlsapi.UpdateConvoInput{ConvoID: convo, Metadata: mlsapi.ConvoMetadata{Name: &name}},
	} {
		alice.post(nsid, in).ok()
	}
	alice.post(mlsapi.NSIDDemoteAdmin, &mlsapi.DemoteAdminInput{ConvoID: convo, DID: carol.did()}).ok()
	alice.call("leaveConvo", fields{"convoId": convo}).ok()
	view := bob.call("getConvos", fields{}).ok()["conversations"].([]any)[0].(fields)
	if got := view["metadata"].(fields)["name"]; got != name || view["creator"] != alice.did().String() {
		t.Errorf("bob's convo has the name %v and the creator %v", got, view["creator"])
	}
	if got := bob.admins(convo); !slices.Equal(got, []syntax.DID{bob.did()}) { // dave has accepted nothing
		t.Fatalf("the admins are %v", got)
	}
	bob.call("leaveConvo", removal()).ok()
	bob.applies()
	carol.call("getMessages", fields{"convoId": convo}).fails(http.StatusForbidden, "NotMember", true)
	bob.call("sendMessage", bob.draft(convo, "quiet here")).ok()
	skipped := map[string]int{}
	for messages := 0; messages < 3; {
		e := events.event()
		known, isKnown := frozenEvents[e.event]
		if !isKnown {
			skipped[e.event]++
			continue
		}
		decodeFrozen(t, e.event, []byte(e.data), known)
		if e.event == "messageEvent" {
			messages++
		}
	}
	if skipped["roleEvent"] != 3 || skipped["metadataEvent"] != 1 {
		t.Errorf("bob has skipped %v", skipped)
	}
}

// admins returns the admins of a convo, as a newer client of the person sees them.
func (o *oldClient) admins(convo string) (admins []syntax.DID) {
	o.w.t.Helper()
	out := read[mlsapi.GetConvoOutput](o.w.t, o.get(mlsapi.NSIDGetConvo, "convoId", convo).ok())
	for _, m := range out.Convo.Members {
		if m.IsAdmin != nil && *m.IsAdmin {
			admins = append(admins, m.DID)
		}
	}
	return admins
}

// S12: an old client joins and confirms nothing. After the grace its Welcome can be fetched again,
// or not, by the server's setting. It sends and reads in both cases.
func TestSilenceOfOldClients(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]func(*world){"release": release, "consume": consume} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, policy)
			alice, bob, dave := w.old(), w.old(), w.old()
			convo := alice.creates(bob, dave)
			ask := fields{"convoId": convo}
			welcome := bob.call("getWelcome", ask).ok()["welcome"]
			w.age(4 * time.Minute)
			if again := bob.call("getWelcome", ask).ok()["welcome"]; again != welcome {
				t.Error("within the grace the Welcome is another one")
			}
			bob.group = must(bob.mls.Join(raw(t, welcome)))(w)

			w.age(2 * time.Minute)
			switch after := bob.call("getWelcome", ask); name {
			case "release":
				if after.ok()["welcome"] != welcome {
					t.Error("after the grace the Welcome is another one")
				}
				w.age(91 * 24 * time.Hour)
				w.sweepWelcomes()
				bob.call("getWelcome", ask).fails(http.StatusNotFound, "WelcomeNotFound", true)
			case "consume":
				after.fails(http.StatusGone, "WelcomeConsumed", false)
			}
			bob.call("sendMessage", bob.draft(convo, "I am here")).ok()
			if texts, _ := alice.reads(convo, ""); len(texts) != 1 || texts[0] != "I am here" {
				t.Errorf("alice reads %q", texts)
			}
			alice.bringsBack(convo, bob)
		})
	}
}

// bringsBack has lost, whose device lost its state, leave, and adds it again.
func (o *oldClient) bringsBack(convo string, lost *oldClient) {
	o.w.t.Helper()
	lost.mls = must(lost.mls.Reborn(true))(o.w)
	lost.call("leaveConvo", fields{"convoId": convo}).ok()
	removal := must(o.group.StageRemove(lost.did().String()))(o.w)
	o.call("leaveConvo", fields{"convoId": convo, "targetDid": lost.did(), "commit": oldText(removal.Commit)}).ok()
	o.applies()
	lost.publishes()
	addition := must(o.group.StageAdd(o.packages(lost)...))(o.w)
	o.call("addMembers", fields{
		"convoId": convo, "didList": dids(lost), "commit": oldText(addition.Commit),
		"welcomeMessage": oldText(addition.Welcome),
	}).ok()
	o.applies()
	lost.joins(convo)
	if !bytes.Equal(o.group.Authenticator(), lost.group.Authenticator()) {
		o.w.t.Error("the two do not agree on the group")
	}
}

// S12: two devices of one person, neither of which names itself, are added by one commit. Both
// join.
func TestOldClientsWithTwoDevices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, phone := w.old(), w.old()
	tablet := &oldClient{phone.user.phone()}
	phone.publishes()
	tablet.publishes()
	alice.group = must(alice.mls.Create(newGroup(t)))(w)
	staged := must(alice.group.StageAdd(alice.packages(phone)...))(w)
	view := alice.call("createConvo", fields{
		"groupId": hex.EncodeToString(alice.group.ID()), "cipherSuite": mlsclient.SuiteX25519.Name(),
		"initialMembers": dids(phone), "welcomeMessage": oldText(staged.Welcome),
	}).ok()
	alice.applies()
	convo := view["id"].(string)
	for _, device := range []*oldClient{phone, tablet} {
		device.joins(convo)
		if !bytes.Equal(device.group.Authenticator(), alice.group.Authenticator()) {
			t.Error("a device does not agree on the group")
		}
	}
	alice.call("sendMessage", alice.draft(convo, "hello")).ok()
	for _, device := range []*oldClient{phone, tablet} {
		if texts, _ := device.reads(convo, ""); len(texts) != 1 || texts[0] != "hello" {
			t.Errorf("a device reads %q", texts)
		}
	}
	tablet.call("leaveConvo", fields{"convoId": convo}).ok()
	alice.call("leaveConvo", fields{"convoId": convo}).fails(http.StatusConflict, "LastMember", true)
}
