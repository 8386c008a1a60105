package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/xrpc"
)

const (
	signalEvery  = 100 * time.Millisecond // between two signals: as many as a convo may have
	signalBytes  = 200                    // of what a signal says
	signallers   = 50                     // members who signal by turns
	lastSignals  = 500 * time.Millisecond // that the last ones may take
	quietSends   = 50                     // sends a second beside the signals that are measured alone
	signalFrames = "#typingEvent"
)

// What a signal counts as: its request, if the server passed it on or dropped it, and its arrival at
// each member.
const (
	signalCarried = "sendSignal"
	signalDropped = "sendSignal, dropped"
	signalHeard   = "signal"
)

// signalling are members who signal, and the streams of all members.
type signalling struct {
	b       *bench
	convo   *convo
	streams *streams
	tokens  []*tokens // of the members who signal
	from    *worker
	turn    int
}

// measureSignals measures signals in a convo all of whose members are connected: by turns as many
// sends as possible with and without them, and then signals with few sends. The streams are open all
// the time.
func measureSignals(ctx context.Context, b *bench) error {
	s, err := b.stormConvos(ctx)
	if err != nil {
		return err
	}
	members, err := b.env.accounts(b.c.Subscribers)
	if err != nil {
		return err
	}
	b.say("making a convo of %d members", len(members))
	g := &signalling{b: b, from: newWorker(b, 0)}
	defer g.from.close()
	if g.convo, err = b.env.newConvo(ctx, -1, members, len(members)); err != nil {
		return err
	}
	// Events of a request are marked, and the server looks again and again whether it is one.
	err = eachOf(setupLanes, len(members), func(i int) error {
		_, err := b.env.call(ctx, members[i], mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: g.convo.id})
		return err
	})
	if err != nil {
		return err
	}
	for _, m := range members[:min(len(members), signallers)] {
		t := &tokens{account: m, audience: b.env.audience, method: syntax.NSID(mlsapi.NSIDSendSignal)}
		if err := t.sign(2*b.c.Turns*int(b.c.For/signalEvery)/signallers + 1); err != nil {
			return err
		}
		g.tokens = append(g.tokens, t)
	}
	if g.streams, err = b.subscribe(ctx, members, len(members)); err != nil {
		return err
	}
	defer g.streams.close()
	b.note("%d signals a second of %d bytes, each to %d members on WebSockets; an arrival counts from the request's beginning",
		int(time.Second/signalEvery), signalBytes, len(members))
	const alone, without, with = "signals, few sends", "sends", "sends and signals"
	err = b.turns(ctx,
		phase{variant: without, convos: s, subscribers: len(members)},
		phase{variant: with, convos: s, subscribers: len(members), storm: g.storm})
	if err != nil {
		return err
	}
	return b.turns(ctx, phase{variant: alone, convos: s, rate: quietSends, subscribers: len(members), storm: g.storm})
}

// storm sends signals for as long as a phase lasts.
func (g *signalling) storm(ctx context.Context, count *counter) error {
	g.streams.heard.Store(count)
	defer g.streams.heard.Store(nil)
	tick := time.NewTicker(signalEvery)
	defer tick.Stop()
	for end := time.Now().Add(g.b.c.For - lastSignals); time.Now().Before(end); {
		if err := g.signal(ctx, count); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	xrpc.Sleep(ctx, lastSignals)
	return nil
}

// signal sends one signal. Its last bytes say when.
func (g *signalling) signal(ctx context.Context, count *counter) error {
	payload, began := mlsclient.FakeMessage(g.convo.group, g.convo.epoch, signalBytes), time.Now()
	binary.BigEndian.PutUint64(payload[len(payload)-8:], uint64(began.UnixNano()))
	in := mlsapi.SendSignalInput{ConvoID: g.convo.id, Payload: payload}
	body := xrpc.Encode(in)
	g.turn++
	token, err := g.tokens[g.turn%len(g.tokens)].take()
	if err != nil {
		return err
	}
	g.from.head(http.MethodPost, mlsapi.NSIDSendSignal, "", token)
	g.from.length(len(body))
	g.from.bytes = append(g.from.bytes, body...)
	a, err := g.from.wire.do(ctx, g.from.bytes)
	if err != nil {
		return fmt.Errorf("sendSignal: %w", err)
	}
	if a.status != http.StatusOK {
		return fmt.Errorf("sendSignal: %d %s", a.status, a.body)
	}
	out, err := xrpc.Decode[mlsapi.SendSignalOutput](a.body)
	if err != nil {
		return fmt.Errorf("sendSignal: %w", err)
	}
	if out.Carried {
		count.add(signalCarried, time.Since(began), "")
	} else {
		count.add(signalDropped, time.Since(began), "")
	}
	return nil
}

// hears reports whether a frame is a signal, and counts its age. The payload is the last field of
// the frame: DAG-CBOR orders fields by their length.
func (s *streams) hears(frame []byte) bool {
	if !bytes.Contains(frame[:min(len(frame), 32)], []byte(signalFrames)) {
		return false
	}
	if count := s.heard.Load(); count != nil {
		sent := int64(binary.BigEndian.Uint64(frame[len(frame)-8:]))
		count.add(signalHeard, time.Duration(time.Now().UnixNano()-sent), "")
	}
	return true
}
