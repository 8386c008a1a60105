package scenario

import (
	"context"
	"fmt"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

const (
	spammed       = 12 // people, if --members says no more
	spammedAtOnce = 98 // people in one convo of the spammer's, besides itself and a friend
	spamMessages  = 3  // in each convo
)

// victim is a person whom the spammer invites.
type victim struct {
	*client.Phone
	at    *client.PushTarget
	convo string
}

// acquaint makes two people share a convo that both have accepted.
func acquaint(ctx context.Context, a, b *client.Phone) error {
	if err := b.Publish(ctx, 1); err != nil {
		return err
	}
	convo, err := a.Create(ctx, b.Account.DID)
	if err != nil {
		return err
	}
	return b.Join(ctx, convo)
}

// Spammer invites many strangers and writes to them. Each of them has a request, listed apart, and
// gets no push. A friend in the same convos is pushed. Who accepts is pushed from then on. Who has
// blocked the spammer, or lets nobody invite it, has no KeyPackages for the spammer.
func Spammer(ctx context.Context, w *testbed.World) error {
	return w.WithReceiver(ctx, func(r *client.Receiver) error { return spam(ctx, w, r) })
}

func spam(ctx context.Context, w *testbed.World, r *client.Receiver) error {
	phones, err := w.Phones(ctx, 2)
	if err != nil {
		return err
	}
	spammer, friend := phones[0], phones[1]
	if err := acquaint(ctx, spammer, friend); err != nil {
		return err
	}
	witness, err := friend.RegisterAt(ctx, r)
	if err != nil {
		return err
	}
	if err := shutOut(ctx, w, spammer); err != nil {
		return err
	}
	var people []victim
	for range max(w.Members, spammed) {
		p, err := w.Phone(fmt.Sprintf("spammed-%d", len(people)))
		if err != nil {
			return err
		}
		if err := p.Publish(ctx, 1); err != nil {
			return err
		}
		at, err := p.RegisterAt(ctx, r)
		if err != nil {
			return err
		}
		people = append(people, victim{Phone: p, at: at})
	}
	if err := inviteAll(ctx, w, spammer, friend, witness, people); err != nil {
		return err
	}
	for _, v := range people {
		if err := isRequest(ctx, w, v); err != nil {
			return err
		}
	}
	pushes := 0
	for _, v := range people {
		pushes += len(v.at.Pushes())
	}
	if pushes > 0 {
		w.Broken("%d pushes for requests", pushes)
	}
	return answers(ctx, w, spammer, friend, witness, people)
}

// shutOut checks that somebody who has blocked the spammer and somebody who lets nobody invite it
// look like somebody without KeyPackages.
func shutOut(ctx context.Context, w *testbed.World, spammer *client.Phone) error {
	phones, err := w.Phones(ctx, 2)
	if err != nil {
		return err
	}
	if _, err := w.Net.Do(ctx, phones[0].Account, xrpc.BlockCall(spammer.Account.DID, xrpc.NewKey())); err != nil {
		return err
	}
	if _, err := w.Net.Do(ctx, phones[1].Account, xrpc.SetPolicyCall(mlsapi.SetInvitationPolicyInputPolicyNobody, xrpc.NewKey())); err != nil {
		return err
	}
	for _, p := range phones {
		out, err := take(ctx, w, spammer, p)
		if err != nil {
			return err
		}
		served(w, p.Name+", who refuses the spammer", p, out, 0, 0, true, false)
	}
	return nil
}

// inviteAll makes convos of the friend and up to spammedAtOnce victims, and writes into them. It
// says what that took.
func inviteAll(
	ctx context.Context, w *testbed.World, spammer, friend *client.Phone, witness *client.PushTarget, people []victim,
) error {
	began, convos := time.Now(), 0
	for first := 0; first < len(people); first += spammedAtOnce {
		group := people[first:min(first+spammedAtOnce, len(people))]
		invited := []*client.Phone{friend}
		for _, v := range group {
			invited = append(invited, v.Phone)
		}
		if err := friend.Publish(ctx, 1); err != nil {
			return err
		}
		convo, err := spammer.Create(ctx, testbed.DIDs(invited)...)
		if err != nil {
			return err
		}
		if err := friend.Join(ctx, convo); err != nil {
			return err
		}
		for i := range group {
			group[i].convo = convo
		}
		for i := range spamMessages {
			seen, text := len(witness.Pushes()), fmt.Sprintf("buy, %d of %d", i, convos)
			if err := spammer.Send(ctx, convo, text); err != nil {
				return err
			}
			if err := w.FetchesWhenPushed(ctx, friend, witness, convo, text, seen); err != nil {
				return err
			}
		}
		convos++
	}
	w.Note("%d people invited into %d convos, with %d messages each, in %s", len(people), convos, spamMessages, time.Since(began).Round(time.Millisecond))
	return nil
}

// isRequest checks what a victim sees of the convo.
func isRequest(ctx context.Context, w *testbed.World, v victim) error {
	for _, requests := range []bool{true, false} {
		answer, err := w.Net.Do(ctx, v.Account, xrpc.RequestsCall(requests, 10))
		if err != nil {
			return err
		}
		page, err := xrpc.Decode[mlsapi.GetConvosOutput](answer.Body)
		if err != nil {
			return err
		}
		listed := len(page.Conversations) == 1 && page.Conversations[0].ID == v.convo && page.Conversations[0].Request != nil
		if listed != requests || len(page.Conversations) > 1 {
			w.Broken("%s: getConvos with requests=%t lists %d convos; the request is there: %t", v.Name, requests, len(page.Conversations), listed)
		}
	}
	return nil
}

// answers lets the victims answer: one writes, one accepts, and one leaves and blocks. The spammer
// writes again. Those who have accepted are pushed, and nobody else.
func answers(
	ctx context.Context, w *testbed.World, spammer, friend *client.Phone, witness *client.PushTarget, people []victim,
) error {
	writer, reader, leaver := people[0], people[1], people[2]
	if err := writer.Join(ctx, writer.convo); err != nil {
		return err
	}
	if err := writer.Send(ctx, writer.convo, "who are you?"); err != nil {
		return err
	}
	accept := xrpc.AcceptCall(reader.convo, xrpc.NewKey())
	for range 2 {
		if _, err := w.Net.Do(ctx, reader.Account, accept); err != nil {
			return err
		}
	}
	blocked, err := leaver.Decline(ctx, leaver.convo)
	if err != nil {
		return err
	}
	if blocked != spammer.Account.DID {
		w.Broken("%s leaves and blocks %s", leaver.Name, blocked)
	}
	if err := leaver.Publish(ctx, 1); err != nil {
		return err
	}
	out, err := take(ctx, w, spammer, leaver.Phone)
	if err != nil {
		return err
	}
	served(w, "after a block", leaver.Phone, out, 0, 0, true, false)
	if err := spammer.Sync(ctx, writer.convo); err != nil {
		return err
	}
	seen, text := len(witness.Pushes()), "buy after all"
	if err := spammer.Send(ctx, writer.convo, text); err != nil {
		return err
	}
	if err := w.FetchesWhenPushed(ctx, friend, witness, writer.convo, text, seen); err != nil {
		return err
	}
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
	return nil
}
