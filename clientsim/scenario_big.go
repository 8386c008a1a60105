package clientsim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// batchSize is how many people one addMembers takes.
	batchSize = 50
	// atOnceLimit bounds how many phones of a big group are busy at a time.
	atOnceLimit = 16
)

// crowd is a big group while it grows and afterwards.
type crowd struct {
	w       *World
	convo   string
	people  []*Phone // one phone of each
	tablets []*Phone // second devices of some
	inside  []*Phone // every device that has joined
}

// BigGroup adds many people to one group, in batches, some of them with several
// devices. Members of every batch add the next one, write, commit, leave and
// come back after a loss; in the end all are in the same epoch.
func BigGroup(ctx context.Context, w *World) error {
	c := &crowd{w: w}
	start := time.Now()
	if err := c.gather(ctx, max(w.Members, 12)); err != nil {
		return err
	}
	gathered := time.Now()
	if err := c.grow(ctx); err != nil {
		return err
	}
	w.Note("%d members with %d devices: published in %s, all in one group after another %s",
		len(c.people), len(c.inside), gathered.Sub(start).Round(time.Millisecond), time.Since(gathered).Round(time.Millisecond))
	return c.live(ctx)
}

// gather makes the people; every fifth has a second device.
func (c *crowd) gather(ctx context.Context, n int) error {
	for i := range n {
		p, err := c.w.Phone(fmt.Sprintf("member-%d", i))
		if err != nil {
			return err
		}
		c.people = append(c.people, p)
		if i%5 == 4 {
			tablet, err := c.w.SecondDevice(p, fmt.Sprintf("tablet-%d", i))
			if err != nil {
				return err
			}
			c.tablets = append(c.tablets, tablet)
		}
	}
	return each(append(c.people, c.tablets...), func(p *Phone) error { return p.Publish(ctx, 1) })
}

// grow makes the group and adds one batch after the other.
func (c *crowd) grow(ctx context.Context) (err error) {
	for from := 1; from < len(c.people); from += batchSize {
		batch := c.people[from:min(from+batchSize, len(c.people))]
		if from == 1 {
			c.convo, err = c.people[0].Create(ctx, dids(batch)...)
			c.inside = append(c.inside, c.people[0])
		} else {
			adder := c.inside[c.w.rng.IntN(len(c.inside))]
			err = adder.Add(ctx, c.convo, dids(batch)...)
		}
		if err != nil {
			return fmt.Errorf("batch from %d: %w", from, err)
		}
		joiners := append([]*Phone{}, batch...)
		for _, tablet := range c.tablets {
			for _, p := range batch {
				if p.Account == tablet.Account {
					joiners = append(joiners, tablet)
				}
			}
		}
		if err := each(joiners, func(p *Phone) error { return p.Join(ctx, c.convo) }); err != nil {
			return err
		}
		c.inside = append(c.inside, joiners...)
		c.w.tell(fmt.Sprintf("%d devices inside", len(c.inside)))
	}
	return nil
}

// live has some of them do what members do.
func (c *crowd) live(ctx context.Context) error {
	for i := range 5 {
		p := c.inside[c.w.rng.IntN(len(c.inside))]
		if err := p.Sync(ctx, c.convo); err != nil {
			return err
		}
		if err := p.Send(ctx, c.convo, fmt.Sprintf("one of many, %d", i)); err != nil {
			return err
		}
	}
	last := len(c.people) - 1
	if err := c.people[last].Leave(ctx, c.convo); err != nil {
		return err
	}
	if err := c.inside[c.w.rng.IntN(last)].Tidy(ctx, c.convo); err != nil {
		return err
	}
	lost := c.people[1+c.w.rng.IntN(last-1)]
	if err := lost.Lose(false); err != nil {
		return err
	}
	if err := lost.Rejoin(ctx, c.convo); err != nil {
		return err
	}
	made := time.Now()
	if err := c.people[0].Rotate(ctx, c.convo); err != nil {
		return err
	}
	read := time.Now()
	members := []*Phone{}
	for _, p := range c.inside {
		if c.w.model.live(c.convo, p.Account.DID) {
			members = append(members, p)
		}
	}
	if err := each(members, func(p *Phone) error { return p.Sync(ctx, c.convo) }); err != nil {
		return err
	}
	c.w.Note("the last commit was made and read by its maker in %s, and it and what came before it by the other %d in %s",
		read.Sub(made).Round(time.Millisecond), len(members)-1, time.Since(read).Round(time.Millisecond))
	return nil
}

// each does the same on every phone, on several at a time.
func each(phones []*Phone, do func(*Phone) error) error {
	errs := make([]error, len(phones))
	room := make(chan struct{}, atOnceLimit)
	var all sync.WaitGroup
	for i, p := range phones {
		room <- struct{}{}
		all.Go(func() {
			errs[i] = do(p)
			<-room
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
