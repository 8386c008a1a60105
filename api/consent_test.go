package api_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/mls"
)

// request reports whether c is a request of u's, and checks that all that u is told agrees.
func (u *user) request(c *convo) bool {
	u.w.t.Helper()
	view := read[mlsapi.GetConvoOutput](u.w.t, u.get(mlsapi.NSIDGetConvo, "convoId", c.id).ok()).Convo
	is := view.Request != nil && *view.Request
	if is != (view.InvitedBy != nil) {
		u.w.t.Errorf("request %t, invited by %v", is, view.InvitedBy)
	}
	for params, want := range map[string]bool{"": true, "true": is, "false": !is} {
		q := []string{"limit", "100"}
		if params != "" {
			q = append(q, "requests", params)
		}
		page := read[mlsapi.GetConvosOutput](u.w.t, u.get(mlsapi.NSIDGetConvos, q...).ok())
		i := slices.IndexFunc(page.Conversations, func(v mlsapi.ConvoView) bool { return v.ID == c.id })
		if (i >= 0) != want {
			u.w.t.Errorf("getConvos with requests=%q lists the convo: %t, want %t", params, i >= 0, want)
		}
		if i >= 0 && (page.Conversations[i].Request != nil) != is {
			u.w.t.Errorf("getConvos with requests=%q marks the convo: %t, want %t", params, !is, is)
		}
	}
	return is
}

// target gives u a device that is pushed.
func (u *user) target() {
	u.w.t.Helper()
	u.post(mlsapi.NSIDRegisterPushTarget,
		&mlsapi.RegisterPushTargetInput{DeviceID: "phone", Kind: "webhook", URL: ptr("https://push.example.com/")}).ok()
	// it has answered its challenge
	u.w.exec(`UPDATE push_targets SET state = 'active', challenge_at = NULL WHERE did = $1`, u.did())
}

// jobs counts the pushes for u.
func (u *user) jobs() int {
	u.w.t.Helper()
	return u.w.count(`SELECT count(*) FROM push_jobs WHERE did = $1`, u.did())
}

func (u *user) blocks(other *user) {
	u.w.t.Helper()
	u.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: other.did()}).ok()
}

func (u *user) policy(policy string) {
	u.w.t.Helper()
	u.post(mlsapi.NSIDSetInvitationPolicy, &mlsapi.SetInvitationPolicyInput{Policy: policy}).ok()
}

func (u *user) accept(c *convo) {
	u.w.t.Helper()
	u.post(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: c.id}).ok()
}

// An invitation from somebody who shares no convo is a request until the invited person acts in the
// convo. Reading is no such act. The Welcome of a request is not pushed.
func TestRequestUntilAccepted(t *testing.T) {
	t.Parallel()
	accepting := map[string]func(u *user, c *convo){
		"sendMessage":    func(u *user, c *convo) { u.send(c, "hello") },
		"confirmWelcome": func(u *user, c *convo) { u.fetch(c).ok(); u.confirm(c, true, nil).ok() },
		"acceptConvo":    func(u *user, c *convo) { u.accept(c) },
		"submitCommit":   func(u *user, c *convo) { u.post(mlsapi.NSIDSubmitCommit, u.rotation(c)).ok() },
		"addMembers":     func(u *user, c *convo) { u.add(c, u.w.user()) },
		"nothing":        nil,
	}
	w := newWorld(t)
	for name, accepts := range accepting {
		t.Run(name, func(t *testing.T) {
			w := w.within(t)
			alice, bob := w.user(), w.user()
			bob.target()
			c := alice.create(bob)
			if alice.request(c) || !bob.request(c) {
				t.Fatal("the invitation of an outsider is not a request")
			}
			out := read[mlsapi.GetWelcomeOutput](t, bob.fetch(c).ok())
			if out.Request == nil || !*out.Request {
				t.Error("the Welcome is not marked")
			}
			bob.confirm(c, false, nil).ok()
			bob.page(c)
			alice.send(c, "buy this")
			bob.post(mlsapi.NSIDUpdateCursor, &mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: 1}).ok()
			if !bob.request(c) {
				t.Fatal("reading has accepted the convo")
			}
			if n := bob.jobs(); n != 0 {
				t.Errorf("%d pushes for a request", n)
			}
			if accepts == nil {
				return
			}
			accepts(bob, c)
			if bob.request(c) {
				t.Error("the convo is still a request")
			}
			if d := alice.create(bob); bob.request(d) || bob.jobs() == 0 {
				t.Error("who shares an accepted convo invites with a request, or without a push")
			}
		})
	}
}

// To have left, to be invited together, and to be a request oneself is not to share a convo.
func TestWhoSharesAConvo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	bob.accept(c)
	d := carol.create(bob) // carol has not accepted c
	if !bob.request(d) {
		t.Error("a request counts as shared")
	}
	carol.accept(c)
	e := carol.create(bob)
	if bob.request(e) {
		t.Error("a shared convo does not count")
	}
	bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: e.id}).ok()
	if f := carol.create(bob); !bob.request(f) {
		t.Error("a convo that one has left counts as shared")
	}
	alice.add(c, bob) // who was in it, and left
	if !bob.request(c) {
		t.Error("a former member comes back without a request")
	}
}

// refusals make bob a person that alice cannot invite.
var refusals = map[string]func(bob, alice *user){
	"blocked": func(bob, alice *user) { bob.blocks(alice) },
	"nobody":  func(bob, _ *user) { bob.policy("nobody") },
	"shared":  func(bob, _ *user) { bob.policy("shared") },
	"no KeyPackages": func(bob, _ *user) {
		bob.w.exec(`DELETE FROM key_packages WHERE did = $1`, bob.did())
		bob.w.exec(`DELETE FROM idempotency_keys WHERE nsid = $1`, mlsapi.NSIDGetKeyPackages) // of their claims
	},
}

// A person that has blocked the caller, one whose policy leaves the caller out and one without
// KeyPackages get the caller the same bytes from every method, whatever the caller sends.
func TestRefusalsLookTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	answers := map[string]map[string]string{}
	for name, refuse := range refusals {
		alice, bob, carol := w.user(), w.user(), w.user()
		carol.publish()
		known := alice.claim(carol)[0]
		early := bob.publish() // claimed before
		if got := alice.claim(bob)[0]; !bytes.Equal(got, early) {
			t.Fatal("another KeyPackage was claimed")
		}
		late := bob.publish()
		refuse(bob, alice)
		c := alice.create()
		got := map[string]string{}
		keep := func(what string, a answer) {
			text := fmt.Sprint(a.status, " ", string(a.body), headersOf(a))
			for i, own := range []string{alice.did().String(), bob.did().String(), carol.did().String(), early.String(),
				late.String(), known.String()} {
				text = strings.ReplaceAll(text, own, fmt.Sprint("(", i, ")"))
			}
			got[what] = text
		}
		keep("claim", alice.get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String()))
		keep("claim for a convo", alice.get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String(), "convoId", c.id))
		keep("claim with others",
			alice.get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String(), "dids", alice.did().String()))
		create := func(welcome []byte, members ...*user) answer {
			in := &mlsapi.CreateConvoInput{GroupID: hex.EncodeToString(newGroup(t)), CipherSuite: mlstest.Suite.String(),
				WelcomeMessage: welcome}
			for _, m := range members {
				in.InitialMembers = append(in.InitialMembers, m.did())
			}
			return alice.post(mlsapi.NSIDCreateConvo, in)
		}
		add := func(welcome []byte, members ...*user) answer {
			in := &mlsapi.AddMembersInput{ConvoID: c.id, Commit: mlstest.Commit(c.group, c.epoch, "add"),
				WelcomeMessage: welcome}
			for _, m := range members {
				in.DIDList = append(in.DIDList, m.did())
			}
			return alice.post(mlsapi.NSIDAddMembers, in)
		}
		for what, refs := range map[string][]mls.KeyPackageRef{
			"claimed": {early}, "unclaimed": {late}, "with another's": {early, known}, "another's only": {known},
		} {
			keep("create, "+what, create(mlstest.Welcome(t, refs...), bob, carol))
			keep("add, "+what, add(mlstest.Welcome(t, refs...), bob, carol))
		}
		keep("create alone", create(mlstest.Welcome(t, early), bob))
		answers[name] = got
		if !strings.Contains(got["create alone"], mlsapi.ErrKeyPackageNotFound) {
			t.Errorf("%s: %s", name, got["create alone"])
		}
		if n := w.count(`SELECT count(*) FROM members WHERE did = $1`, bob.did()); n != 0 {
			t.Errorf("%s: is in %d convos", name, n)
		}
	}
	for name, got := range answers {
		for what, text := range got {
			if want := answers["no KeyPackages"][what]; text != want {
				t.Errorf("%s, %s:\n%s\nwant, as without KeyPackages,\n%s", name, what, text, want)
			}
		}
	}
}

// Nobody who refuses the creator gets onto the roster of a convo without a Welcome. Whether by a
// block or by a policy, the answer is the same. People without KeyPackages get there, as they
// always did.
func TestRefusedWithoutAWelcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	answers := map[string]bool{}
	for name, refuse := range refusals {
		alice, bob := w.user(), w.user()
		refuse(bob, alice)
		a := alice.post(mlsapi.NSIDCreateConvo, &mlsapi.CreateConvoInput{
			GroupID: hex.EncodeToString(newGroup(t)), CipherSuite: mlstest.Suite.String(),
			InitialMembers: []syntax.DID{bob.did()},
		})
		memberships := w.count(`SELECT count(*) FROM members WHERE did = $1`, bob.did())
		if name == "no KeyPackages" {
			a.ok()
		} else {
			answers[a.fails(http.StatusNotFound, mlsapi.ErrKeyPackageNotFound)] = true
		}
		if refused := name != "no KeyPackages"; (memberships == 0) != refused {
			t.Errorf("%s: the person is in %d convos", name, memberships)
		}
	}
	if len(answers) != 1 {
		t.Errorf("the refusals differ: %v", answers)
	}
}

// headersOf are the names of an answer's headers.
func headersOf(a answer) string {
	var names []string
	for name := range a.header {
		names = append(names, name)
	}
	return " " + strings.Join(sorted(names), " ")
}

// A policy does not shut people out of the convos that they are in: a member claims for that convo
// and replaces a leaf. A block does.
func TestPolicyWithinAConvo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	claimed := func(params ...string) int {
		out := read[mlsapi.GetKeyPackagesOutput](t,
			alice.get(mlsapi.NSIDGetKeyPackages, append(params, "dids", bob.did().String())...).ok())
		return len(out.KeyPackages)
	}
	bob.publish()
	bob.publish()
	bob.policy("nobody")
	if claimed("convoId", c.id) != 0 {
		t.Error("a request counts as a convo that the person is in")
	}
	bob.accept(c)
	if claimed() != 0 || claimed("convoId", c.id) != 1 {
		t.Error("nobody: claims outside a convo, or none inside")
	}
	bob.policy("shared")
	if claimed() != 1 {
		t.Error("shared: a member of a shared convo cannot claim")
	}
	bob.publish()
	bob.blocks(alice)
	if claimed() != 0 || claimed("convoId", c.id) != 0 {
		t.Error("a blocked member claims")
	}
	bob.policy("everyone")
	if claimed() != 0 {
		t.Error("a policy has ended a block")
	}
	bob.post(mlsapi.NSIDUnblockActor, &mlsapi.UnblockActorInput{DID: alice.did()}).ok()
	if claimed() != 1 {
		t.Error("the block has not ended")
	}
	bob.post(mlsapi.NSIDSetInvitationPolicy,
		&mlsapi.SetInvitationPolicyInput{Policy: "friends"}).fails(http.StatusBadRequest, "InvalidRequest")
	if got := read[mlsapi.GetInvitationPolicyOutput](t,
		bob.get(mlsapi.NSIDGetInvitationPolicy).ok()).Policy; got != "everyone" {
		t.Errorf("the policy is %s", got)
	}
}

// Who invites somebody whom it has blocked itself is told so.
func TestOwnBlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	in, c := alice.creation(newGroup(t), bob), alice.create()
	more := alice.addition(c, bob)
	alice.blocks(bob)
	for what, a := range map[string]answer{
		"createConvo": alice.post(mlsapi.NSIDCreateConvo, in), "addMembers": alice.post(mlsapi.NSIDAddMembers, more),
		"getKeyPackages": alice.get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String()),
	} {
		if message := a.fails(http.StatusForbidden, "Blocked"); !strings.Contains(message, bob.did().String()) {
			t.Errorf("%s: %s", what, message)
		}
	}
	alice.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: alice.did()}).fails(http.StatusBadRequest,
		"InvalidRequest")
}

// Somebody else brings a person together with one that it has blocked: a request, and not pushed,
// although the two share a convo. Only the person sees that it is one.
func TestBroughtTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, mallory := w.user(), w.user(), w.user()
	c := alice.create(bob)
	bob.accept(c)
	bob.blocks(mallory)
	bob.target()
	together := alice.create(mallory, bob)
	later := alice.create(mallory)
	alice.add(later, bob)
	if !bob.request(together) || !bob.request(later) || bob.jobs() != 0 {
		t.Error("a person is brought together with one that it has blocked, without being asked")
	}
	if d := alice.create(bob); bob.request(d) {
		t.Error("without the blocked one it is a request too")
	}
}

// A person leaves a request, and blocks who invited it, in one transaction.
func TestLeaveAndBlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	leave := &mlsapi.LeaveConvoInput{ConvoID: c.id, Block: ptr(true)}
	out := read[mlsapi.LeaveConvoOutput](t, bob.post(mlsapi.NSIDLeaveConvo, leave).ok())
	if out.Blocked == nil || *out.Blocked != alice.did() {
		t.Fatalf("blocked %v", out.Blocked)
	}
	page := read[mlsapi.GetBlocksOutput](t, bob.get(mlsapi.NSIDGetBlocks).ok())
	if len(page.Blocks) != 1 || page.Blocks[0].DID != alice.did() {
		t.Fatalf("%+v", page.Blocks)
	}
	bob.publish()
	if len(alice.claim(bob)) != 0 {
		t.Error("the blocked inviter claims")
	}
	// The last member cannot leave, and then blocks nobody.
	d := bob.create()
	bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: d.id, Block: ptr(true)}).fails(http.StatusConflict,
		mlsapi.ErrLastMember)
	// The creator has no inviter.
	carol := w.user()
	e := carol.create(bob)
	out = read[mlsapi.LeaveConvoOutput](t,
		carol.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: e.id, Block: ptr(true)}).ok())
	if out.Blocked != nil {
		t.Errorf("blocked %s", *out.Blocked)
	}
	bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: e.id, TargetDID: ptr(carol.did()), Block: ptr(true)}).
		fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
}

// A block that is answered holds for every invitation that commits later, also for those that began
// before: the number of convos into which the blocked one has brought the person does not grow.
func TestBlockIsHonouredAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.boot()
	for range 5 {
		alice, bob := w.user(), w.user()
		inputs := make([]*mlsapi.CreateConvoInput, 12)
		for i := range inputs {
			inputs[i] = alice.creation(newGroup(t), bob)
		}
		brought := func() int { return w.count(`SELECT count(*) FROM members WHERE did = $1`, bob.did()) }
		atBlock := -1
		answers := together(len(inputs)+1, func(i int) answer {
			if i == len(inputs) {
				a := bob.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: alice.did()})
				atBlock = brought()
				return a
			}
			return alice.on(other).post(mlsapi.NSIDCreateConvo, inputs[i])
		})
		answers[len(inputs)].ok()
		made := 0
		for _, a := range answers[:len(inputs)] {
			if a.status == http.StatusOK {
				made++
			} else {
				a.fails(http.StatusNotFound, mlsapi.ErrKeyPackageNotFound)
			}
		}
		if now := brought(); now != atBlock || now != made {
			t.Errorf("%d convos when the block was answered, %d now, %d made", atBlock, now, made)
		}
	}
}

// S3: a block waits for an invitation that is under way, and declines it.
func TestBlockDeclinesWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	failpointtest.Arm(t, w.faults, failpoint.BeforeCommit, mlsapi.NSIDCreateConvo, failpoint.Pause)
	in := alice.creation(newGroup(t), bob)
	created, blocked := make(chan answer, 1), make(chan answer, 1)
	go func() { created <- alice.post(mlsapi.NSIDCreateConvo, in) }()
	<-w.faults.Reached(failpoint.BeforeCommit, mlsapi.NSIDCreateConvo)
	go func() { blocked <- bob.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: alice.did()}) }()
	for len(blocked) == 0 && pgtest.LockWaits(t, w.db) == 0 {
		runtime.Gosched()
	}
	if len(blocked) > 0 {
		t.Error("the block did not wait for the invitation")
	}
	w.faults.Resume(failpoint.BeforeCommit, mlsapi.NSIDCreateConvo)
	c := read[mlsapi.ConvoView](t, (<-created).ok())
	(<-blocked).ok()
	bob.get(mlsapi.NSIDGetEpoch, "convoId", c.ID).fails(http.StatusForbidden, mlsapi.ErrNotMember)
}

// The list of blocks has pages, is the caller's alone, and is bounded.
func TestBlocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.user()
	var want []syntax.DID
	for i := range 7 {
		did := syntax.DID(fmt.Sprintf("did:plc:mallory%d", i))
		want = append(want, did)
		bob.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: did}).ok()
	}
	var got []syntax.DID
	params := []string{"limit", "3"}
	for pages := 1; ; pages++ {
		page := read[mlsapi.GetBlocksOutput](t, bob.get(mlsapi.NSIDGetBlocks, params...).ok())
		for _, b := range page.Blocks {
			got = append(got, b.DID)
		}
		if page.Cursor == nil {
			if pages != 3 {
				t.Errorf("%d pages", pages)
			}
			break
		}
		params = []string{"limit", "3", "cursor", *page.Cursor}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	bob.get(mlsapi.NSIDGetBlocks, "cursor", "x").fails(http.StatusBadRequest, mlsapi.ErrInvalidCursor)
	if page := read[mlsapi.GetBlocksOutput](t, w.user().get(mlsapi.NSIDGetBlocks).ok()); len(page.Blocks) != 0 {
		t.Errorf("another one's blocks: %+v", page)
	}
	w.exec(`INSERT INTO blocks SELECT $1, 'did:plc:filler' || n, now() FROM generate_series(1, 9993) n`, bob.did())
	bob.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: "did:plc:more"}).fails(http.StatusBadRequest,
		mlsapi.ErrTooManyBlocks)
	bob.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: want[0]}).ok() // again
	alice := w.user()
	alice.post(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: bob.create().id}).fails(http.StatusNotFound,
		mlsapi.ErrConvoNotFound)
}

// The streams of the invited person mark what belongs to a request. Nobody else's do.
func TestStreamsMarkRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live)
	alice, bob := w.user(), w.user()
	r, frames, others := bob.stream(query("cursor", "0")), bob.dial("cursor", "0"), alice.stream(query("cursor", "0"))
	c := alice.create(bob)
	alice.send(c, "hello")
	marked := func(body []byte) bool { return bytes.Contains(body, []byte(`"request":true`)) }
	next := func() (sent, []byte) { // of the convo
		e, frame := r.event(), frames.read()
		if e.event == "keyPackagesEvent" {
			e, frame = r.event(), frames.read()
		}
		return e, frame
	}
	for range 3 { // its own membership, a Welcome and a message
		e, frame := next()
		if !marked([]byte(e.data)) || !bytes.Contains(frame, []byte("\x67request\xf5")) {
			t.Errorf("an event of a request is not marked: %s", e.data)
		}
	}
	bob.send(c, "who are you?")
	alice.send(c, "a friend")
	for range 2 {
		e, frame := next()
		if marked([]byte(e.data)) || bytes.Contains(frame, []byte("request")) {
			t.Errorf("an event of an accepted convo is marked: %s", e.data)
		}
	}
	for range 5 {
		if e := others.event(); marked([]byte(e.data)) {
			t.Errorf("the inviter sees that it is a request: %s", e.data)
		}
	}
}
