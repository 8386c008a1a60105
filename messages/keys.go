package messages

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"mlsd/idem"
)

// RetireKeys retires the keys of commits. It implements [idem.Retire]. The key of an application
// message or a proposal has no record other than the message, and lasts as long as the message.
func RetireKeys(ctx context.Context, tx pgx.Tx, keys []idem.UsedKey) error {
	var convos, senders, used []string
	for _, k := range keys {
		if k.Scope != "" { // a method on a convo, which may have appended a commit
			convos, senders, used = append(convos, k.Scope), append(senders, k.Caller), append(used, CommitKey(k.NSID, k.Key))
		}
	}
	if len(used) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `
		UPDATE messages m SET key_retired = true
		FROM unnest($1::uuid[], $2::text[], $3::text[]) AS k (convo_id, sender_did, key)
		WHERE m.convo_id = k.convo_id AND m.sender_did = k.sender_did AND m.idempotency_key = k.key AND m.kind = 3 AND NOT
			m.key_retired`,
		convos, senders, used)
	return err
}

// CommitKey is the key of a commit's log entry: the method's name, then the client's key. The name
// is there because each method has its own keys.
func CommitKey(nsid, key string) string {
	return nsid[strings.LastIndexByte(nsid, '.')+1:] + ":" + key
}
