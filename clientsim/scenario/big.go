package scenario

import (
	"context"
	"fmt"
	"time"

	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/internal/errs"
)

const (
	// batchSize is how many accounts one addMembers takes.
	batchSize = 50
	// atOnceLimit is how many phones of a big group are active at a time.
	atOnceLimit = 16
)

// bigGroup is a big group while it grows and afterwards.
type bigGroup struct {
	w       *testbed.World
	convo   string
	people  []*client.Phone // one phone of each person
	tablets []*client.Phone // second devices of some people
	inside  []*client.Phone // every device that has joined
}

// BigGroup adds many people to one group, in batches. Some people have several devices. Members of
// every batch add the next batch, write, commit, leave, and come back after a loss. In the end, all
// members are in the same epoch.
func BigGroup(ctx context.Context, w *testbed.World) {
	c := &bigGroup{w: w}
	start := time.Now()
	c.makePhones(ctx, max(w.Members, 12))
	gathered := time.Now()
	c.addInBatches(ctx)
	w.Note("%d members with %d devices: published in %s, all in one group after another %s",
		len(c.people), len(c.inside), gathered.Sub(start).Round(time.Millisecond),
		time.Since(gathered).Round(time.Millisecond))
	c.checkAllRead(ctx)
}

// makePhones makes the phones. Every fifth person has a second device.
func (c *bigGroup) makePhones(ctx context.Context, n int) {
	for i := range n {
		p := Must(c.w.Phone(fmt.Sprintf("member-%d", i)))
		c.people = append(c.people, p)
		if i%5 == 4 {
			c.tablets = append(c.tablets, Must(c.w.SecondDevice(p, fmt.Sprintf("tablet-%d", i))))
		}
	}
	all := append(c.people, c.tablets...)
	Each(atOnceLimit, len(all), func(i int) { Check(all[i].Publish(ctx, 1)) })
}

// addInBatches makes the group and adds one batch after the other.
func (c *bigGroup) addInBatches(ctx context.Context) {
	for from := 1; from < len(c.people); from += batchSize {
		batch := c.people[from:min(from+batchSize, len(c.people))]
		if from == 1 {
			c.convo = Must(c.people[0].Create(ctx, testbed.DIDs(batch)...))
			c.inside = append(c.inside, c.people[0])
		} else {
			adder := c.inside[c.w.RNG.IntN(len(c.inside))]
			Check(errs.Wrap(adder.Add(ctx, c.convo, testbed.DIDs(batch)...), "batch from %d", from))
		}
		joiners := append([]*client.Phone{}, batch...)
		for _, tablet := range c.tablets {
			for _, p := range batch {
				if p.Account == tablet.Account {
					joiners = append(joiners, tablet)
				}
			}
		}
		Each(atOnceLimit, len(joiners), func(i int) { Check(joiners[i].Join(ctx, c.convo)) })
		c.inside = append(c.inside, joiners...)
		c.w.Progress(fmt.Sprintf("%d devices inside", len(c.inside)))
	}
}

// checkAllRead makes some members write, commit, leave and rejoin. Then all members must have read
// everything.
func (c *bigGroup) checkAllRead(ctx context.Context) {
	for i := range 5 {
		p := c.inside[c.w.RNG.IntN(len(c.inside))]
		Check(p.Sync(ctx, c.convo))
		Check(p.Send(ctx, c.convo, fmt.Sprintf("one of many, %d", i)))
	}
	last := len(c.people) - 1
	Check(c.people[last].Leave(ctx, c.convo))
	Check(c.inside[c.w.RNG.IntN(last)].CommitRemovals(ctx, c.convo))
	lost := c.people[1+c.w.RNG.IntN(last-1)]
	Check(lost.LoseState(false))
	Check(lost.Rejoin(ctx, c.convo))
	made := time.Now()
	Check(c.people[0].Rotate(ctx, c.convo))
	read := time.Now()
	members := []*client.Phone{}
	for _, p := range c.inside {
		if c.w.Model.Live(c.convo, p.Account.DID) {
			members = append(members, p)
		}
	}
	Each(atOnceLimit, len(members), func(i int) { Check(members[i].Sync(ctx, c.convo)) })
	c.w.Note("the last commit was made and read by its maker in %s, and it and what came before it by the other %d in %s",
		read.Sub(made).Round(time.Millisecond), len(members)-1, time.Since(read).Round(time.Millisecond))
}
