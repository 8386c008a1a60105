package api_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"mlsd/api/mlsapi"
)

// A wrong promoteAdmin, demoteAdmin or updateConvo is refused, with what is wrong and what to do. It
// changes nothing.
func TestWrongRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, gone, outsider := w.user(), w.user(), w.user(), w.user(), w.user()
	c, closed := alice.create(bob, carol, gone), alice.create(bob)
	c.accepted(bob, carol)
	alice.remove(c, gone)
	w.exec(`UPDATE convos SET closed_at = now() WHERE id = $1`, closed.id)
	const unknown = "0192f3a4-0000-7000-8000-000000000000"
	type fields map[string]any
	type wrong struct {
		name   string
		by     *user
		in     fields
		status int
		error  string
		says   string // parts of the message, apart by |
	}
	const bad, denied = http.StatusBadRequest, http.StatusForbidden
	did := func(u *user) string { return u.did().String() }
	both := []wrong{
		{"no convo", alice, fields{"did": did(bob)}, bad, "InvalidRequest", "convoId"},
		{"a convo that is no id", alice, fields{"convoId": "x", "did": did(bob)}, bad, "InvalidRequest", "convoId"},
		{"an unknown convo", alice, fields{"convoId": unknown, "did": did(bob)}, http.StatusNotFound, "ConvoNotFound", ""},
		{"no person", alice, fields{"convoId": c.id}, bad, "InvalidRequest", "did"},
		{"a person that is none", alice, fields{"convoId": c.id, "did": "bob"}, bad, "InvalidRequest", "did"},
		{"a handle", alice, fields{"convoId": c.id, "did": "bob.example.com"}, bad, "InvalidRequest", "did"},
		{"a number", alice, fields{"convoId": c.id, "did": 7}, bad, "InvalidRequest", "did"},
		{"nothing", alice, fields{"convoId": c.id, "did": nil}, bad, "InvalidRequest", "did"},
		{"a long key", alice, fields{"convoId": c.id, "did": did(bob), "idempotencyKey": strings.Repeat("k", 129)}, bad,
			"InvalidRequest", "idempotencyKey|128"},
		{"an outsider asks", outsider, fields{"convoId": c.id, "did": did(bob)}, http.StatusNotFound, "ConvoNotFound", ""},
		{"a former member asks", gone, fields{"convoId": c.id, "did": did(bob)}, denied, "NotMember", ""},
		{"a member asks", bob, fields{"convoId": c.id, "did": did(carol)}, denied, "NotPermitted", "no admin|getConvo"},
		{"for an outsider", alice, fields{"convoId": c.id, "did": did(outsider)}, bad, "InvalidRequest",
			"did: " + did(outsider) + " is no member|getConvo"},
		{"for a former member", alice, fields{"convoId": c.id, "did": did(gone)}, bad, "InvalidRequest",
			"did: " + did(gone) + " is no member|getConvo"},
		{"a closed convo", alice, fields{"convoId": closed.id, "did": did(bob)}, http.StatusConflict, "ConvoClosed", ""},
	}
	metadata := func(name, value any) fields {
		return fields{"convoId": c.id, "metadata": fields{name.(string): value}}
	}
	for nsid, cases := range map[string][]wrong{
		mlsapi.NSIDPromoteAdmin: both,
		mlsapi.NSIDDemoteAdmin: append(slices.Clone(both), wrong{"the last admin", alice,
			fields{"convoId": c.id, "did": did(alice)}, denied, "NotPermitted", "last admin|promote another member first"}),
		mlsapi.NSIDUpdateConvo: {
			{"no convo", alice, fields{"metadata": fields{}}, bad, "InvalidRequest", "convoId"},
			{"an unknown convo", alice, fields{"convoId": unknown, "metadata": fields{}}, http.StatusNotFound,
				"ConvoNotFound", ""},
			{"no metadata", alice, fields{"convoId": c.id}, bad, "InvalidRequest", "metadata"},
			{"metadata that is text", alice, fields{"convoId": c.id, "metadata": "Family"}, bad, "InvalidRequest", "metadata"},
			{"a long name", alice, metadata("name", strings.Repeat("n", 129)), bad, "InvalidRequest", "name|128"},
			{"a name of many bytes", alice, metadata("name", strings.Repeat("ü", 65)), bad, "InvalidRequest", "name|128"},
			{"a long description", alice, metadata("description", strings.Repeat("d", 513)), bad, "InvalidRequest",
				"description|512"},
			{"a name that is a number", alice, metadata("name", 7), bad, "InvalidRequest", "name"},
			{"a name that cannot be stored", alice, metadata("name", "a\x00b"), bad, "InvalidRequest", "name"},
			{"a member asks", bob, metadata("name", "mine"), denied, "NotPermitted", "no admin|getConvo"},
			{"a former member asks", gone, metadata("name", "mine"), denied, "NotMember", ""},
			{"an outsider asks", outsider, metadata("name", "mine"), http.StatusNotFound, "ConvoNotFound", ""},
			{"a closed convo", alice, fields{"convoId": closed.id, "metadata": fields{"name": "late"}}, http.StatusConflict,
				"ConvoClosed", ""},
		},
	} {
		for _, test := range cases {
			a := test.by.post(nsid, test.in)
			var says string
			t.Run(nsid+": "+test.name, func(t *testing.T) {
				a.t = t
				says = a.fails(test.status, test.error)
			})
			for part := range strings.SplitSeq(test.says, "|") {
				if !strings.Contains(says, part) || says == "" {
					t.Errorf("%s, %s: the message is %q, want %q in it", nsid, test.name, says, part)
				}
			}
		}
	}
	if n := w.count(`SELECT count(*) FROM outbox WHERE kind IN (11, 12)`); n != 0 {
		t.Errorf("%d changes were told", n)
	}
}

// Every view says who is an admin, in the same way: getConvo and getConvos, to an admin, to a member
// and to an invited person. A new name is in the next views of all.
func TestViewsOfAdmins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob, carol) // a request to both
	c.accepted(bob)
	alice.post(mlsapi.NSIDPromoteAdmin, &mlsapi.PromoteAdminInput{ConvoID: c.id, DID: bob.did()}).ok()
	name, description := strings.Repeat("ü", 64), strings.Repeat("d", 512) // the most
	updated := read[mlsapi.UpdateConvoOutput](t, bob.post(mlsapi.NSIDUpdateConvo, &mlsapi.UpdateConvoInput{ConvoID: c.id,
		Metadata: mlsapi.ConvoMetadata{Name: &name, Description: &description}}).ok()).Convo
	check := func(what string, u *user, v mlsapi.ConvoView) {
		t.Helper()
		is := func(admin *bool) bool { return admin != nil && *admin }
		if is(v.IsAdmin) != (u != carol) {
			t.Errorf("%s: %s is told that it is an admin: %t", what, u.did(), is(v.IsAdmin))
		}
		for _, m := range v.Members {
			if is(m.IsAdmin) != (m.DID != carol.did()) {
				t.Errorf("%s: %s is an admin: %t", what, m.DID, is(m.IsAdmin))
			}
		}
		if v.Metadata == nil || *v.Metadata.Name != name || *v.Metadata.Description != description {
			t.Errorf("%s: metadata %+v", what, v.Metadata)
		}
	}
	check("updateConvo", bob, updated)
	for _, u := range []*user{alice, bob, carol} {
		check("getConvo", u, read[mlsapi.GetConvoOutput](t, u.get(mlsapi.NSIDGetConvo, "convoId", c.id).ok()).Convo)
		all := read[mlsapi.GetConvosOutput](t, u.get(mlsapi.NSIDGetConvos).ok()).Conversations
		if len(all) != 1 {
			t.Fatalf("%d convos", len(all))
		}
		check("getConvos", u, all[0])
	}
}
