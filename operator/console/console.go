// Package console is the operator's console: pages of the admin listener that show what a server
// does, and the forms of the admin methods. docs/CONSOLE.md explains the console to operators.
//
// The pages are made on the server. They need no file from elsewhere and no inline script. A DID is
// shown in full only on request, and each request is recorded: see Request.
package console

import (
	"context"
	"crypto/rand"
	"html/template"
	"log/slog"
	"net/http"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/idem"
	"mlsd/internal/worker"
	"mlsd/operator"
	"mlsd/operator/invariants"
	"mlsd/people/quota"
)

// Config is what a Console uses.
type Config struct {
	Access   *operator.Access
	Operator *operator.Service // calls methods, and records what operators have done
	DB       *pgxpool.Pool     // the pool for maintenance
	Log      *slog.Logger
	Version  string // version of the server

	Node   prometheus.Gatherer // the metrics of this node
	Stored prometheus.Gatherer // the metrics that are read from the database
	NodeID func() uuid.UUID    // id of this node in the list of nodes
	Checks *invariants.Checker
	Rounds *worker.Rounds

	Lifetimes idem.Lifetimes // lifetimes of idempotency records, as the node's settings say
	Quotas    quota.Limits   // as the node's settings say
}

// Console serves the pages.
type Console struct {
	Config
	templates map[string]*template.Template // by the page's name
	files     map[string]file               // by path
	refKey    [32]byte                      // see Request.Ref
	history   *history
	stored    *stored
	viewers   viewers
	begin     chan checking // receives when somebody wants a check
}

// New returns a console.
func New(c Config) (*Console, error) {
	console := &Console{
		Config: c, files: files(), history: newHistory(c.Node), stored: &stored{from: c.Stored, db: c.DB, log: c.Log},
		viewers: viewers{all: map[chan []byte]bool{}}, begin: make(chan checking, 1),
	}
	if _, err := rand.Read(console.refKey[:]); err != nil {
		return nil, err
	}
	var err error
	console.templates, err = parseViews(console.pages())
	return console, err
}

// page is one page of the console.
type page struct {
	Path  string
	Title string
	name  string // of its template: views/NAME.html defines "main"
	// load returns the data that the template shows as .Data. An *operator.Error is shown as it is.
	// Other errors are logged.
	load func(context.Context, *Request) (any, error)
}

// Loads reports whether the page has its own content, which can be shown with DIDs in full.
func (p page) Loads() bool { return p.load != nil }

// pages returns the pages, in the order of the navigation.
func (c *Console) pages() []page {
	return []page{
		{"/", "Now", "now", c.now},
		{"/welcomes", "Welcomes", "welcomes", c.welcomes},
		{"/idempotency", "Idempotency", "idempotency", c.idempotency},
		{"/convo", "Convo", "convo", c.convo},
		{"/account", "Account", "account", c.account},
		{"/queues", "Queues", "queues", c.queues},
		{"/reports", "Reports", "reports", c.reports},
		{"/checks", "Checks", "checks", c.checks},
		{"/actions", "Actions", "actions", c.actions},
	}
}

// Handle adds the pages to a listener.
func (c *Console) Handle(handle operator.Handle) {
	for _, p := range c.pages() {
		pattern := p.Path
		if pattern == "/" {
			pattern = "/{$}"
		}
		handle("GET "+pattern, operator.Read, c.serve(p))
		handle("POST "+pattern, operator.Read, c.reveal(p))
	}
	for path, f := range c.files {
		handle("GET "+path, operator.Login, f)
	}
	handle("GET /live", operator.Read, http.HandlerFunc(c.stream))
	handle("POST /find", operator.Read, http.HandlerFunc(c.find))
	handle("POST /checks/begin", operator.Read, http.HandlerFunc(c.beginCheck))
	handle("POST /actions/confirm", operator.Read, http.HandlerFunc(c.confirm))
	handle("POST /actions/call", operator.Read, http.HandlerFunc(c.call))
	handle("GET /login", operator.Login, http.HandlerFunc(c.askToken))
	handle("POST /login", operator.Login, http.HandlerFunc(c.login))
	handle("POST /logout", operator.Login, http.HandlerFunc(c.logout))
}

// readTimeout is the time limit of one statement of a page, in milliseconds.
const readTimeout = "5000"

// read calls look in a read-only transaction that sees the rows of all callers, as of one moment.
func (c *Console) read(ctx context.Context, look func(pgx.Tx) error) error {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, c.DB, options, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT set_config('mlsd.maintenance', 'on', true), set_config('statement_timeout', $1, true)`,
			readTimeout)
		if err != nil {
			return err
		}
		return look(tx)
	})
}
