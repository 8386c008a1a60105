package scenario

import (
	"context"
	"errors"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// invite makes a convo at the person's own service, or adds members to a convo at its service.
// Sometimes the person who is invited to a new convo blocks the inviter between the claim and the
// Welcome.
func (n *network) invite(ctx context.Context, p *resident) {
	at, convo, ok := p.Phone, "", p.made < networkConvos && n.there(ctx, p.home)
	var members []string
	if !ok || p.rng.IntN(2) == 0 {
		if at, convo, ok = n.pick(ctx, p); !ok {
			return
		}
		members = Must(at.Group(convo)).Members()
	}
	service := slices.Index(p.at, at)
	var packages []mlsapi.KeyPackageRef
	for range 1 + p.rng.IntN(3) {
		q := n.people[p.rng.IntN(len(n.people))]
		n.mu.Lock()
		blocks := n.pairs[[2]syntax.DID{q.Account.DID, p.Account.DID}]
		n.mu.Unlock()
		if q != p && !blocks && !slices.Contains(members, q.Account.DID.String()) && len(members) < networkMembers {
			members = append(members, q.Account.DID.String())
			packages = append(packages, n.claim(ctx, p, q, service)...)
		}
	}
	if len(packages) == 0 {
		return
	}
	if len(packages) == 1 && convo == "" && p.rng.IntN(4) == 0 {
		n.block(ctx, p, packages[0], service)
	}
	n.mu.Lock()
	for _, k := range packages {
		pair := [2]syntax.DID{p.Account.DID, k.DID}
		if _, known := n.pairs[pair]; !known {
			n.pairs[pair] = false
		}
	}
	n.mu.Unlock()
	convo, epoch, err := n.welcome(ctx, p, at, convo, packages)
	if name := xrpc.ErrorName(err); name == mlsapi.ErrAlreadyMember || err == nil && epoch == 0 {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.late++ // two members have added the same person at once
		return
	}
	Check(err)
	n.record(convo, service, epoch, p, packages)
}

// claim claims a KeyPackage of q at q's home, with a receipt. A person whom q has blocked there
// gets none.
func (n *network) claim(ctx context.Context, p, q *resident, asked int) []mlsapi.KeyPackageRef {
	home := Must(p.at[asked].Home(ctx, q.Account.DID))
	if home != n.services[q.home].DID {
		Fail("the home of %s is said to be %s", q.Name, home)
	}
	if !n.there(ctx, q.home) {
		return nil
	}
	packages := Must(p.at[q.home].ClaimAbroad(ctx, []syntax.DID{q.Account.DID}))
	n.mu.Lock()
	defer n.mu.Unlock()
	switch blocked := n.pairs[[2]syntax.DID{p.Account.DID, q.Account.DID}]; {
	case blocked && len(packages) > 0:
		n.w.Broken("%s has blocked %s at home, which gets a KeyPackage", q.Name, p.Name)
		return nil
	case blocked:
		n.held++
	}
	n.claims += len(packages)
	return packages
}

// block makes the owner of a claimed KeyPackage block p at home. The owner is of another service,
// and p has never invited the owner. After the block, p gets no KeyPackage.
func (n *network) block(ctx context.Context, p *resident, k mlsapi.KeyPackageRef, service int) {
	q := n.person(k.DID)
	pair := [2]syntax.DID{p.Account.DID, k.DID}
	n.mu.Lock()
	_, known := n.pairs[pair]
	n.mu.Unlock()
	if known || q.home == service || !n.there(ctx, q.home) {
		return
	}
	Must(n.services[q.home].Net.Do(ctx, q.Account, xrpc.BlockCall(p.Account.DID, xrpc.NewKey())))
	n.mu.Lock()
	n.pairs[pair] = true
	n.mu.Unlock()
	n.claim(ctx, p, q, service)
}

func (n *network) person(did syntax.DID) *resident {
	i := slices.IndexFunc(n.people, func(p *resident) bool { return p.Account.DID == did })
	return n.people[i]
}

// welcome makes a convo of the KeyPackages' owners, or adds them to a convo. It returns the epoch
// that the Welcome leads into, or 0 if another member has already added one of the owners.
func (n *network) welcome(ctx context.Context, p *resident, at *client.Phone, convo string,
	packages []mlsapi.KeyPackageRef) (_ string, epoch int64, err error) {
	defer Catch(&err)
	var dids []syntax.DID
	var messages [][]byte
	var receipts []string
	for _, k := range packages {
		dids, messages, receipts = append(dids, k.DID), append(messages, k.KeyPackage), append(receipts, *k.Receipt)
	}
	if convo != "" {
		err := at.Commit(ctx, convo, func() (_ *client.Draft, err error) {
			defer Catch(&err)
			inside := Must(at.Group(convo)).Members()
			if slices.ContainsFunc(dids, func(did syntax.DID) bool { return slices.Contains(inside, did.String()) }) {
				epoch = 0
				return nil, nil
			}
			d, err := at.DraftAdd(convo, dids, messages, receipts...)
			if err == nil {
				epoch = int64(d.Epoch)
			}
			return d, err
		})
		return convo, epoch, err
	}
	p.made++
	d := Must(at.DraftCreate(dids, messages, receipts...))
	if p.rng.IntN(5) == 0 { // the app is killed with the draft in its outbox
		p.Kill()
		Check(p.Launch())
	}
	answer := Must(at.Deliver(ctx, d))
	return Must(xrpc.Decode[mlsapi.CreateConvoOutput](answer.Body)).ID, int64(d.Epoch), nil
}

// record records who was welcomed, and the events that everybody must get.
func (n *network) record(convo string, service int, epoch int64, by *resident, packages []mlsapi.KeyPackageRef) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.where[convo] = service
	for _, k := range packages {
		q := n.person(k.DID)
		n.services[service].Model.History.Welcomed(k.DID, convo, *k.DeviceID, epoch)
		if q.home == service {
			continue
		}
		blocked := n.pairs[[2]syntax.DID{by.Account.DID, k.DID}]
		n.invited = append(n.invited, invited{q, *k.KeyPackageRef, service, convo, blocked})
		if !blocked {
			n.services[q.home].Model.History.Invited(k.DID, convo, *k.DeviceID, epoch)
		}
	}
}

// answer answers the oldest Welcome or invitation that the person has heard of. If a service that
// takes part does not answer, the person waits.
func (n *network) answer(ctx context.Context, p *resident) {
	p.mu.Lock()
	if len(p.heard) == 0 {
		p.mu.Unlock()
		return
	}
	h := p.heard[0]
	p.heard = p.heard[1:]
	p.mu.Unlock()
	service := n.serviceOf(h.Convo)
	known := service >= 0 && n.services[service].Model.Live(h.Convo, p.Account.DID) // by who sends to the convo
	if !known || !n.there(ctx, service) || !n.there(ctx, p.home) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.heard = append(p.heard, h)
		return
	}
	if h.Kind == xrpc.EventInvitation {
		of, call := syntax.DID(h.DID), xrpc.AcceptInvitationCall
		if of != n.services[service].DID {
			Fail("an invitation to %s says that it is at %s", h.Convo, of)
		}
		if p.declined[h.Convo] = p.rng.IntN(8) == 0; p.declined[h.Convo] {
			call = xrpc.DeclineInvitationCall
		}
		Must(n.services[p.home].Net.Do(ctx, p.Account, call(of, h.Convo, xrpc.NewKey())))
		if p.declined[h.Convo] {
			return
		}
	}
	at := p.at[service]
	Must(at.Net.Do(ctx, p.Account, xrpc.AcceptCall(h.Convo, xrpc.NewKey())))
	err := at.Join(ctx, h.Convo)
	if errors.Is(err, client.ErrWelcomeLost) {
		err = at.Rejoin(ctx, h.Convo)
	}
	Check(err)
}
