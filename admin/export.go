package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
)

var accountExport = Method{
	Noun: "account", Verb: "export", Usage: "everything that is held about an account, as JSON Lines",
	Params: []Param{didParam}, do: exportAccount,
}

// export is the archive of an account: a line for each row that is held about it.
type export struct {
	s   *Service
	did syntax.DID
}

func exportAccount(_ context.Context, s *Service, c Call) (any, error) {
	did, err := parseDID(c.Params[didParam.Name])
	return export{s, did}, err
}

// exports are the statements of an archive, by the table. Each returns a row as one object. $1 is
// the DID. Of rows that belong to others too, only what is the person's own is there: no ciphertext
// of others, and no group's state. A secret with which we sign is not theirs.
var exports = []struct{ table, sql string }{
	{"accounts", `SELECT to_jsonb(t) FROM accounts t WHERE did = $1`},
	{"identity_keys", `SELECT to_jsonb(t) FROM identity_keys t WHERE did = $1`},
	{"key_packages", `SELECT to_jsonb(t) - 'body' - 'claimed_by' || jsonb_build_object('body', encode(body, 'base64')) FROM key_packages t WHERE did = $1`},
	{"key_packages claimed", `SELECT jsonb_build_object('did', did, 'ref', encode(ref, 'hex'), 'claimed_at', claimed_at) FROM key_packages WHERE claimed_by = $1`},
	{"key_package_init_keys", `SELECT to_jsonb(t) FROM key_package_init_keys t WHERE did = $1`},
	{"key_package_signals", `SELECT to_jsonb(t) FROM key_package_signals t WHERE did = $1`},
	{"push_targets", `SELECT to_jsonb(t) - 'secret' FROM push_targets t WHERE did = $1`},
	{"push_jobs", `SELECT to_jsonb(t) FROM push_jobs t WHERE did = $1`},
	{"push_convos", `SELECT to_jsonb(t) FROM push_convos t WHERE sender_did = $1`},
	{"members", `SELECT to_jsonb(t) FROM members t WHERE did = $1`},
	{"convos created", `SELECT to_jsonb(t) - 'reserved_for' - 'reserved_until' FROM convos t WHERE creator_did = $1`},
	{"convos reserved", `SELECT jsonb_build_object('id', id, 'reserved_until', reserved_until) FROM convos WHERE reserved_for = $1`},
	{"public_groups", `SELECT jsonb_build_object('convo_id', convo_id, 'epoch', epoch) FROM public_groups WHERE vouched_by = $1`},
	{"messages", `
		SELECT to_jsonb(m) - 'body' || jsonb_build_object('body', encode(m.body, 'base64'))
		FROM members t JOIN messages m ON m.convo_id = t.convo_id AND m.sender_did = t.did WHERE t.did = $1`},
	{"welcomes", `SELECT to_jsonb(w) FROM members t JOIN welcomes w ON w.convo_id = t.convo_id AND w.recipient_did = t.did WHERE t.did = $1`},
	{"idempotency_keys", `SELECT to_jsonb(t) - 'response' || jsonb_build_object('response', convert_from(response, 'UTF8')) FROM idempotency_keys t WHERE caller_did = $1`},
	{"subscription_tickets", `SELECT to_jsonb(t) - 'hash' FROM subscription_tickets t WHERE did = $1`},
	{"presence", `SELECT to_jsonb(t) FROM presence t WHERE did = $1`},
	{"outbox", `SELECT to_jsonb(t) FROM outbox t WHERE did = $1 OR detail ->> 'by' = $1`},
	{"events", `SELECT to_jsonb(t) FROM events t WHERE did = $1 OR detail ->> 'by' = $1`},
	{"blocks", `SELECT to_jsonb(t) FROM blocks t WHERE did = $1`},
	{"invitation_policies", `SELECT to_jsonb(t) FROM invitation_policies t WHERE did = $1`},
	{"quota_counts", `SELECT to_jsonb(t) FROM quota_counts t WHERE subject = $1`},
	{"caller_counts", `SELECT to_jsonb(t) FROM caller_counts t WHERE caller_did = $1`},
	{"audit_log", `SELECT to_jsonb(t) FROM audit_log t WHERE actor = $1`},
	{"admin_actions", `SELECT to_jsonb(t) - 'operator' - 'reason' FROM admin_actions t WHERE subject = $1 OR starts_with(subject, $1 || ' ')`},
	{"erasures", `SELECT to_jsonb(t) - 'salt' FROM erasures t WHERE did = $1`},
}

// exportLine is a line of an archive.
type exportLine struct {
	Type string          `json:"type"` // the table, and in what way the row belongs to the person
	Data json.RawMessage `json:"data"`
}

// WriteTo implements Archive. The rows pass through one at a time. All lines are of one moment.
func (e export) WriteTo(ctx context.Context, to io.Writer) error {
	w := bufio.NewWriter(to)
	lines := json.NewEncoder(w)
	err := e.s.reading(ctx, func(tx pgx.Tx) error {
		// Some tables are read whole.
		if _, err := tx.Exec(ctx, `SELECT set_config('statement_timeout', $1, true)`, fmt.Sprint(Limit.Milliseconds())); err != nil {
			return err
		}
		for _, part := range exports {
			rows, err := tx.Query(ctx, part.sql, e.did.String())
			if err != nil {
				return fmt.Errorf("export %s: %w", part.table, err)
			}
			var data json.RawMessage
			if _, err := pgx.ForEachRow(rows, []any{&data}, func() error { return lines.Encode(exportLine{part.table, data}) }); err != nil {
				return fmt.Errorf("export %s: %w", part.table, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return w.Flush()
}
