package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// This file changes roles. The caller holds the convo's mu, so the model knows each answer before.

// changeRole makes somebody promote or demote somebody. Either can be a member, an admin, a former
// member, or somebody who never was one.
func (t *Traffic) changeRole(ctx context.Context, rng *rand.Rand, r *Convo) {
	by, of := r.somebody(rng), r.somebody(rng)
	if rng.IntN(2) == 0 { // else few would be allowed to
		by = t.anAdmin(rng, r, "")
	}
	t.setRole(ctx, rng, r, by, of, rng.IntN(2) == 0)
	t.checkAdmins(ctx, rng, r)
}

// abdicate makes a member the only admin, who then leaves. Another member must become admin.
func (t *Traffic) abdicate(ctx context.Context, rng *rand.Rand, r *Convo) {
	last := r.members[rng.IntN(len(r.members))]
	t.setRole(ctx, rng, r, t.anAdmin(rng, r, ""), last.Account, true)
	for by := t.anAdmin(rng, r, last.DID); by != nil; by = t.anAdmin(rng, r, last.DID) {
		t.setRole(ctx, rng, r, last.Account, by, false)
	}
	r.members = slices.DeleteFunc(r.members, func(l *Listener) bool { return l == last })
	t.leave(ctx, rng, r, last)
}

// setRole makes by promote or demote of, and compares the answer with the model's.
func (t *Traffic) setRole(ctx context.Context, rng *rand.Rand, r *Convo, by, of *xrpc.Account, promote bool) {
	want := t.Model.RefusesRole(r.ID, by.DID, of.DID, promote)
	_, err := t.calls.do(ctx, rng, by, xrpc.RoleCall(r.ID, of.DID, promote, xrpc.NewKey()))
	var named *xrpc.CallError
	if err != nil && !errors.As(err, &named) {
		Check(err)
	}
	t.RoleChanges.Add(1)
	if got := xrpc.ErrorName(err); got != want {
		t.w.Report(history.Violation{Kind: history.Broken, Convo: r.ID, Who: by.DID.String(),
			What: fmt.Sprintf("makes %s an admin (%t): the answer is %q, want %q", of.DID, promote, got, want)})
	}
	if err == nil {
		t.Model.RoleChanged(r.ID, of.DID, promote)
	}
}

// somebody returns a random account of the convo, or of its former and future members.
func (r *Convo) somebody(rng *rand.Rand) *xrpc.Account {
	all := slices.Clone(r.writers)
	for _, l := range slices.Concat(r.members, r.members, r.nonMembers) {
		all = append(all, l.Account)
	}
	return all[rng.IntN(len(all))]
}

// anAdmin returns a random admin other than not, or nil if there is none.
func (t *Traffic) anAdmin(rng *rand.Rand, r *Convo, not syntax.DID) *xrpc.Account {
	dids := t.Model.Admins(r.ID)
	var all []*xrpc.Account
	for _, a := range r.writers {
		if a.DID != not && slices.Contains(dids, a.DID) {
			all = append(all, a)
		}
	}
	for _, l := range r.members {
		if l.DID != not && slices.Contains(dids, l.DID) {
			all = append(all, l.Account)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[rng.IntN(len(all))]
}

// checkAdmins compares the admins that a server names with the model's. A server may read from a
// standby that is a moment behind.
func (t *Traffic) checkAdmins(ctx context.Context, rng *rand.Rand, r *Convo) {
	for end := time.Now().Add(verdictTimeout); ; {
		out := Must(ask[mlsapi.GetConvoOutput](ctx, t.calls, rng, r.Creator, xrpc.ConvoCall(r.ID)))
		err := t.Model.AdminsAre(r.ID, adminsOf(out))
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.w.Report(history.Violation{Kind: history.Broken, Convo: r.ID, What: err.Error()})
			return
		}
	}
}

// adminsOf returns the admins of a convo's view, sorted.
func adminsOf(out *mlsapi.GetConvoOutput) (admins []syntax.DID) {
	for _, m := range out.Convo.Members {
		if m.IsAdmin != nil && *m.IsAdmin {
			admins = append(admins, m.DID)
		}
	}
	slices.Sort(admins)
	return admins
}
