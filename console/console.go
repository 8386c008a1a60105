// Package console is the operator's console: pages of the admin listener that show what a server
// does, and the forms of the admin methods. docs/CONSOLE.md is for those who use it.
//
// The pages are made on the server. They need no file from elsewhere and no inline script. A DID is
// shown in full only on request, which is recorded: see Request.
package console

import (
	"context"
	"crypto/rand"
	"html/template"
	"log/slog"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/admin"
)

// Config is what a Console uses.
type Config struct {
	Access   *admin.Access
	Operator *admin.Service // calls methods, and records what operators have done
	DB       *pgxpool.Pool  // for maintenance
	Log      *slog.Logger
	Version  string // of the server
}

// Console serves the pages.
type Console struct {
	Config
	templates map[string]*template.Template // by the page's name
	files     map[string]file               // by path
	refKey    [32]byte                      // see refs
}

// New returns a console.
func New(c Config) (*Console, error) {
	console := &Console{Config: c, files: files()}
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
	// load returns what the template shows as .Data. An *admin.Error is shown as it is. Other errors
	// are logged.
	load func(context.Context, *Request) (any, error)
}

// pages returns the pages, in the order of the navigation.
func (c *Console) pages() []page {
	return []page{
		{"/", "Now", "now", c.now},
	}
}

// Handle adds the pages to a listener.
func (c *Console) Handle(handle admin.Handle) {
	for _, p := range c.pages() {
		pattern := p.Path
		if pattern == "/" {
			pattern = "/{$}"
		}
		handle("GET "+pattern, admin.Read, c.serve(p))
		handle("POST "+pattern, admin.Read, c.reveal(p))
	}
	for path, f := range c.files {
		handle("GET "+path, admin.Login, f)
	}
	handle("GET /login", admin.Login, http.HandlerFunc(c.askToken))
	handle("POST /login", admin.Login, http.HandlerFunc(c.login))
	handle("POST /logout", admin.Login, http.HandlerFunc(c.logout))
}

// readTimeout is the time limit of one statement of a page, in milliseconds.
const readTimeout = "5000"

// read calls look in a read-only transaction that sees the rows of all callers. All that look reads
// is of one moment.
func (c *Console) read(ctx context.Context, look func(pgx.Tx) error) error {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, c.DB, options, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT set_config('mlsd.maintenance', 'on', true), set_config('statement_timeout', $1, true)`, readTimeout)
		if err != nil {
			return err
		}
		return look(tx)
	})
}
