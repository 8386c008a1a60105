package operator

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

var inspectRequest = question("request",
	"why requests got their answers: that with the id ID, or those of a key or caller",
	func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		found, err := Explain(ctx, tx, RequestsOf{
			Request: c.Params["id"], Key: c.Params["key"], Caller: c.Params["did"], Failed: c.flag("refused"), Rows: c.rows(),
		})
		return Explanations{found}, err
	},
	Param{Name: "id", Usage: "the header X-Request-Id of the answer", Optional: true, Place: true},
	Param{Name: "key", Usage: "requests with this idempotency key", Optional: true},
	Param{Name: "did", Usage: "requests of this DID", Optional: true},
	Param{Name: "refused", Usage: "only requests that were refused or failed", Kind: Flag, Optional: true})

// Explanations explain requests, the newest first.
type Explanations struct {
	Requests []Explanation `json:"requests"`
}

// text writes the requests one below the other.
func (all Explanations) text(w io.Writer) {
	for n := range all.Requests {
		if n > 0 {
			Line(w)
		}
		all.Requests[n].text(w)
	}
}

// Explanation is a request, why it got its answer, and what is stored of it now.
type Explanation struct {
	Request
	Why     string       `json:"why" dids:"shortened"`
	Record  *Record      `json:"record,omitempty"`  // record of the caller's key
	Entry   *LogEntry    `json:"entry,omitempty"`   // log entry under the caller's key
	Winner  *LogEntry    `json:"winner,omitempty"`  // the commit that ended the object's epoch
	Changes []Transition `json:"changes,omitempty"` // audited changes at about the time of a successful request

	convo   *ConvoState // the convo as it is now
	welcome *welcomeUse
}

// Record is the idempotency record of a key.
type Record struct {
	State          string     `json:"state"`
	Outcome        string     `json:"outcome"`
	FirstUsedAt    time.Time  `json:"firstUsedAt"`
	StartedAt      *time.Time `json:"startedAt,omitempty"` // when work outside the database began
	LeaseExpiresAt *time.Time `json:"leaseExpiresAt,omitempty"`
	CompletedAt    *time.Time `json:"completedAt,omitempty"`
	ExpiresAt      time.Time  `json:"expiresAt"`
	Fence          int64      `json:"fence"`
	LastError      string     `json:"lastError,omitempty"`
}

// LogEntry is an entry of a convo's log, without its content.
type LogEntry struct {
	Seq    int64     `json:"seq"`
	Kind   int16     `json:"kind"` // 1 application message, 2 proposal, 3 commit
	Epoch  int64     `json:"epoch"`
	Sender string    `json:"sender"`
	Key    string    `json:"-"`
	At     time.Time `json:"at"`
}

// welcomeUse is a caller's newest used Welcome in a convo.
type welcomeUse struct {
	Epoch       int64
	Device      string
	ConfirmedAt *time.Time
	Silent      bool // it was used up because its grace was over
}

// Explain explains why requests got their answers, the newest request first. It finds requests by
// request id, by key or by caller.
func Explain(ctx context.Context, tx pgx.Tx, of RequestsOf) ([]Explanation, error) {
	found, err := Requests(ctx, tx, of)
	if err != nil {
		return nil, err
	}
	all := make([]Explanation, len(found))
	for i := range found {
		all[i] = Explanation{Request: found[i]}
		if err := all[i].read(ctx, tx); err != nil {
			return nil, err
		}
		all[i].Why = all[i].why()
	}
	return all, nil
}

// text writes a request.
func (e *Explanation) text(w io.Writer) {
	answer := fmt.Sprint(e.Status)
	if e.Error != "" {
		answer += " " + e.Error + ": " + e.Message
	}
	Line(w, "request", e.Request.Request)
	Line(w, "at", clock(e.At)+", "+milliseconds(e.Seconds)+", node "+e.Node)
	Line(w, "method", e.Method)
	Line(w, "caller", e.Caller)
	if e.Convo != nil {
		Line(w, "convo", e.Convo)
	}
	Line(w, "answer", answer)
	Line(w, "why", e.Why)
	if e.Key != "" {
		Line(w, "key", e.Key)
		Line(w, "record", e.Record.text())
	}
	if e.Entry != nil {
		Line(w, "log entry", fmt.Sprintf("seq %d, epoch %d, %s", e.Entry.Seq, e.Entry.Epoch, clock(e.Entry.At)))
	}
	for _, c := range e.Changes {
		Line(w, "changed", fmt.Sprintf("%s %s: %s to %s", c.Entity, c.ID, c.From, c.To))
	}
}

// text says what the record of a key contains now.
func (r *Record) text() string {
	if r == nil {
		return "none"
	}
	text := fmt.Sprintf("%s, first used %s, kept until %s", r.State, clock(r.FirstUsedAt), clock(r.ExpiresAt))
	if r.LeaseExpiresAt != nil && r.State == "processing" {
		text += ", lease until " + clock(*r.LeaseExpiresAt)
	}
	return text
}

// read reads what the explanation needs.
func (e *Explanation) read(ctx context.Context, tx pgx.Tx) error {
	for _, look := range []func(context.Context, pgx.Tx) error{e.readRecord, e.readEntry, e.readConvo, e.readWinner,
		e.readWelcome, e.readChanges} {
		if err := look(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

func (e *Explanation) readRecord(ctx context.Context, tx pgx.Tx) (err error) {
	if e.Key == "" {
		return nil
	}
	scope := ""
	if e.Convo != nil {
		scope = e.Convo.String()
	}
	e.Record, err = first[Record](ctx, tx, `
		SELECT state, outcome, created_at, started_at, lease_expires_at, completed_at, expires_at, fence, coalesce(last_error,
			'')
		FROM idempotency_keys WHERE (caller_did, nsid, key) = ($1, $2, $3) AND scope IN ('', $4) ORDER BY scope DESC LIMIT 1`,
		e.Caller, e.Method, e.Key, scope)
	return err
}

// readEntry finds the message or commit with the caller's key.
func (e *Explanation) readEntry(ctx context.Context, tx pgx.Tx) (err error) {
	if e.Key == "" || e.Convo == nil {
		return nil
	}
	e.Entry, err = first[LogEntry](ctx, tx, `
		SELECT seq, kind, epoch, sender_did, idempotency_key, created_at FROM messages
		WHERE convo_id = $1 AND sender_did = $2 AND kind <> 3 AND idempotency_key = $3 AND $4 = 'sendMessage'
		UNION ALL
		SELECT seq, kind, epoch, sender_did, idempotency_key, created_at FROM messages
		WHERE convo_id = $1 AND sender_did = $2 AND kind = 3 AND NOT key_retired AND idempotency_key = $4 || ':' || $3
		LIMIT 1`, *e.Convo, e.Caller, e.Key, e.method())
	return err
}

// method returns the method's own name.
func (e *Explanation) method() string { return e.Method[strings.LastIndexByte(e.Method, '.')+1:] }

func (e *Explanation) readConvo(ctx context.Context, tx pgx.Tx) (err error) {
	if e.Convo == nil || e.Error != "EpochMismatch" && e.Error != "ConvoClosed" {
		return nil
	}
	e.convo, err = ReadConvo(ctx, tx, *e.Convo)
	return err
}

func (e *Explanation) readWinner(ctx context.Context, tx pgx.Tx) (err error) {
	epoch, stale := e.staleEpoch()
	if e.Convo == nil || !stale {
		return nil
	}
	e.Winner, err = first[LogEntry](ctx, tx, `
		SELECT seq, kind, epoch, sender_did, idempotency_key, created_at FROM messages
		WHERE convo_id = $1 AND kind = 3 AND epoch = $2 + 1`, *e.Convo, epoch)
	return err
}

func (e *Explanation) readWelcome(ctx context.Context, tx pgx.Tx) (err error) {
	if e.Convo == nil || e.Error != "WelcomeConsumed" {
		return nil
	}
	e.welcome, err = first[welcomeUse](ctx, tx, `
		SELECT epoch, device_id, confirmed_at, silent FROM welcomes
		WHERE convo_id = $1 AND recipient_did = $2 AND state = 'consumed' ORDER BY epoch DESC, confirmed_at DESC LIMIT 1`,
		*e.Convo, e.Caller)
	return err
}

// maxChanges bounds the changes that an explanation lists.
const maxChanges = 20

// readChanges finds what the caller changed with the method while the request was running. It
// cannot tell the changes of another request by the same caller and method at that time apart.
func (e *Explanation) readChanges(ctx context.Context, tx pgx.Tx) (err error) {
	if e.Error != "" || e.Replayed {
		return nil
	}
	e.Changes, err = list[Transition](ctx, tx, `
		SELECT at, entity, entity_id, from_state, to_state, version, actor, reason, coalesce(details, '')
		FROM audit_log
		WHERE at BETWEEN $1::timestamptz - ($2::float8 + 1) * interval '1 second' AND $1::timestamptz + interval '1 second'
			AND actor = $3 AND reason = $4
		ORDER BY at, id LIMIT $5`, e.At, e.Seconds, e.Caller, e.method(), maxChanges)
	return err
}

// Request is a request and its result: a row of the table requests.
type Request struct {
	ID       int64      `json:"-"`       // id of the row; newer rows have larger ids
	At       time.Time  `json:"at"`      // time of the answer
	Request  string     `json:"request"` // X-Request-Id
	Node     string     `json:"node"`    // the node that answered
	Method   string     `json:"method"`
	Status   int        `json:"status"`
	Error    string     `json:"error"`   // name of the error; "" if the request succeeded
	Message  string     `json:"message"` // message that the client got
	Detail   *Detail    `json:"detail,omitempty"`
	Caller   string     `json:"caller"`
	Key      string     `json:"key"` // "" if the request had no key
	Convo    *uuid.UUID `json:"convo,omitempty"`
	Replayed bool       `json:"replayed"` // the answer was the first answer of the key
	Expired  bool       `json:"expired"`  // the key was used again after its record had expired
	Seconds  float64    `json:"seconds"`  // time of the processing
}

// Detail holds the further fields of an error.
type Detail struct {
	CurrentEpoch        *int64     `json:"currentEpoch,omitempty"`
	Seq                 *int64     `json:"seq,omitempty"` // seq of the commit that ended the epoch
	ProcessingStartedAt *time.Time `json:"processingStartedAt,omitempty"`
	Fields              []string   `json:"fields,omitempty"` // fields that differ
	FirstUsedAt         *time.Time `json:"firstUsedAt,omitempty"`
}

// RequestsOf selects requests. Empty fields do not restrict the selection.
type RequestsOf struct {
	Request string // X-Request-Id
	Key     string // idempotency key
	Caller  string
	Convo   *uuid.UUID
	Error   string // the error's name
	Before  int64  // only rows with a smaller ID
	Failed  bool   // only requests with an error
	Rows    int    // at most so many rows
}

// Requests returns requests, the newest first.
func Requests(ctx context.Context, tx pgx.Tx, of RequestsOf) ([]Request, error) {
	return list[Request](ctx, tx, `
		SELECT id, at, request_id, node, nsid, status, error, message, detail, caller_did, key, convo_id, replayed, expired,
			seconds
		FROM requests
		WHERE ($1 = '' OR request_id = $1) AND ($2 = '' OR key = $2 AND key <> '') AND ($3 = '' OR caller_did = $3)
			AND ($4::uuid IS NULL OR convo_id = $4) AND ($5 = '' OR error = $5) AND ($6::bigint = 0 OR id < $6) AND (NOT $7 OR
				error <> '')
		ORDER BY id DESC LIMIT $8`, of.Request, of.Key, of.Caller, of.Convo, of.Error, of.Before, of.Failed, of.Rows)
}
