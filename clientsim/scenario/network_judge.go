package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// lastEventTimeout is how long the last event may take.
const lastEventTimeout = time.Minute

// finish waits, after the last fault, until everything has arrived and everybody has answered.
func (n *network) finish(ctx context.Context) {
	start := time.Now()
	for _, s := range n.services {
		Check(s.Server.EndLeases(ctx))
	}
	err := xrpc.Until(ctx, networkDrain, func() (_ bool, err error) {
		defer Catch(&err)
		var missing int64
		refused := false // for a budget: those who invite many wait for another day
		for i, s := range n.services {
			missing += n.streams[i].Missing(s.Model.History)
			for _, sent := range Must(s.Sent(ctx)) {
				if sent.State != "done" && !strings.HasPrefix(sent.State, "dead") {
					missing++
				}
				refused = refused || strings.Contains(sent.State, ": status 429 ")
			}
		}
		for _, s := range n.services {
			if refused {
				Check(s.Server.NextDay(ctx))
			}
		}
		return missing == 0, nil
	})
	limit := lastEventTimeout
	if err != nil {
		n.w.Broken("not everything has arrived: %v", err)
		limit = time.Second // the rest will not arrive
	}
	n.w.Note("the last invitation arrived %s after the last fault", time.Since(start).Round(time.Millisecond))
	for _, p := range n.people {
		for range len(p.heard) {
			n.answer(ctx, p)
		}
		for _, h := range p.heard {
			n.w.Broken("%s has heard of %s, which nobody has made, or whose service does not answer", p.Name, h.Convo)
		}
	}
	for i, s := range n.services {
		Check(s.AwaitAndJudge(ctx, n.streams[i], s.Model.History, limit))
	}
}

// invitationRows are the stored or shown states of invitations, by person and KeyPackageRef.
type invitationRows map[string][]string

func invitationKey(did syntax.DID, ref string) string { return did.String() + " " + ref }

func (r invitationRows) add(did syntax.DID, ref, format string, args ...any) {
	key := invitationKey(did, ref)
	r[key] = append(r[key], fmt.Sprintf(format, args...))
}

// judge compares all invitations with what was acknowledged.
func (n *network) judge(ctx context.Context) {
	sent, received, listed := invitationRows{}, invitationRows{}, invitationRows{}
	n.collect(ctx, sent, received, listed)
	hidden, joined, declined := 0, 0, 0
	for _, i := range n.invited {
		key, from := invitationKey(i.who.Account.DID, i.ref), n.services[i.at].DID
		n.same("sent_invitations", key, sent, fmt.Sprintf("%s of %s to %s, done", i.convo, from, n.services[i.who.home].DID))
		state := "shown, consumed"
		if i.blocked {
			state = "hidden, consumed"
		}
		n.same("received_invitations", key, received, fmt.Sprintf("%s of %s, %s", i.convo, from, state))
		_, inside := i.who.Threads[i.convo]
		switch {
		case i.blocked:
			hidden++
			n.same("getInvitations", key, listed)
			if inside {
				n.w.Broken("%s is in %s, whose maker it has blocked", i.who.Name, i.convo)
			}
			continue
		case i.who.declined[i.convo]:
			declined++
		case inside:
			joined++
		default:
			n.w.Report(history.Violation{Kind: history.Lost, Convo: i.convo, Who: i.who.Name, What: "never joined"})
		}
		n.same("getInvitations", key, listed, fmt.Sprintf("%s of %s", i.convo, from))
	}
	for _, rows := range []invitationRows{sent, received, listed} {
		for key, what := range rows {
			n.w.Report(history.Violation{Kind: history.Duplicated, What: fmt.Sprintf("nobody made %s: %s", key, what)})
		}
	}
	n.w.Note("%d people, %d convos; %d claims, %d more that a block at home refused; %d invitations: %d joined, "+
		"%d declined, %d hidden; %d people were added by two at once; %d kills",
		len(n.people), len(n.where), n.claims, n.held, len(n.invited), joined, declined, hidden, n.late, n.kills)
}

// collect reads the rows of the services that sent and received invitations, and the lists that
// people are shown.
func (n *network) collect(ctx context.Context, sent, received, listed invitationRows) {
	for _, s := range n.services {
		for _, i := range Must(s.Sent(ctx)) {
			sent.add(i.DID, i.Ref, "%s of %s to %s, %s", i.ConvoID, s.DID, i.Other, i.State)
		}
		for _, i := range Must(s.Received(ctx)) {
			received.add(i.DID, i.Ref, "%s of %s, %s", i.ConvoID, i.Other, i.State)
		}
	}
	for _, p := range n.people {
		for _, i := range Must(p.Invitations(ctx)) {
			listed.add(p.Account.DID, i.KeyPackageRef, "%s of %s", i.ConvoID, i.Service)
		}
	}
}

// same takes a row out of rows, and reports the row unless it is there once and as wanted.
func (n *network) same(where, key string, rows invitationRows, want ...string) {
	got := rows[key]
	delete(rows, key)
	kind := history.Broken
	switch {
	case slices.Equal(got, want):
		return
	case len(got) < len(want):
		kind = history.Lost
	case len(got) > len(want):
		kind = history.Duplicated
	}
	n.w.Report(history.Violation{Kind: kind, What: fmt.Sprintf("%s of %s: %q, want %q", where, key, got, want)})
}
