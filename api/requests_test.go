package api_test

import (
	"bytes"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	"mlsd/internal/mlstest"
)

// request is one write as its client repeats it: the same input, each time with a fresh token.
type request struct {
	by     *user
	nsid   string
	in     any      // of a procedure
	params []string // of a query

	effects string // SQL that counts how often the write has taken effect
	args    []any
}

// send sends the request to node.
func (r request) send(node *api.Server) answer {
	r.by.w.t.Helper()
	if r.in == nil {
		return r.by.on(node).get(r.nsid, r.params...)
	}
	return r.by.on(node).post(r.nsid, r.in)
}

// once fails the test unless the write has taken effect exactly once.
func (r request) once() {
	r.by.w.t.Helper()
	if n := r.by.w.count(r.effects, r.args...); n != 1 {
		r.by.w.t.Fatalf("%s took effect %d times", r.nsid, n)
	}
}

// write is a kind of write. make prepares a world for one request of it; key is nil for a client
// that sends none.
type write struct {
	name  string
	life  time.Duration // of its record under the key; 0: the key's record is the message
	later string        // what a repetition gets after that: replay, runs, or an error
	make  func(w *world, key *string) request
}

const (
	day  = 24 * time.Hour
	week = 7 * day

	replay = "the first answer"
	runs   = "an answer of its own"
)

// keyed are the writes that carry an idempotency key.
var keyed = []write{
	{"createConvo", week, mlsapi.ErrGroupAlreadyExists, func(w *world, key *string) request {
		alice, group := w.user(), newGroup(w.t)
		in := alice.creation(group, w.user(), w.user())
		in.IdempotencyKey = key
		return request{by: alice, nsid: mlsapi.NSIDCreateConvo, in: in,
			effects: `SELECT count(*) FROM convos WHERE group_id = $1`, args: []any{group}}
	}},
	{"addMembers", week, mlsapi.ErrEpochMismatch, func(w *world, key *string) request {
		alice := w.user()
		c := alice.create()
		in := alice.addition(c, w.user(), w.user())
		in.IdempotencyKey = key
		return request{by: alice, nsid: mlsapi.NSIDAddMembers, in: in,
			effects: `SELECT count(*) FROM messages WHERE convo_id = $1 AND kind = 3`, args: []any{c.id}}
	}},
	{"resetConvo", week, mlsapi.ErrConvoClosed, func(w *world, key *string) request {
		alice, bob := w.user(), w.user()
		c := alice.create(bob)
		bob.publish()
		in := &mlsapi.ResetConvoInput{
			ConvoID: c.id, Reason: "forked", IdempotencyKey: key, GroupInfo: alice.groupInfo(newGroup(w.t), 1, bob),
			WelcomeMessage: mlstest.Welcome(w.t, alice.claim(bob)...),
		}
		return request{by: alice, nsid: mlsapi.NSIDResetConvo, in: in,
			effects: `SELECT count(*) FROM convos WHERE predecessor_id = $1`, args: []any{c.id}}
	}},
	{"sendMessage", 0, replay, func(w *world, key *string) request {
		alice := w.user()
		c := alice.create()
		in := alice.message(c, "hello")
		in.IdempotencyKey = key
		return request{by: alice, nsid: mlsapi.NSIDSendMessage, in: in,
			effects: `SELECT count(*) FROM messages WHERE convo_id = $1`, args: []any{c.id}}
	}},
	answers(mlsapi.NSIDAcceptInvitation, "accepted", func(convo string, key *string) any {
		return &mlsapi.AcceptInvitationInput{Service: peer, ConvoID: convo, IdempotencyKey: key}
	}),
	answers(mlsapi.NSIDDeclineInvitation, "declined", func(convo string, key *string) any {
		return &mlsapi.DeclineInvitationInput{Service: peer, ConvoID: convo, IdempotencyKey: key}
	}),
	{"publishKeyPackage", day, replay, func(w *world, key *string) request {
		alice := w.user()
		body, _ := alice.KeyPackage(w.t)
		return request{by: alice, nsid: mlsapi.NSIDPublishKeyPackage,
			in:      &mlsapi.PublishKeyPackageInput{KeyPackage: body, CipherSuite: mlstest.Suite.String(), IdempotencyKey: key},
			effects: `SELECT count(*) FROM key_packages WHERE did = $1`, args: []any{alice.did()}}
	}},
	{"publishKeyPackages", day, runs, func(w *world, key *string) request {
		alice := w.user()
		in, _ := alice.batch(3)
		in.KeyPackages[1].KeyPackage[9] ^= 1 // which has no effect on the others
		in.IdempotencyKey = key
		return request{by: alice, nsid: mlsapi.NSIDPublishKeyPackages, in: in,
			effects: `SELECT count(*) / 2 FROM key_packages WHERE did = $1`, args: []any{alice.did()}}
	}},
	{"leaveConvo", week, replay, func(w *world, key *string) request {
		bob := w.user()
		c := w.user().create(bob)
		return request{by: bob, nsid: mlsapi.NSIDLeaveConvo, in: &mlsapi.LeaveConvoInput{ConvoID: c.id, IdempotencyKey: key},
			effects: `SELECT count(*) FROM members WHERE convo_id = $1 AND left_at IS NOT NULL`, args: []any{c.id}}
	}},
	{"leaveConvo with a commit", week, mlsapi.ErrEpochMismatch, func(w *world, key *string) request {
		alice, bob := w.user(), w.user()
		c := alice.create(bob)
		return request{by: alice, nsid: mlsapi.NSIDLeaveConvo,
			in: &mlsapi.LeaveConvoInput{ConvoID: c.id, IdempotencyKey: key, TargetDID: ptr(bob.did()),
				Commit: mlstest.Commit(c.group, c.epoch, "remove bob")},
			effects: `SELECT count(*) FROM messages WHERE convo_id = $1 AND kind = 3`, args: []any{c.id}}
	}},
	{"submitCommit", week, mlsapi.ErrEpochMismatch, func(w *world, key *string) request {
		bob := w.user()
		c := w.user().create(bob)
		in := bob.rotation(c)
		in.IdempotencyKey = key
		return request{by: bob, nsid: mlsapi.NSIDSubmitCommit, in: in,
			effects: `SELECT count(*) FROM messages WHERE convo_id = $1 AND kind = 3`, args: []any{c.id}}
	}},
	{"processExternalCommit", week, mlsapi.ErrEpochMismatch, func(w *world, key *string) request {
		bob := w.phone()
		c := w.phone().found(bob)
		info := read[mlsapi.GetGroupInfoOutput](w.t, bob.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).ok())
		in := rejoin(c, must(bob.user.phone().mls.JoinExternal(info.GroupInfo, mlsclient.NoLeaf))(w))
		in.IdempotencyKey = key
		return request{by: bob.user, nsid: mlsapi.NSIDProcessExternalCommit, in: in,
			effects: `SELECT count(*) FROM messages WHERE convo_id = $1 AND kind = 3`, args: []any{c.id}}
	}},
	{"registerPushTarget", day, runs, func(w *world, key *string) request {
		alice := w.user()
		return request{by: alice, nsid: mlsapi.NSIDRegisterPushTarget,
			in: &mlsapi.RegisterPushTargetInput{DeviceID: "phone", Kind: "webhook", URL: ptr("https://push.example.com/"),
				IdempotencyKey: key},
			effects: `SELECT count(*) FROM push_targets WHERE did = $1`, args: []any{alice.did()}}
	}},
	{"unregisterPushTarget", day, runs, func(w *world, key *string) request {
		alice := w.user()
		alice.post(mlsapi.NSIDRegisterPushTarget,
			&mlsapi.RegisterPushTargetInput{DeviceID: "phone", Kind: "webhook", URL: ptr("https://push.example.com/")}).ok()
		return request{by: alice, nsid: mlsapi.NSIDUnregisterPushTarget,
			in:      &mlsapi.UnregisterPushTargetInput{DeviceID: "phone", IdempotencyKey: key},
			effects: `SELECT 1 - count(*) FROM push_targets WHERE did = $1`, args: []any{alice.did()}}
	}},
	{"withdrawKeyPackages", day, runs, func(w *world, key *string) request {
		alice := w.user()
		alice.publish()
		return request{by: alice, nsid: mlsapi.NSIDWithdrawKeyPackages,
			in: &mlsapi.WithdrawKeyPackagesInput{DeviceID: alice.deviceID(), IdempotencyKey: key},
			// Each withdrawal of the one KeyPackage raises its version.
			effects: `SELECT sum(version) FROM key_packages WHERE did = $1`, args: []any{alice.did()}}
	}},
	{"acceptConvo", day, replay, func(w *world, key *string) request {
		bob := w.user()
		c := w.user().create(bob)
		return request{by: bob, nsid: mlsapi.NSIDAcceptConvo,
			in:      &mlsapi.AcceptConvoInput{ConvoID: c.id, IdempotencyKey: key},
			effects: `SELECT count(*) - 1 FROM members WHERE convo_id = $1 AND requested_at IS NULL`, args: []any{c.id}}
	}},
	{"promoteAdmin", day, replay, func(w *world, key *string) request {
		alice, bob := w.user(), w.user()
		c := alice.create(bob)
		return request{by: alice, nsid: mlsapi.NSIDPromoteAdmin,
			in:      &mlsapi.PromoteAdminInput{ConvoID: c.id, DID: bob.did(), IdempotencyKey: key},
			effects: `SELECT count(*) - 1 FROM members WHERE convo_id = $1 AND role <> 'member'`, args: []any{c.id}}
	}},
	{"demoteAdmin", day, replay, func(w *world, key *string) request {
		alice, bob := w.user(), w.user()
		c := alice.create(bob)
		alice.post(mlsapi.NSIDPromoteAdmin, &mlsapi.PromoteAdminInput{ConvoID: c.id, DID: bob.did()}).ok()
		return request{by: alice, nsid: mlsapi.NSIDDemoteAdmin,
			in:      &mlsapi.DemoteAdminInput{ConvoID: c.id, DID: bob.did(), IdempotencyKey: key},
			effects: `SELECT 2 - count(*) FROM members WHERE convo_id = $1 AND role <> 'member'`, args: []any{c.id}}
	}},
	{"updateConvo", day, replay, func(w *world, key *string) request {
		alice := w.user()
		c := alice.create(w.user())
		return request{by: alice, nsid: mlsapi.NSIDUpdateConvo,
			in: &mlsapi.UpdateConvoInput{
				ConvoID: c.id, Metadata: mlsapi.ConvoMetadata{Name: ptr("Family")}, IdempotencyKey: key,
			},
			effects: `SELECT count(*) FROM convos WHERE id = $1 AND name = 'Family'`, args: []any{c.id}}
	}},
	{"leaveConvo with a block", week, replay, func(w *world, key *string) request {
		bob := w.user()
		c := w.user().create(bob)
		return request{by: bob, nsid: mlsapi.NSIDLeaveConvo,
			in:      &mlsapi.LeaveConvoInput{ConvoID: c.id, Block: ptr(true), IdempotencyKey: key},
			effects: `SELECT count(*) FROM blocks WHERE did = $1`, args: []any{bob.did()}}
	}},
	{"blockActor", day, replay, func(w *world, key *string) request {
		bob := w.user()
		return request{by: bob, nsid: mlsapi.NSIDBlockActor,
			in:      &mlsapi.BlockActorInput{DID: "did:plc:mallory", IdempotencyKey: key},
			effects: `SELECT count(*) FROM blocks WHERE did = $1`, args: []any{bob.did()}}
	}},
	{"unblockActor", day, replay, func(w *world, key *string) request {
		bob := w.user()
		bob.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: "did:plc:mallory"}).ok()
		return request{by: bob, nsid: mlsapi.NSIDUnblockActor,
			in:      &mlsapi.UnblockActorInput{DID: "did:plc:mallory", IdempotencyKey: key},
			effects: `SELECT 1 - count(*) FROM blocks WHERE did = $1`, args: []any{bob.did()}}
	}},
	{"setInvitationPolicy", day, replay, func(w *world, key *string) request {
		bob := w.user()
		return request{by: bob, nsid: mlsapi.NSIDSetInvitationPolicy,
			in:      &mlsapi.SetInvitationPolicyInput{Policy: "nobody", IdempotencyKey: key},
			effects: `SELECT count(*) FROM policies WHERE did = $1 AND invitations = 'nobody'`, args: []any{bob.did()}}
	}},
	{"setCursorPolicy", day, replay, func(w *world, key *string) request {
		bob := w.user()
		return request{by: bob, nsid: mlsapi.NSIDSetCursorPolicy,
			in:      &mlsapi.SetCursorPolicyInput{ShareCursors: "members", IdempotencyKey: key},
			effects: `SELECT count(*) FROM policies WHERE did = $1 AND share_cursors`, args: []any{bob.did()}}
	}},
	{"reportConvo", day, replay, func(w *world, key *string) request {
		bob := w.user()
		c := w.user().create(bob)
		in := bob.report(c, "he threatens me")
		in.IdempotencyKey = key
		return request{by: bob, nsid: mlsapi.NSIDReportConvo, in: in,
			effects: `SELECT count(*) FROM abuse_reports WHERE convo_id = $1 AND reporter = $2`, args: []any{c.id, bob.did()}}
	}},
	{"eraseMyAccount", time.Hour, runs, func(w *world, key *string) request {
		bob := w.user()
		return request{by: bob, nsid: mlsapi.NSIDEraseMyAccount, in: &mlsapi.EraseMyAccountInput{IdempotencyKey: key},
			effects: `SELECT count(*) FROM erasure_confirmations WHERE did = $1`, args: []any{bob.did()}}
	}},
	{"eraseMyAccount, confirmed", time.Hour, replay, func(w *world, key *string) request {
		bob := w.user()
		return request{by: bob, nsid: mlsapi.NSIDEraseMyAccount,
			in:      &mlsapi.EraseMyAccountInput{ConfirmationToken: ptr(bob.confirmation()), IdempotencyKey: key},
			effects: `SELECT count(*) FROM erasures WHERE did = $1`, args: []any{bob.did()}}
	}},
	{"getKeyPackages", 30 * time.Minute, runs, func(w *world, key *string) request {
		alice, bob := w.user(), w.user()
		for range 3 {
			bob.publish()
		}
		params := []string{"dids", bob.did().String()}
		if key != nil {
			params = append(params, "idempotencyKey", *key)
		}
		return request{by: alice, nsid: mlsapi.NSIDGetKeyPackages, params: params,
			effects: `SELECT count(*) FROM key_packages WHERE did = $1 AND state = 'claimed'`, args: []any{bob.did()}}
	}},
}

// answers are the answers to an invitation of another service.
func answers(nsid, state string, in func(convo string, key *string) any) write {
	return write{nsid[strings.LastIndexByte(nsid, '.')+1:], day, replay, func(w *world, key *string) request {
		bob, of := w.invited()
		return request{by: bob, nsid: nsid, in: in(of.ConvoID, key),
			effects: `SELECT count(*) FROM received_invitations WHERE did = $1 AND state = $2`, args: []any{bob.did(), state}}
	}}
}

// unkeyed are the writes that take no key, because they are safe to repeat without one.
var unkeyed = []write{
	{name: "deliverErasure", make: func(w *world, _ *string) request {
		alice := w.user()
		in := alice.creation(newGroup(w.t))
		in.InitialMembers = append(in.InitialMembers, homed)
		alice.post(mlsapi.NSIDCreateConvo, in).ok()
		return request{by: w.peer(), nsid: mlsapi.NSIDDeliverErasure, in: &mlsapi.DeliverErasureInput{DID: homed},
			effects: `SELECT count(*) FROM erasures WHERE did = $1`, args: []any{homed}}
	}},
	{name: "deliverInvitation", make: func(w *world, _ *string) request {
		bob := w.user()
		return request{by: w.peer(), nsid: mlsapi.NSIDDeliverInvitation,
			in:      w.user().delivery(bob, bob.publish(mlstest.LastResort)),
			effects: `SELECT count(*) FROM received_invitations WHERE did = $1`, args: []any{bob.did()}}
	}},
	{name: "getWelcome", make: func(w *world, _ *string) request {
		bob := w.user()
		c := w.user().create(bob)
		return request{by: bob, nsid: mlsapi.NSIDGetWelcome, params: []string{"convoId", c.id},
			effects: `SELECT sum(attempts) FROM welcomes WHERE convo_id = $1`, args: []any{c.id}}
	}},
	{name: "confirmWelcome", make: func(w *world, _ *string) request {
		bob := w.user()
		c := w.user().create(bob)
		bob.get(mlsapi.NSIDGetWelcome, "convoId", c.id).ok()
		return request{by: bob, nsid: mlsapi.NSIDConfirmWelcome,
			in:      &mlsapi.ConfirmWelcomeInput{ConvoID: c.id, Success: true},
			effects: `SELECT count(*) FROM welcomes WHERE convo_id = $1 AND state = 'consumed' AND version = 2`,
			args:    []any{c.id}}
	}},
	{name: "updateCursor", make: func(w *world, _ *string) request {
		alice := w.user()
		c := alice.create()
		alice.send(c, "hello")
		return request{by: alice, nsid: mlsapi.NSIDUpdateCursor, in: &mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: 1},
			effects: `SELECT count(*) FROM members WHERE convo_id = $1 AND cursor_seq = 1`, args: []any{c.id}}
	}},
	{name: "reportEpoch", make: func(w *world, _ *string) request {
		alice := w.user()
		c := alice.create()
		return request{by: alice, nsid: mlsapi.NSIDReportEpoch, in: entry(c, c.epoch, "one"),
			effects: `SELECT count(*) FROM epoch_reports WHERE convo_id = $1`, args: []any{c.id}}
	}},
	{name: "publishGroupInfo", make: func(w *world, _ *string) request {
		bob := w.phone()
		c := w.phone().found(bob)
		w.exec(`UPDATE public_groups SET group_info = NULL`)
		return request{by: bob.user, nsid: mlsapi.NSIDPublishGroupInfo,
			in:      &mlsapi.PublishGroupInfoInput{ConvoID: c.id, GroupInfo: must(bob.group.GroupInfo())(w)},
			effects: `SELECT count(*) FROM public_groups WHERE convo_id = $1 AND group_info IS NOT NULL`, args: []any{c.id}}
	}},
	{name: "reportCommit", make: func(w *world, _ *string) request {
		alice, bob := w.user(), w.user()
		c := alice.create(bob)
		alice.rotate(c)
		return request{by: bob, nsid: mlsapi.NSIDReportCommit, in: failure(c, c.epoch),
			effects: `SELECT count(*) FROM commit_reports WHERE convo_id = $1`, args: []any{c.id}}
	}},
	{name: "deleteSession", make: func(w *world, _ *string) request {
		alice := w.user()
		alice.session()
		return request{by: alice, nsid: mlsapi.NSIDDeleteSession, in: &mlsapi.DeleteSessionInput{},
			// 1 is the version of the first key. A request that waits for another can raise the version,
			// but the session keeps the one that it ended with.
			effects: `SELECT count(*) FROM sessions WHERE did = $1 AND ended_version = 2`,
			args:    []any{alice.did()}}
	}},
}

// elsewhere are the procedures that neither list has, and whether they take a key. Attachments need
// a store, sessions and tickets are made anew each time, and a signal is not kept. Tests of their
// own repeat them.
var elsewhere = map[string]bool{
	"createAttachment": true, "putAttachmentPart": false, "completeAttachment": false, "deleteAttachment": true,
	"createSession": false, "refreshSession": false, "getSubscriptionTicket": false, "sendSignal": false,
}

// Every procedure is in a list, so that the tests of exactly-once run it. The list says whether the
// procedure takes a key.
func TestEveryWriteIsListed(t *testing.T) {
	t.Parallel()
	for _, m := range mlsapi.Methods() {
		if m.Kind != mlsapi.Procedure {
			continue
		}
		lexicon, err := os.ReadFile("../lexicons/" + strings.ReplaceAll(m.NSID, ".", "/") + ".json")
		if err != nil {
			t.Fatal(err)
		}
		name := m.NSID[strings.LastIndexByte(m.NSID, '.')+1:]
		listed := func(w write) bool { return w.name == name || strings.HasPrefix(w.name, name+" ") }
		takes, other := elsewhere[name]
		takes = takes || slices.ContainsFunc(keyed, listed)
		if !takes && !other && !slices.ContainsFunc(unkeyed, listed) {
			t.Errorf("%s is neither in keyed nor in unkeyed", name)
		}
		if takes != bytes.Contains(lexicon, []byte(`"idempotencyKey": {`)) {
			t.Errorf("%s: takes a key: %t. The lexicon says otherwise", name, takes)
		}
	}
}

// guarded returns the writes that take effect once, with one answer, even if they are repeated
// without a key. These are all but the first step of eraseMyAccount, getKeyPackages,
// publishKeyPackages, unregisterPushTarget and withdrawKeyPackages. The answers of the last three
// say that a request is a repetition.
func guarded() []write {
	var out []write
	for _, k := range append(keyed[:len(keyed):len(keyed)], unkeyed...) {
		if k.name != "eraseMyAccount" && k.name != "getKeyPackages" && k.name != "publishKeyPackages" &&
			k.name != "unregisterPushTarget" && k.name != "withdrawKeyPackages" {
			out = append(out, k)
		}
	}
	return out
}

// each runs test for every kind of write, one after the other in one world.
func each(t *testing.T, writes []write, key func() *string, test func(t *testing.T, w *world, r request),
	changes ...func(*world)) {
	t.Helper()
	w := newWorld(t, changes...)
	for _, kind := range writes {
		t.Run(kind.name, func(t *testing.T) {
			w := w.within(t)
			test(t, w, kind.make(w, key()))
		})
	}
}

func noKey() *string { return nil }

// same fails the test unless all answers are 200 with one body. It repeats a request that
// gets RequestInProgress.
func same(t *testing.T, r request, answers []answer) {
	t.Helper()
	var first []byte
	for i, a := range answers {
		for a.status == http.StatusConflict || a.status == http.StatusServiceUnavailable {
			if a.header.Get("Retry-After") == "" {
				t.Fatalf("answer %d says neither yes nor when to retry: %s", i, a.body)
			}
			a = r.send(r.by.w.server)
		}
		if first == nil {
			first = a.ok()
		}
		if !bytes.Equal(a.ok(), first) {
			t.Fatalf("answer %d is %s, another one %s", i, a.body, first)
		}
	}
}
