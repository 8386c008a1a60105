package api_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/idem"
)

// S10: what the database has of a request is the hash of its content, and of nothing else, so that
// the vectors of TestRequestHashes are the hashes of stored requests. A commit is stored twice: in
// its record and in the log.
func TestStoredHashes(t *testing.T) {
	t.Parallel()
	each(t, keyed, newKey, func(t *testing.T, w *world, r request) {
		want := r.hash()
		before := w.hashes()
		r.send(w.server).ok()
		stored := w.hashes()
		for hash, n := range before {
			if stored[hash] -= n; stored[hash] == 0 {
				delete(stored, hash)
			}
		}
		if len(stored) != 1 || stored[want] == 0 {
			t.Errorf("the request with the hash %x has stored (hash, rows): %x", want, stored)
		}
	})
}

// hash is the hash of the request's content.
func (r request) hash() string {
	r.by.w.t.Helper()
	in, isBody := r.in.(interface{ Fields() []lexcodec.Field })
	if !isBody {
		var err error
		if in, err = mlsapi.DecodeGetKeyPackagesParams(query(r.params...)); err != nil {
			r.by.w.t.Fatal(err)
		}
	}
	var content idem.Content
	for _, f := range in.Fields() {
		content = append(content, idem.Field(f))
	}
	hash := content.Hash()
	return string(hash[:])
}

// hashes counts the rows of records and of the log by their request's hash.
func (w *world) hashes() map[string]int {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `
		SELECT request_hash FROM idempotency_keys UNION ALL SELECT request_hash FROM messages WHERE request_hash IS NOT NULL`)
	if err != nil {
		w.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		w.t.Fatal(err)
	}
	n := map[string]int{}
	for _, hash := range all {
		n[string(hash)]++
	}
	return n
}
