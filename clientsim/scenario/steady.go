package scenario

import (
	"context"
	"time"

	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/traffic"
	"mlsd/clientsim/xrpc"
)

// Steady is the load of Live for a run that watches the servers. It writes at World.Rate for
// World.For, and kills nothing.
type Steady struct {
	// Change is the average time between two changes of rosters or epochs.
	Change time.Duration
	// ConnectionLife is the approximate time that most subscribers keep a connection. Every fourth
	// subscriber keeps its connection for ever.
	ConnectionLife time.Duration
	// OnEvent gets the age of each event that comes over an open connection.
	OnEvent func(age time.Duration)
}

// Play writes until World.For is over or stop ends. Then it waits until every subscriber has all
// events, and reports missing and wrong events.
func (o Steady) Play(ctx, stop context.Context, w *testbed.World, f *testbed.Cluster) error {
	b := newLiveRun(ctx, w, f, traffic.Options{MaxConvos: orDefault(w.Convos, liveConvos), Listen: o.connect})
	b.pause = o.Change
	b.disturb = func(_, writing context.Context, _ time.Duration) {
		select {
		case <-writing.Done():
		case <-stop.Done():
			b.stopWriting()
		}
	}
	return Attempt(func() { b.playAndStop(ctx) })
}

// pausesFor is how long some subscribers stop reading, now and then.
const pausesFor = 2 * time.Second

// connect says how the i-th subscriber keeps its connections. Of eight subscribers, two keep their
// connection for ever, two read server-sent events, and one pauses.
func (o Steady) connect(i int, s *client.Subscriber) {
	s.ServerSent = i%8 == 2 || i%8 == 4
	s.ConnectionLife = o.ConnectionLife
	if i%4 == 0 {
		s.ConnectionLife = 0
	}
	s.Pause = 0
	if i%8 == 3 {
		s.Pause, s.OnEvent = pausesFor, nil
		return
	}
	s.OnEvent = func(h *xrpc.Event, at time.Time, live bool) {
		if live {
			o.OnEvent(at.Sub(h.At))
		}
	}
}
