package operator

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Request is what became of a request: a row of the table requests.
type Request struct {
	ID       int64      `json:"-"`       // of the row: newer ones are larger
	At       time.Time  `json:"at"`      // of the answer
	Request  string     `json:"request"` // X-Request-Id
	Node     string     `json:"node"`    // that answered
	Method   string     `json:"method"`
	Status   int        `json:"status"`
	Error    string     `json:"error"`   // its name; "": it succeeded
	Message  string     `json:"message"` // as the client got it
	Detail   *Detail    `json:"detail,omitempty"`
	Caller   string     `json:"caller"`
	Key      string     `json:"key"` // "": none
	Convo    *uuid.UUID `json:"convo,omitempty"`
	Replayed bool       `json:"replayed"` // the answer was the first one of its key
	Expired  bool       `json:"expired"`  // the key was used anew after its record's lifetime
	Seconds  float64    `json:"seconds"`  // that the processing took
}

// Detail are the further fields of an error.
type Detail struct {
	CurrentEpoch        *int64     `json:"currentEpoch,omitempty"`
	Seq                 *int64     `json:"seq,omitempty"` // of the commit that ended the epoch
	ProcessingStartedAt *time.Time `json:"processingStartedAt,omitempty"`
	Fields              []string   `json:"fields,omitempty"` // that differ
	FirstUsedAt         *time.Time `json:"firstUsedAt,omitempty"`
}

// RequestsOf says which requests are asked for. Fields that are not set do not choose.
type RequestsOf struct {
	Request string // X-Request-Id
	Key     string // idempotency key
	Caller  string
	Convo   *uuid.UUID
	Error   string // the error's name
	Before  int64  // only rows with a smaller ID
	Failed  bool   // only those with an error
	Rows    int    // at most so many
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
