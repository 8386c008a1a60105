package push_test

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"mlsd/events"
	"mlsd/features/push"
)

var presenceSeed = flag.Uint64("push.seed", 1, "seed of TestPresenceModel")

// Times of the model. modelFindOut is when a node finds out that a connection is dead. modelStream
// is the longest time from a message's commit until live connections get it.
const (
	modelFindOut  = 35 * time.Second
	modelStream   = 8 * time.Second
	modelCatchUp  = 3 * time.Second  // until a connection has delivered what was missed
	modelDeadline = 60 * time.Second // from the last message to the call
	// modelBelieved is how long a disconnected device can count as connected: modelFindOut,
	// modelStream, and a lease.
	modelBelieved = 60 * time.Second
	modelStep     = events.SyncInterval
)

// connection is a connection of the model.
type connection struct {
	device int
	node   int
	began  time.Duration
	died   time.Duration // 0: alive
	known  bool          // its node knows that it has ended, or the node is dead
}

// delivery is a message that a device must get, over a connection or by a call.
type delivery struct {
	device     int
	sent       time.Duration
	sentToLive time.Duration // when live connections get it
}

// presenceModel is two nodes, four devices that connect and disconnect, and the messages that these
// devices have not got yet.
type presenceModel struct {
	*bench
	random *rand.Rand
	begun  time.Time
	passed time.Duration

	devices     []string
	nodes       []*events.Presence
	connections []*connection
	undelivered []delivery
	lastEnded   []time.Duration // by device: when a node last found out that a connection had ended
	lastSent    time.Duration
	calls       int
}

// now is the model's clock: the time that was let pass, and the time that the test took.
func (m *presenceModel) now() time.Duration { return m.passed + time.Since(m.begun) }

// act does one thing at random. If quiet is set it sends no message.
func (m *presenceModel) act(quiet bool) {
	device, node := m.random.IntN(len(m.devices)), m.random.IntN(len(m.nodes))
	living := slices.DeleteFunc(slices.Clone(m.connections), func(c *connection) bool { return c.died > 0 })
	switch n := m.random.IntN(100); {
	case n < 8 && !quiet:
		m.send("hello")
		m.lastSent = m.now()
		for d := range m.devices {
			m.undelivered = append(m.undelivered,
				delivery{d, m.now(), m.now() + time.Duration(m.random.Int64N(int64(modelStream)))})
		}
	case n >= 8 && n < 20:
		m.connections = append(m.connections, &connection{device: device, node: node, began: m.now()})
		m.nodes[node].Connect(bob, m.devices[device], true)
	case n >= 20 && n < 22 && len(living) > 0: // it disconnects
		c := living[m.random.IntN(len(living))]
		c.died = m.now()
		m.end(c)
	case n >= 22 && n < 30 && len(living) > 0: // it dies silently
		living[m.random.IntN(len(living))].died = m.now()
	case n >= 30 && n < 33: // it connects for a moment; its older connections end
		for _, c := range m.connections {
			if c.device == device && c.node == node && !c.known {
				c.died = m.now()
				m.end(c)
			}
		}
		m.connections = append(m.connections, &connection{device: device, node: node, began: m.now(), died: m.now()})
		m.nodes[node].Connect(bob, m.devices[device], true)
	case n >= 33 && n < 35: // a node dies
		for _, c := range m.connections {
			if c.node == node {
				c.known = true
				if c.died == 0 {
					c.died = m.now()
				}
				m.lastEnded[c.device] = m.now()
			}
		}
		m.nodes[node] = m.node()
	}
}

// end makes a connection's node find out that the connection has ended.
func (m *presenceModel) end(c *connection) {
	c.known = true
	m.lastEnded[c.device] = m.now()
	m.nodes[c.node].Disconnect(bob, m.devices[c.device], true)
}

// deliver gives the devices what was sent to their live connections.
func (m *presenceModel) deliver() {
	m.undelivered = slices.DeleteFunc(m.undelivered, func(w delivery) bool {
		return w.sentToLive <= m.now() && slices.ContainsFunc(m.connections, func(c *connection) bool {
			return c.device == w.device && c.died == 0 && c.began+modelCatchUp <= m.now()
		})
	})
}

// work lets the nodes and the worker do their work of one step.
func (m *presenceModel) work() {
	for _, c := range m.connections {
		if !c.known && c.died > 0 && m.now() >= c.died+modelFindOut {
			m.end(c)
		}
	}
	m.sync(m.nodes...)
	m.run()
	for _, call := range m.phone.taken() {
		device := slices.Index(m.devices, call.path[1:])
		m.calls++
		m.undelivered = slices.DeleteFunc(m.undelivered, func(w delivery) bool { return w.device == device })
		stable := m.now() - 2*modelDeadline
		for _, c := range m.connections {
			if c.device == device && c.died == 0 && c.began < stable && m.lastEnded[device] < stable {
				m.t.Fatalf("at %v %s was called, which has been connected since %v", m.now(), m.devices[device], c.began)
			}
		}
	}
	waiting := map[string]bool{}
	for _, j := range m.jobs() {
		waiting[j.Device] = waiting[j.Device] || j.State == "pending" || j.State == "sending"
	}
	for _, w := range m.undelivered {
		if !waiting[m.devices[w.device]] {
			m.t.Fatalf("at %v %s has not got the message of %v, and no job is left", m.now(), m.devices[w.device], w.sent)
		}
		if now := m.now() - 2*modelStep; now > m.lastSent+modelDeadline || now > w.sent+modelDeadline+modelBelieved {
			m.t.Fatalf("at %v %s has still not got the message of %v", m.now(), m.devices[w.device], w.sent)
		}
	}
}

// Connections and nodes come, go and die at random. Every device gets every message in time, over a
// connection or by a call. A device that stays connected is not called.
func TestPresenceModel(t *testing.T) {
	t.Parallel()
	m := &presenceModel{
		bench: newBench(t), random: rand.New(rand.NewPCG(*presenceSeed, 0)), begun: time.Now(),
		devices:   []string{"phone", "tablet", "watch", "laptop"},
		lastEnded: make([]time.Duration, 4),
	}
	for _, d := range m.devices {
		m.register(push.Target{DID: bob, DeviceID: d, Kind: push.KindWebhook, Address: m.phone.URL + "/" + d})
	}
	m.nodes = []*events.Presence{m.node(), m.node()}
	for i := range 200 {
		for range m.random.IntN(4) {
			m.act(i/20%2 == 1) // long enough for jobs to end
			m.deliver()
		}
		step := time.Duration(m.random.Int64N(int64(modelStep)))
		m.pass(step)
		m.passed += step
		m.deliver()
		m.work()
	}
	t.Logf("%d calls, and %d jobs that needed none", m.calls,
		m.count(`SELECT count(*) FROM push_jobs WHERE last_error = 'it was connected'`))
}
