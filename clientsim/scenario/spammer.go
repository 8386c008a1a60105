package scenario

import (
	"context"
	"fmt"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

const (
	spammed       = 12 // number of people, if --members says no more
	spammedAtOnce = 98 // people in one convo of the spammer's, besides itself and a friend
	spamMessages  = 3  // messages in each convo
)

// victim is a person whom the spammer invites.
type victim struct {
	*client.Phone
	at    *client.PushTarget
	convo string
}

// acquaint makes two people share a convo that both have accepted.
func acquaint(ctx context.Context, a, b *client.Phone) {
	Check(b.Publish(ctx, 1))
	convo := Must(a.Create(ctx, b.Account.DID))
	Check(b.Join(ctx, convo))
}

// Spammer invites many people who share no convo with it, and writes to them. Each of these people
// has a request, which is listed apart, and gets no push. A friend in the same convos gets pushes.
// A person who accepts gets pushes from then on. A person who has blocked the spammer, or lets
// nobody invite them, has no KeyPackages for the spammer.
func Spammer(ctx context.Context, w *testbed.World) {
	w.WithReceiver(ctx, func(r *client.Receiver) { spam(ctx, w, r) })
}

func spam(ctx context.Context, w *testbed.World, r *client.Receiver) {
	phones := Must(w.Phones(ctx, 2))
	spammer, friend := phones[0], phones[1]
	acquaint(ctx, spammer, friend)
	witness := Must(friend.RegisterAt(ctx, r))
	shutOut(ctx, w, spammer)
	var people []victim
	for range max(w.Members, spammed) {
		p := Must(w.Phone(fmt.Sprintf("spammed-%d", len(people))))
		Check(p.Publish(ctx, 1))
		at := Must(p.RegisterAt(ctx, r))
		people = append(people, victim{Phone: p, at: at})
	}
	inviteAll(ctx, w, spammer, friend, witness, people)
	for _, v := range people {
		isRequest(ctx, w, v)
	}
	pushes := 0
	for _, v := range people {
		pushes += len(v.at.Pushes())
	}
	if pushes > 0 {
		w.Broken("%d pushes for requests", pushes)
	}
	answers(ctx, w, spammer, friend, witness, people)
}

// shutOut checks two people: one has blocked the spammer, and one lets nobody invite them. To the
// spammer, both must look like people without KeyPackages.
func shutOut(ctx context.Context, w *testbed.World, spammer *client.Phone) {
	phones := Must(w.Phones(ctx, 2))
	Must(w.Net.Do(ctx, phones[0].Account, xrpc.BlockCall(spammer.Account.DID, xrpc.NewKey())))
	Must(w.Net.Do(ctx, phones[1].Account, xrpc.SetPolicyCall(mlsapi.SetInvitationPolicyInputPolicyNobody, xrpc.NewKey())))
	for _, p := range phones {
		out := take(ctx, w, spammer, p)
		served(w, p.Name+", who refuses the spammer", p, out, 0, 0, true, false)
	}
}

// inviteAll makes convos of the friend and up to spammedAtOnce victims, and writes into the convos.
// It notes how long that took.
func inviteAll(
	ctx context.Context, w *testbed.World, spammer, friend *client.Phone, witness *client.PushTarget, people []victim,
) {
	began, convos := time.Now(), 0
	for first := 0; first < len(people); first += spammedAtOnce {
		group := people[first:min(first+spammedAtOnce, len(people))]
		invited := []*client.Phone{friend}
		for _, v := range group {
			invited = append(invited, v.Phone)
		}
		Check(friend.Publish(ctx, 1))
		convo := Must(spammer.Create(ctx, testbed.DIDs(invited)...))
		Check(friend.Join(ctx, convo))
		for i := range group {
			group[i].convo = convo
		}
		for i := range spamMessages {
			seen, text := len(witness.Pushes()), fmt.Sprintf("buy, %d of %d", i, convos)
			Check(spammer.Send(ctx, convo, text))
			Check(w.FetchesWhenPushed(ctx, friend, witness, convo, text, seen))
		}
		convos++
	}
	w.Note("%d people invited into %d convos, with %d messages each, in %s", len(people), convos, spamMessages,
		time.Since(began).Round(time.Millisecond))
}

// isRequest checks what a victim sees of the convo.
func isRequest(ctx context.Context, w *testbed.World, v victim) {
	for _, requests := range []bool{true, false} {
		page := Must(xrpc.Ask[mlsapi.GetConvosOutput](ctx, w.Net, v.Account, xrpc.RequestsCall(requests, 10)))
		listed := len(page.Conversations) == 1 && page.Conversations[0].ID == v.convo && page.Conversations[0].Request != nil
		if listed != requests || len(page.Conversations) > 1 {
			w.Broken("%s: getConvos with requests=%t lists %d convos; the request is there: %t", v.Name, requests,
				len(page.Conversations), listed)
		}
	}
}

// answers lets the victims answer: one writes, one accepts, and one leaves and blocks. The spammer
// writes again. The victims who have accepted get a push, and nobody else does.
func answers(
	ctx context.Context, w *testbed.World, spammer, friend *client.Phone, witness *client.PushTarget, people []victim,
) {
	writer, reader, leaver := people[0], people[1], people[2]
	Check(writer.Join(ctx, writer.convo))
	Check(writer.Send(ctx, writer.convo, "who are you?"))
	accept := xrpc.AcceptCall(reader.convo, xrpc.NewKey())
	for range 2 {
		Must(w.Net.Do(ctx, reader.Account, accept))
	}
	blocked := Must(leaver.Decline(ctx, leaver.convo))
	if blocked != spammer.Account.DID {
		w.Broken("%s leaves and blocks %s", leaver.Name, blocked)
	}
	Check(leaver.Publish(ctx, 1))
	out := take(ctx, w, spammer, leaver.Phone)
	served(w, "after a block", leaver.Phone, out, 0, 0, true, false)
	Check(spammer.Sync(ctx, writer.convo))
	seen, text := len(witness.Pushes()), "buy after all"
	Check(spammer.Send(ctx, writer.convo, text))
	Check(w.FetchesWhenPushed(ctx, friend, witness, writer.convo, text, seen))
	some := func(pushes []client.Push) bool { return len(pushes) > 0 }
	for _, v := range []victim{writer, reader} {
		if _, err := v.at.Await(ctx, some); err != nil {
			w.Broken("%s has accepted, and is not pushed: %v", v.Name, err)
		}
	}
	for _, v := range people[2:] {
		if n := len(v.at.Pushes()); n > 0 {
			w.Broken("%s has not accepted, and is pushed %d times", v.Name, n)
		}
	}
}
