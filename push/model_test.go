package push_test

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"mlsd/events"
	"mlsd/push"
)

var presenceSeed = flag.Uint64("push.seed", 0, "seed of TestPresenceModel; 0: another each time")

// What is true in the model, whatever the server knows: a connection is found out this long after its death, and a message is sent to
// those who are connected this long after its commit, at most.
const (
	modelFindOut  = 35 * time.Second
	modelStream   = 8 * time.Second
	modelCatchUp  = 3 * time.Second  // from a connection's beginning until it has taken in what it had missed
	modelDeadline = 60 * time.Second // from the last message to the call
	modelBelieved = 60 * time.Second // how long a device counts as connected that is not: findOut, stream, and a lease
	modelStep     = events.SyncInterval
)

// connection is one of the model's.
type connection struct {
	device int
	node   int
	began  time.Duration
	died   time.Duration // 0: it lives
	gone   bool          // the node knows that it has ended, or is dead itself
}

// word is a message that a device is to hear of, over a connection or by a call.
type word struct {
	device     int
	sent       time.Duration
	sentToLive time.Duration // when it is sent to those who are connected
}

// presenceModel is two nodes and four devices that come and go, and what those devices have yet to hear of.
type presenceModel struct {
	*bench
	random *rand.Rand
	begun  time.Time
	passed time.Duration

	devices     []string
	nodes       []*events.Presence
	connections []*connection
	unheard     []word
	lastGone    []time.Duration // by device: when a connection of it was last known to end
	lastSent    time.Duration
	calls       int
}

// now is the model's clock: what has passed, and what the test took.
func (m *presenceModel) now() time.Duration { return m.passed + time.Since(m.begun) }

// act does something at random; what it does not do is send a message when that is to be quiet.
func (m *presenceModel) act(quiet bool) {
	device, node := m.random.IntN(len(m.devices)), m.random.IntN(len(m.nodes))
	living := slices.DeleteFunc(slices.Clone(m.connections), func(c *connection) bool { return c.died > 0 })
	switch n := m.random.IntN(100); {
	case n < 8 && !quiet:
		m.send("hello")
		m.lastSent = m.now()
		for d := range m.devices {
			m.unheard = append(m.unheard, word{d, m.now(), m.now() + time.Duration(m.random.Int64N(int64(modelStream)))})
		}
	case n >= 8 && n < 20:
		m.connections = append(m.connections, &connection{device: device, node: node, began: m.now()})
		m.nodes[node].Connected(bob, m.devices[device])
	case n >= 20 && n < 22 && len(living) > 0: // it says good-bye
		c := living[m.random.IntN(len(living))]
		c.died = m.now()
		m.end(c)
	case n >= 22 && n < 30 && len(living) > 0: // it dies silently
		living[m.random.IntN(len(living))].died = m.now()
	case n >= 30 && n < 33: // it connects for a moment, and its node takes leave of what it had of it before
		for _, c := range m.connections {
			if c.device == device && c.node == node && !c.gone {
				c.died = m.now()
				m.end(c)
			}
		}
		m.connections = append(m.connections, &connection{device: device, node: node, began: m.now(), died: m.now()})
		m.nodes[node].Connected(bob, m.devices[device])
	case n >= 33 && n < 35: // a node dies
		for _, c := range m.connections {
			if c.node == node {
				c.gone = true
				if c.died == 0 {
					c.died = m.now()
				}
				m.lastGone[c.device] = m.now()
			}
		}
		m.nodes[node] = m.node()
	}
}

// end has a connection's node know that it has ended.
func (m *presenceModel) end(c *connection) {
	c.gone = true
	m.lastGone[c.device] = m.now()
	m.nodes[c.node].Gone(bob, m.devices[c.device])
}

// hear has the devices hear of what is sent to the living connections.
func (m *presenceModel) hear() {
	m.unheard = slices.DeleteFunc(m.unheard, func(w word) bool {
		return w.sentToLive <= m.now() && slices.ContainsFunc(m.connections, func(c *connection) bool {
			return c.device == w.device && c.died == 0 && c.began+modelCatchUp <= m.now()
		})
	})
}

// work lets the nodes and the worker do what they do within a step.
func (m *presenceModel) work() {
	for _, c := range m.connections {
		if !c.gone && c.died > 0 && m.now() >= c.died+modelFindOut {
			m.end(c)
		}
	}
	m.sync(m.nodes...)
	m.run()
	for _, call := range m.phone.taken() {
		device := slices.Index(m.devices, call.path[1:])
		m.calls++
		m.unheard = slices.DeleteFunc(m.unheard, func(w word) bool { return w.device == device })
		settled := m.now() - 2*modelDeadline
		for _, c := range m.connections {
			if c.device == device && c.died == 0 && c.began < settled && m.lastGone[device] < settled {
				m.t.Fatalf("at %v %s was called, which has been connected since %v", m.now(), m.devices[device], c.began)
			}
		}
	}
	waiting := map[string]bool{}
	for _, j := range m.jobs() {
		waiting[j.Device] = waiting[j.Device] || j.State == "pending" || j.State == "sending"
	}
	for _, w := range m.unheard {
		if !waiting[m.devices[w.device]] {
			m.t.Fatalf("at %v %s has not heard of the message of %v, and nobody will tell it", m.now(), m.devices[w.device], w.sent)
		}
		if now := m.now() - 2*modelStep; now > m.lastSent+modelDeadline || now > w.sent+modelDeadline+modelBelieved {
			m.t.Fatalf("at %v nobody has told %s of the message of %v", m.now(), m.devices[w.device], w.sent)
		}
	}
}

// However connections and nodes come, go and die, every device hears of every message in time, over a connection or by a call; and one that
// is connected all along is not called.
func TestPresenceModel(t *testing.T) {
	t.Parallel()
	seed := *presenceSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-push.seed %d", seed)
	m := &presenceModel{
		bench: newBench(t), random: rand.New(rand.NewPCG(seed, 0)), begun: time.Now(), devices: []string{"phone", "tablet", "watch", "desk"},
		lastGone: make([]time.Duration, 4),
	}
	for _, d := range m.devices {
		m.register(push.Target{DID: bob, DeviceID: d, Kind: push.KindWebhook, Address: m.phone.URL + "/" + d})
	}
	m.nodes = []*events.Presence{m.node(), m.node()}
	for i := range 400 {
		for range m.random.IntN(4) {
			m.act(i/20%2 == 1) // long enough for jobs to end
			m.hear()
		}
		step := time.Duration(m.random.Int64N(int64(modelStep)))
		m.pass(step)
		m.passed += step
		m.hear()
		m.work()
	}
	t.Logf("%d calls, and %d jobs that needed none", m.calls, m.count(`SELECT count(*) FROM push_jobs WHERE last_error = 'it was connected'`))
}
