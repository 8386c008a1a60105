package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/load"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// The operations of a fan-out besides the sends: the age of an event at each subscriber, at the
// first subscriber that gets the event, and at the last.
const (
	opEvent = "event"
	opFirst = "event-at-first"
	opLast  = "event-at-last"
)

// bareWrites is the variant that only writes to connections.
const bareWrites = "kind=bare"

// fanout measures the cost of an event with many subscribers of three kinds: WebSockets,
// server-sent events, and bare writes of as many bytes to as many connections. Bare writes are the
// lowest possible cost.
func fanout(ctx context.Context, b *bench) {
	b.note("the age of an event counts from its createdAt, which has milliseconds; µs are those per event and " +
		"subscriber, with what the sends cost")
	b.note("bare writes: the processor time of the thread that writes, which has the kernel's work for the receiver in it")
	frame := 0 // size of an event, in bytes
	for turn := range b.c.Turns {
		for i, server := range b.c.servers() {
			for _, kind := range []string{webSockets, serverSent} {
				n := b.deliver(ctx, kind, phase{
					variant: join("kind="+kind, server), turn: turn, at: place{i, b.c.Servers, false}, rate: b.c.Rate,
					inFlight: b.c.InFlight,
				})
				if kind == webSockets {
					frame = n
				}
			}
		}
		Check(b.writeBare(ctx, turn, frame))
	}
}

// deliver measures one turn of one kind of streams, and returns the size of the last event, in
// bytes.
func (b *bench) deliver(ctx context.Context, kind string, p phase) int {
	b.use(ctx, p.at)
	p.audience = &audience{size: int64(b.c.Subscribers)}
	before := Must(b.env.Nodes[0].Memory(ctx))
	streams := b.subscribe(ctx, b.accounts(), b.c.Subscribers, kind, p.audience.arrived)
	defer streams.end()
	after := Must(b.env.Nodes[0].Memory(ctx))
	if p.turn == 0 {
		kib := func(a, b int64) float64 { return float64(a-b) / 1024 / float64(streams.atFirst()) }
		b.note("%s: an idle stream costs the first server %.1f KiB resident, %.1f of heap, %.1f of stacks", p.variant,
			kib(after.Resident, before.Resident), kib(after.Heap, before.Heap), kib(after.Stacks, before.Stacks))
	}
	b.run(ctx, p)
	Check(p.audience.await(ctx, b.acknowledged.Load()))
	streams.end()
	if broke := streams.ended(); broke > 0 {
		Fail("the server ended %d of %d streams", broke, b.c.Subscribers)
	}
	Check(p.audience.failure())
	return int(p.audience.bytes.Load())
}

// audience records when the events of a phase arrive. All subscribers get the same events in the
// same order, so the n-th event is the same for all of them.
type audience struct {
	size  int64
	win   atomic.Pointer[window]
	bytes atomic.Int64 // size of the last event

	mu     sync.Mutex // guards the fields below
	events []*arrivals
	failed error
}

// arrivals are the arrivals of one event.
type arrivals struct {
	decoded sync.Once
	created time.Time
	n       atomic.Int64
}

// arrived counts the n-th message of a stream; the first message is number 0. read decodes the
// message.
func (a *audience) arrived(n int64, wire []byte, read func([]byte) (xrpc.Event, error)) {
	now := time.Now()
	e := a.event(n)
	e.decoded.Do(func() {
		event, err := read(wire)
		if err != nil {
			a.fail(err)
		}
		e.created = event.At
		a.bytes.Store(int64(len(wire)))
	})
	k := e.n.Add(1)
	win := a.win.Load()
	if win == nil {
		return
	}
	count, age := win.count(now), now.Sub(e.created)
	if count == nil {
		return
	}
	count.Done(opEvent, age)
	if k == 1 {
		count.Done(opFirst, age)
	}
	if k == a.size {
		count.Done(opLast, age)
	}
}

func (a *audience) event(n int64) *arrivals {
	a.mu.Lock()
	defer a.mu.Unlock()
	for int64(len(a.events)) <= n {
		a.events = append(a.events, &arrivals{})
	}
	return a.events[n]
}

// await waits until each subscriber has the given number of messages.
func (a *audience) await(ctx context.Context, messages int64) (err error) {
	defer Catch(&err)
	Check(errs.Wrap(xrpc.Until(ctx, xrpc.CallTimeout, func() (bool, error) {
		return messages == 0 || a.event(messages-1).n.Load() == a.size, nil
	}), "a subscriber misses events"))
	return nil
}

func (a *audience) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = errors.Join(a.failed, err)
}

func (a *audience) failure() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// listen opens a stream of server-sent events, and reads it until listening ends or the server ends
// the stream.
func (s *streams) listen(listening context.Context, one *stream) (err error) {
	defer Catch(&err)
	req := Must(http.NewRequestWithContext(listening, http.MethodGet, one.base+"/xrpc/"+mlsapi.NSIDStreamConvoEvents, nil))
	req.Header.Set("Authorization", "Bearer "+one.token)
	resp, err := one.web.Do(req)
	Check(errs.Wrap(err, "listen"))
	if resp.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("listen: %s", resp.Status), resp.Body.Close())
	}
	s.done.Go(func() {
		defer func() { _ = resp.Body.Close() }() // tells the server that the subscriber is gone
		lines, n := bufio.NewReaderSize(resp.Body, 8<<10), int64(0)
		var id, event string
		read := func(data []byte) (xrpc.Event, error) { return xrpc.ReadServerSent(id, event, data) }
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				break
			}
			switch name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(": ")); string(name) {
			case "id":
				id = string(value)
			case "event":
				event = string(value)
			case "data":
				s.events.Add(1)
				if event == messageEvent {
					s.arrived(n, value, read)
					n++
				}
			}
		}
		if listening.Err() == nil {
			one.broke.Add(1)
		}
	})
	return nil
}

// maxBare is the largest number of connections for bare writes. This process holds both ends of
// each connection, and the number of its open files is limited.
const maxBare = 4000

// writeBare measures bare writes for one turn. It measures the processor time of the writing
// thread.
func (b *bench) writeBare(ctx context.Context, turn, frame int) (err error) {
	defer Catch(&err)
	listener := Must(net.Listen("tcp", "127.0.0.1:0"))
	var readers sync.WaitGroup
	defer readers.Wait()
	defer func() { _ = listener.Close() }()
	conns := make([]net.Conn, min(b.c.Subscribers, maxBare))
	for i := range conns {
		reads := Must(net.Dial("tcp", listener.Addr().String()))
		readers.Go(func() {
			_, _ = io.Copy(io.Discard, struct{ io.Reader }{reads}) // until the other end is closed
			_ = reads.Close()
		})
		conns[i] = Must(listener.Accept())
		defer func() { _ = conns[i].Close() }()
	}
	payload, count := make([]byte, frame), load.NewCounter()
	began := time.Now()
	writing, stop := context.WithTimeout(ctx, b.c.For)
	defer stop()
	var spent time.Duration
	var failed error
	drive := load.Driver{Rate: b.c.Rate, Lanes: 1, Exact: true}
	drive.Run(writing, func(r load.Request) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		ages, before := make([]time.Duration, 0, len(conns)), threadTime()
		for _, conn := range conns {
			if _, err := conn.Write(payload); err != nil {
				failed = err
				return
			}
			ages = append(ages, time.Since(r.Due))
		}
		spent += threadTime() - before
		for _, age := range ages {
			count.Done(opEvent, age)
		}
	})
	b.report.Turns = append(b.report.Turns, Turn{
		Variant: bareWrites, Index: turn, Took: time.Since(began), Main: opEvent, Rate: b.c.Rate, InFlight: 1,
		Operations: count.Operations(), Spent: Spent{Server: spent},
	})
	if len(conns) < b.c.Subscribers {
		b.note("bare writes go to %d connections", len(conns))
	}
	return errors.Join(failed, ctx.Err())
}

// threadTime returns the processor time of this thread, or 0 where it is not known.
func threadTime() time.Duration {
	text, err := os.ReadFile("/proc/thread-self/schedstat")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(ns)
}
