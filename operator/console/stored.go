package console

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/events"
)

// fact is one figure from the database.
type fact struct {
	Key, Name, Value string
	Queue            bool // counts waiting work
	Bad              bool // an operator should look at it
}

// storedFacts are figures from the database at one time. They are about all nodes.
type storedFacts struct {
	Facts []fact
	Nodes []events.Node
	Fault string // a sentence that says why there are no facts
}

// stored reads the database, at most once per storedInterval.
type stored struct {
	from prometheus.Gatherer
	db   *pgxpool.Pool
	log  *slog.Logger

	mu     sync.Mutex // held during a reading; guards the fields below
	at     time.Time
	latest storedFacts
}

// storedTimeout bounds a reading.
const storedTimeout = 5 * time.Second

func (s *stored) read(ctx context.Context) storedFacts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) < storedInterval {
		return s.latest
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storedTimeout)
	defer cancel()
	s.latest = s.readNow(ctx)
	s.at = time.Now()
	return s.latest
}

func (s *stored) readNow(ctx context.Context) (found storedFacts) {
	r, err := readMetrics(s.from, time.Now())
	if err != nil || r.sum(databaseUp, every) != 1 {
		return storedFacts{Fault: "The database does not answer. What it holds cannot be shown."}
	}
	found.Facts = facts(r)
	if found.Nodes, err = events.LiveNodes(ctx, s.db); err != nil {
		s.log.WarnContext(ctx, "the console could not list the nodes", "error", err)
		found.Fault = "The nodes could not be listed: the server's log says why."
	}
	found.Facts = append(found.Facts,
		fact{Key: "nodes", Name: "Nodes that are alive", Value: count(float64(len(found.Nodes)))})
	return found
}

// stock describes a figure from the database.
type stock struct {
	name, metric string
	label, value string // selects one of the metric's values; "" means all
	unit         unit
	queue        bool // counts waiting work
	alarm        bool // every value but 0 is bad
}

// key is the stock's name among the live texts.
func (s stock) key() string { return s.metric + s.value }

// stocks are the figures from the database on the pages Now and Queues.
var stocks = []stock{
	{"KeyPackages to claim", "mlsd_key_packages", "state", "available", count, false, false},
	{"KeyPackages of last resort", "mlsd_key_packages", "state", "last_resort", count, false, false},
	{"Stocks that run low", "mlsd_key_package_signals", "kind", "low", count, false, false},
	{"Welcomes to fetch", "mlsd_welcomes", "state", "available", count, false, false},
	{"Welcomes in flight", "mlsd_welcomes", "state", "in_flight", count, true, false},
	{"Events that wait", "mlsd_outbox_events", "", "", count, true, false},
	{"Oldest event that waits", "mlsd_outbox_oldest_seconds", "", "", seconds, true, false},
	{"Erasures that run", "mlsd_erasures_running", "", "", count, true, false},
	{"Reservations that are stuck", "mlsd_reservations_stuck", "", "", count, true, true},
	{"Messages that were sent twice", "mlsd_messages_repeated", "", "", count, false, true},
	{"Rows that are overdue", "mlsd_overdue_rows", "", "", count, true, true},
}

// facts returns the figures of a reading.
func facts(r reading) (all []fact) {
	for _, s := range stocks {
		matches := every
		if s.label != "" {
			matches = labelled(s.label, s.value)
		}
		n := r.sum(s.metric, matches)
		all = append(all, fact{Key: s.key(), Name: s.name, Value: s.unit.written(n), Queue: s.queue, Bad: s.alarm && n > 0})
	}
	return all
}

// nowPage is what the page Now shows.
type nowPage struct {
	Drawings []drawing
	Aims     []reached
	Stored   storedFacts
	Node     uuid.UUID // this node
	Leads    bool      // this node leads the sequencer
}

// now shows what the node is doing, and what it has done in the last hour.
func (c *Console) now(ctx context.Context, r *Request) (any, error) {
	live, err := c.history.live(time.Now())
	if err != nil {
		return nil, err
	}
	last := c.history.newest()
	return nowPage{
		Drawings: draw(c.history.charts, c.history.hour(), live),
		Aims:     c.history.reached(),
		Stored:   c.stored.read(ctx),
		Node:     c.NodeID(),
		Leads:    last.sum(leader, every) > 0,
	}, nil
}
