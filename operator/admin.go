// Package operator is what an operator can ask a running server for and make it do: the methods below
// /admin/ of the admin listener, and who may call them. mlsd admin calls them.
//
// It also answers the questions of operators from the database: what mlsd inspect prints, and what
// the console shows. A question changes nothing. It runs in a transaction of its caller, which sees
// the rows of all callers (mlsd.maintenance) and bounds the time of statements. Functions return DIDs
// in full: who shows them shortens them. Field names of results are those of the JSON, and do not
// change.
//
// It owns the table admin_actions. A method that writes leaves a row there before its first effect.
// Its effects are functions of the packages that own the tables.
package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/convos"
	"mlsd/internal/transparency"
	"mlsd/people/accounts"
	"mlsd/people/erasure"
)

const (
	// maxBody is the longest body of a request, in bytes.
	maxBody = 64 << 10
	// maxText is the longest parameter, operator or reason, in bytes.
	maxText = 2048
	// Limit is how long one call can take. What is left of a longer job goes on with the next call,
	// or in the background.
	Limit = 10 * time.Minute
	// answerTimeout is how long the client has to read the answer.
	answerTimeout = time.Minute
)

// Method is one thing that an operator can ask for or do. GET /admin/NOUN/VERB reads, and POST
// /admin/NOUN/VERB writes. mlsd admin NOUN VERB calls it.
type Method struct {
	Noun, Verb string
	Usage      string
	Params     []Param
	Write      bool // it changes something: it needs the write token, an operator and a reason
	Final      bool // there is no way back
	Archive    bool // its result is an Archive
	Command    bool // only commands of mlsd admin call it: the console has no form for it

	do func(context.Context, *Service, Call) (any, error)
}

// Name is the method's name in the table admin_actions.
func (m Method) Name() string { return m.Noun + "." + m.Verb }

// Path is the method's path on the admin listener.
func (m Method) Path() string { return "/admin/" + m.Noun + "/" + m.Verb }

// Verb of HTTP.
func (m Method) httpVerb() string {
	if m.Write {
		return http.MethodPost
	}
	return http.MethodGet
}

// Param is a parameter of a method: a field of the query or of the JSON body. A required one is an
// argument of the command, in this order. An optional one is a flag.
type Param struct {
	Name     string
	Usage    string
	Optional bool
	Flag     bool // an optional one without a value: it is "true", or absent
}

// FlagSet is the text of a parameter that is a Flag.
const FlagSet = "true"

// Methods returns all methods.
func Methods() []Method {
	return []Method{
		accountShow, accountBlock, accountUnblock, accountLimit, accountErase, accountExport,
		erasureShow,
		convoShow, convoClose, convoDelete,
		deviceRevoke,
		disputeEnd,
		keyPackagesWithdraw,
		pushRetry, pushDrop,
		reportList, reportShow, reportFetch, reportClose, reportDelete, reportClear,
		logKeyList, logKeyAdd, logKeyRetire, logKeyWithhold,
	}
}

// Call is a request of an operator.
type Call struct {
	Params   map[string]string // by name; an absent one is ""
	Operator string            // who asks, by what the client says; "" for a method that reads
	Reason   string            // why; "" for a method that reads

	action string // the method's name
}

// Service serves the methods.
type Service struct {
	db       *pgxpool.Pool
	log      *slog.Logger
	remover  *convos.Remover
	blocks   *accounts.Store
	erasures *erasure.Store
	changed  func()
	wake     func()
	heads    *transparency.Service
}

// Config is what a Service uses.
type Config struct {
	DB       *pgxpool.Pool // for maintenance: methods can read many rows
	Log      *slog.Logger
	Remover  *convos.Remover
	Accounts *accounts.Store
	Erasures *erasure.Store
	Changed  func()                // is called after a write that changes who is refused
	Wake     func()                // is called after a write that has inserted events
	Heads    *transparency.Service // its keys are listed and replaced
}

// New returns a service.
func New(c Config) *Service {
	return &Service{db: c.DB, log: c.Log, remover: c.Remover, blocks: c.Accounts, erasures: c.Erasures, changed: c.Changed, wake: c.Wake, heads: c.Heads}
}

// Handle adds a handler to the admin listener, for requests that are allowed at the level.
type Handle func(pattern string, level Level, h http.Handler)

// Handle adds the methods to a listener.
func (s *Service) Handle(handle Handle) {
	for _, m := range Methods() {
		level := Read
		if m.Write {
			level = Write
		}
		handle(m.httpVerb()+" "+m.Path(), level, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, m) }))
	}
}

// serve answers one request.
func (s *Service) serve(w http.ResponseWriter, r *http.Request, m Method) {
	c, err := m.read(w, r)
	if err != nil {
		writeError(w, s.log, err)
		return
	}
	s.Answer(w, r, m, c, func(out any, err error) {
		if err != nil {
			writeError(w, s.log, err)
			return
		}
		writeJSON(w, s.log, http.StatusOK, out)
	})
}

// Answer makes a call for a request. It writes an Archive itself, and calls write with any other
// result, or with the error.
func (s *Service) Answer(w http.ResponseWriter, r *http.Request, m Method, c Call, write func(out any, err error)) {
	control := http.NewResponseController(w)
	// The listener's timeouts are too short for a large job. net/http reads meanwhile, to notice that
	// the client hangs up.
	if err := errors.Join(control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Now().Add(Limit+answerTimeout))); err != nil {
		s.log.Warn("an admin method may be cut off", "error", err)
	}
	ctx := r.Context()
	if m.Write { // what has begun is not left undecided because the browser hangs up
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	out, err := s.Call(ctx, m, c)
	archive, ok := out.(Archive)
	if err != nil || !ok {
		write(out, err)
		return
	}
	w.Header().Set("Content-Type", ArchiveType)
	if err := archive.WriteTo(ctx, w); err != nil {
		s.log.Error("an archive could not be written", "method", m.Name(), "error", err)
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
}

// ArchiveType is the Content-Type of an Archive: JSON Lines.
const ArchiveType = "application/jsonl"

// Archive is a result that is written line by line, because all of it can exceed the memory.
type Archive interface {
	WriteTo(context.Context, io.Writer) error
}

// Call runs a method. One that writes leaves a row in admin_actions, whatever becomes of it. The
// context should end after Limit.
func (s *Service) Call(ctx context.Context, m Method, c Call) (any, error) {
	if !m.Write {
		return m.do(ctx, s, c)
	}
	id, err := begin(ctx, s.db, m, c)
	if err != nil {
		return nil, err
	}
	out, err := m.do(ctx, s, c)
	s.log.InfoContext(ctx, "an operator has acted", "action", m.Name(), "operator", c.Operator, "outcome", outcomeOf(err))
	return out, errors.Join(err, end(ctx, s.db, id, err))
}

func writeError(w http.ResponseWriter, log *slog.Logger, err error) {
	e := asError(err, log)
	writeJSON(w, log, e.Status, e)
}

// read reads a request: the query of a GET, and the JSON object of texts of a POST.
func (m Method) read(w http.ResponseWriter, r *http.Request) (Call, error) {
	given := map[string]string{}
	if m.Write {
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&given); err != nil {
			return Call{}, badRequest("the body must be a JSON object of texts")
		}
	} else {
		for name, values := range r.URL.Query() {
			given[name] = values[0]
		}
	}
	return m.NewCall(given)
}

// NewCall makes a call of the fields that a request has, by name: the parameters and, for a method
// that writes, operator and reason. It changes given.
func (m Method) NewCall(given map[string]string) (Call, error) {
	c := Call{Params: map[string]string{}, action: m.Name()}
	for _, p := range m.Params {
		c.Params[p.Name] = given[p.Name]
		delete(given, p.Name)
		switch text := c.Params[p.Name]; {
		case text == "" && !p.Optional:
			return Call{}, badRequest(p.Name + " is missing")
		case p.Flag && text != "" && text != FlagSet:
			return Call{}, badRequest(p.Name + " must be " + FlagSet + " or absent")
		}
	}
	if m.Write {
		c.Operator, c.Reason = strings.TrimSpace(given[operatorField]), strings.TrimSpace(given[reasonField])
		delete(given, operatorField)
		delete(given, reasonField)
		if err := c.checkActor(); err != nil {
			return Call{}, err
		}
	}
	for name := range given {
		return Call{}, badRequest("unknown parameter " + name)
	}
	return c, c.check()
}

// The fields of the body that say who acts, and why.
const (
	operatorField = "operator"
	reasonField   = "reason"
)

// checkActor returns an error unless the call says who acts, and why.
func (c Call) checkActor() error {
	if c.Operator == "" || c.Reason == "" {
		return badRequest("operator and reason must be given: who acts, and why")
	}
	return nil
}

// check bounds the texts.
func (c Call) check() error {
	texts := []string{c.Operator, c.Reason}
	for _, text := range c.Params {
		texts = append(texts, text)
	}
	for _, text := range texts {
		if len(text) > maxText || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return badRequest("a text is longer than 2,048 bytes or not UTF-8")
		}
	}
	return nil
}

// subject is what a call is about: its parameters, in the order of the method.
func (m Method) subject(c Call) string {
	var given []string
	for _, p := range m.Params {
		switch text := c.Params[p.Name]; {
		case text == "":
		case p.Flag:
			given = append(given, "--"+p.Name)
		default:
			given = append(given, text)
		}
	}
	return strings.Join(given, " ")
}

// Request makes the request of a call to the admin listener at base (http://host:port).
func (m Method) Request(ctx context.Context, base string, c Call) (*http.Request, error) {
	if !m.Write {
		query := url.Values{}
		for name, text := range c.Params {
			query.Set(name, text)
		}
		return http.NewRequestWithContext(ctx, http.MethodGet, base+m.Path()+"?"+query.Encode(), nil)
	}
	fields := map[string]string{operatorField: c.Operator, reasonField: c.Reason}
	maps.Copy(fields, c.Params)
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+m.Path(), bytes.NewReader(body))
	if err == nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, err
}
