package operator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/duration"
)

// Methods returns everything that an operator can do or ask.
func Methods() []Method {
	return []Method{
		accountShow, accountBlock, accountUnblock, accountReactivate, accountLimit, accountErase, accountExport,
		erasureShow,
		convoShow, convoClose, convoPromote, convoDelete,
		deviceRevoke,
		disputeEnd,
		keyPackagesWithdraw,
		pushRetry, pushDrop,
		relaySeek,
		reportList, reportShow, reportFetch, reportClose, reportDelete, reportClear,
		logKeyList, logKeyAdd, logKeyRetire, logKeyWithhold,

		inspectRequest, inspectReservations, inspectRecords, inspectConflicts, inspectWelcomes, inspectKeyPackages,
		inspectLifetimes,
		inspectQuotas, inspectDisputes, inspectAudit, inspectActions, inspectPush,
		inspectServices,
	}
}

// Method is one thing that an operator can do or ask. GET /admin/NOUN/VERB calls a method that
// reads, POST /admin/NOUN/VERB a method that writes. So does the command mlsd admin NOUN VERB.
type Method struct {
	Noun, Verb string
	Usage      string
	Params     []Param
	Write      bool // it needs the write token, an operator and a reason, and leaves a row in admin_actions
	Final      bool // it cannot be undone
	Archive    bool // its result is an Archive
	Command    bool // the console has no form for it

	// run returns the result, which is a struct. tx sees the rows of all callers. For a method that
	// writes, tx is committed if there is no error. For other methods, tx is a read-only snapshot.
	// The parameters have been checked against their kinds.
	run func(ctx context.Context, s *Service, tx pgx.Tx, c Call) (any, error)
	// after runs after the commit of a method that writes, and returns the result. It can be nil.
	after func(ctx context.Context, s *Service, c Call, out any) (any, error)
}

// questionNoun is the noun of questions.
const questionNoun = "inspect"

// question returns a method that reads the database. The command mlsd inspect VERB can run it
// without a server. Its result has DIDs in full only on request.
func question(verb, usage string, run func(context.Context, *Service, pgx.Tx, Call) (any, error),
	params ...Param) Method {
	return Method{Noun: questionNoun, Verb: verb, Usage: usage, Params: append(params, Options()...), Command: true,
		run: run}
}

// Question reports whether the method is one of mlsd inspect.
func (m Method) Question() bool { return m.Noun == questionNoun }

// Options are the parameters that every question accepts.
func Options() []Param {
	return []Param{
		{Name: "dids", Usage: "tell DIDs in full", Kind: Flag, Optional: true},
		{Name: "rows", Usage: "list at most so many rows (default: 20)", Kind: Count, Optional: true},
		{Name: "since", Usage: "how far back: conflicts and callers in whole hours (default: 24h), records by when they " +
			"were made (default: all)",
			Kind: Span, Optional: true},
	}
}

// Name is the method's name in the table admin_actions.
func (m Method) Name() string { return m.Noun + "." + m.Verb }

// Path is the method's path on the admin listener.
func (m Method) Path() string { return "/admin/" + m.Noun + "/" + m.Verb }

// httpVerb returns the method's HTTP verb.
func (m Method) httpVerb() string {
	if m.Write {
		return http.MethodPost
	}
	return http.MethodGet
}

// Kind says which texts a parameter accepts.
type Kind int

const (
	Text   Kind = iota
	Flag        // FlagSet, or absent
	DID         // of an account
	ID          // a UUID
	Number      // a whole number, 0 or greater
	Count       // a whole number, 1 or greater
	LogKey      // the number of a key that signs the heads of logs
	Span        // a positive time span, such as 24h or 7d
)

// FlagSet is the text of a Flag that is set.
const FlagSet = "true"

// Param is a parameter of a method: a field of the query or of the JSON body. On the command line
// it is an argument, in the order of the table, or a flag.
type Param struct {
	Name     string
	Usage    string
	Kind     Kind
	Optional bool
	Place    bool // an optional parameter that is an argument
}

// Flag reports whether the parameter has no value.
func (p Param) Flag() bool { return p.Kind == Flag }

// Argument reports whether the parameter is an argument of the command.
func (p Param) Argument() bool { return !p.Optional || p.Place }

// check returns an error unless the text is of the parameter's kind.
func (p Param) check(text string) error {
	if text == "" {
		return nil // the parameter is absent
	}
	switch p.Kind {
	case DID:
		if _, err := syntax.ParseDID(text); err != nil {
			return BadRequest(p.Name + ": " + err.Error())
		}
	case ID:
		if _, err := uuid.Parse(text); err != nil {
			return BadRequest(p.Name + " must be a UUID")
		}
	case Number:
		if _, err := strconv.ParseUint(text, 10, 63); err != nil {
			return BadRequest(p.Name + " must be a whole number, such as 8")
		}
	case Count:
		if n, err := strconv.ParseUint(text, 10, 31); err != nil || n == 0 {
			return BadRequest("--" + p.Name + " must be positive")
		}
	case Span:
		if d, err := duration.Parse(text); err != nil || d <= 0 {
			return BadRequest("--" + p.Name + " must be positive, such as 24h or 7d")
		}
	case LogKey:
		if _, err := strconv.ParseInt(text, 10, 32); err != nil {
			return BadRequest(p.Name + " must be a number of log-key list")
		}
	}
	return nil
}

// Parameters that several methods share.
var (
	didParam   = Param{Name: "did", Usage: "the account's DID", Kind: DID}
	convoParam = Param{Name: "convo", Usage: "the convo's id", Kind: ID}
)

// Call is a request of an operator.
type Call struct {
	Params   map[string]string // by name; "" for an absent parameter
	Operator string            // the name that the caller gives; "" for a method that reads
	Reason   string            // why; "" for a method that reads

	action string // the method's name
}

// did returns the account that the call is about.
func (c Call) did() syntax.DID { return syntax.DID(c.Params[didParam.Name]) }

// id returns a parameter of the kind ID, or uuid.Nil if it is absent.
func (c Call) id(name string) uuid.UUID {
	id, err := uuid.Parse(c.Params[name])
	if err != nil {
		return uuid.Nil
	}
	return id
}

// convo returns the convo that the call is about.
func (c Call) convo() uuid.UUID { return c.id(convoParam.Name) }

// number returns a parameter of the kind Number, or 0 if it is absent.
func (c Call) number(name string) int64 {
	n, err := strconv.ParseInt(c.Params[name], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// defaultRows bounds the lists of a question, unless the operator sets a bound.
const defaultRows = 20

// rows returns how many rows a list may have.
func (c Call) rows() int { return int(cmp.Or(c.number("rows"), defaultRows)) }

// since returns how far back a question looks, or 0 if the operator has not said it.
func (c Call) since() time.Duration {
	d, err := duration.Parse(c.Params["since"])
	if err != nil {
		return 0
	}
	return d
}

// window returns how far back a question about requests looks.
func (c Call) window() time.Duration { return cmp.Or(c.since(), 24*time.Hour) }

func (c Call) flag(name string) bool { return c.Params[name] == FlagSet }

// The fields of the body that say who acts and why.
const (
	operatorField = "operator"
	reasonField   = "reason"
)

// NewCall makes a call from the fields of a request, by name: the parameters and, for a method that
// writes, operator and reason. It changes given.
func (m Method) NewCall(given map[string]string) (Call, error) {
	c := Call{Params: map[string]string{}, action: m.Name()}
	for _, p := range m.Params {
		c.Params[p.Name] = given[p.Name]
		delete(given, p.Name)
		switch text := c.Params[p.Name]; {
		case text == "" && !p.Optional:
			return Call{}, BadRequest(p.Name + " is missing")
		case p.Flag() && text != "" && text != FlagSet:
			return Call{}, BadRequest(p.Name + " must be " + FlagSet + " or absent")
		}
	}
	if m.Write {
		c.Operator, c.Reason = strings.TrimSpace(given[operatorField]), strings.TrimSpace(given[reasonField])
		delete(given, operatorField)
		delete(given, reasonField)
		if c.Operator == "" || c.Reason == "" {
			return Call{}, BadRequest("operator and reason must be given: who acts, and why")
		}
	}
	for name := range given {
		return Call{}, BadRequest("unknown parameter " + name)
	}
	for _, text := range append(slices.Collect(maps.Values(c.Params)), c.Operator, c.Reason) {
		if len(text) > maxText || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return Call{}, BadRequest("a text is longer than 2,048 bytes or not UTF-8")
		}
	}
	return c, nil
}

// maxText is the longest parameter, operator or reason, in bytes.
const maxText = 2048

// subject returns the subject of a call: its parameters, in the order of the method.
func (m Method) subject(c Call) string {
	var given []string
	for _, p := range m.Params {
		switch text := c.Params[p.Name]; {
		case text == "":
		case p.Flag():
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
