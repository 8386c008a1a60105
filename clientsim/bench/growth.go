package bench

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
)

// lastPage reads the newest messages of a convo, and ownConvos the first page of the sender's
// convos.
var (
	lastPage = reading{opPage, func(addr string, d *draft) []byte {
		query := fmt.Sprintf("limit=50&convoId=%s&sinceSeq=%d", d.convo.id, d.convo.filled-50)
		return get(addr, mlsapi.NSIDGetMessages, query, d.sender.session)
	}}
	ownConvos = reading{"getConvos", func(addr string, d *draft) []byte {
		return get(addr, mlsapi.NSIDGetConvos, "limit=50", d.sender.session)
	}}
)

// growth measures operations one by one: in the convos of people who have few and many messages,
// and in convos of few and many members. All are in one database and take turns. Claims and joins
// do not depend on a convo's log, so they are measured once.
func growth(ctx context.Context, b *bench) {
	var all []phase
	for i, entries := range b.c.Entries {
		all = append(all, b.grown(ctx, i, entries, b.c.Convos, b.c.Members)...)
	}
	for i, members := range b.c.Rosters {
		all = append(all, b.grown(ctx, i, b.c.Entries[0], 1, members)...)
	}
	Check(testbed.Exec(ctx, b.env.database, "VACUUM ANALYZE messages", "CHECKPOINT")) // not during the load
	targets, devices := b.targets()
	people := b.env.accounts(b.c.Joins)
	refs := b.env.lastResorts(ctx, people)
	at := place{0, b.c.Servers, false}
	const none = 0.001 // messages a second beside a storm
	all = append(all,
		phase{variant: "do=claim", at: at, auth: AuthSession, rate: none, inFlight: 1, main: "getKeyPackages",
			prepare: func() stormFunc { return b.publishForClaims(ctx, targets, devices) }},
		phase{variant: "do=join", at: at, auth: AuthSession, rate: none, inFlight: 1, main: "confirmWelcome",
			prepare: func() stormFunc { return b.invite(ctx, people, refs) }})
	b.note("growth: log entries besides those of the load are written into the database, and are older than events")
	b.turns(ctx, all...)
}

// grown makes people and their convos with so many entries in all, and returns what is measured
// there.
func (b *bench) grown(ctx context.Context, nth, entries, convos, members int) (all []phase) {
	b.say("filling %d convos of %d members with %d messages", convos, members, entries)
	const writers = 10
	accounts := b.env.accounts(min(members, writers))
	senders := make([]*sender, len(accounts))
	for i, account := range accounts {
		senders[i] = &sender{Account: account}
	}
	b.senders = append(b.senders, senders...)
	var drafts []*draft
	for range convos {
		c := b.env.newConvo(ctx, accounts, members, func(c *convo) {
			c.fill(ctx, b.env.database, entries/convos, b.c.Body)
		})
		for _, by := range senders {
			c.addDraft(by, b.c.Body)
		}
		b.convos, drafts = append(b.convos, c), append(drafts, c.drafts...)
	}
	name := fmt.Sprintf("entries=%d/convos=%d/members=%d", entries, convos, members)
	for i, server := range b.c.servers() {
		p := phase{at: place{i, b.c.Servers, false}, auth: AuthSession, drafts: drafts, inFlight: 1}
		one, full, page, list := p, p, p, p
		one.variant, full.variant = join("do=send/"+name, server), join("do=send-full/"+name, server)
		page.variant, list.variant = join("do=page/"+name, server), join("do=convos/"+name, server)
		full.inFlight, page.ask, list.ask = b.c.InFlight, &lastPage, &ownConvos
		all = append(all, one, full, page, list)
	}
	return all
}

// fill appends entries to an empty log. They are of its first member, and a month old, so that
// there are no events of them.
func (c *convo) fill(ctx context.Context, database string, entries, size int) {
	const chunk = 20_000 // a statement has its timeout
	body := mlsclient.FakeMessage(c.group, c.epoch, size)
	Check(testbed.InDatabase(ctx, database, func(db *pgx.Conn) error {
		return Attempt(func() {
			for from := 0; from < entries; from += chunk {
				Must(db.Exec(ctx, `
					WITH c AS (
						UPDATE convos SET last_seq = last_seq + $2 WHERE id = $1 RETURNING last_seq - $2 AS behind, epoch
					)
					INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
					SELECT $1, behind + i, 1, $3, epoch, $4,
						gen_random_uuid(), sha256(int8send(i)), date_trunc('hour', now()) - interval '30 days'
					FROM c, generate_series(1, $2::bigint) AS i`,
					c.id, min(chunk, entries-from), c.reader.DID, body))
			}
			Check(db.QueryRow(ctx, `SELECT last_seq FROM convos WHERE id = $1`, c.id).Scan(&c.filled))
			c.base = c.filled
		})
	}))
}
