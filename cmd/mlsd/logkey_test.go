package main

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/features/transparency"
	"mlsd/features/transparency/verifier"
	"mlsd/internal/await"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/operator"
)

// An operator replaces the key that signs heads. Two nodes sign with the new one within seconds,
// list it in the DID document, and stop using the old one. The record says who did it.
func TestAdminLogKeys(t *testing.T) {
	t.Parallel()
	w, database := operated(t)
	first := w.public
	second := boot(t, nil, w.flags("--database-url", database)...)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	db, err := pgpool.Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	listed := func() []transparency.Key { return done[operator.LogKeyList](w, "log-key", "list").Keys }
	// signs reports whether the head of a node is signed with these keys and no other, and its DID
	// document lists them.
	signs := func(public string, keys ...transparency.Key) bool {
		w.use(w.admin, public)
		log := read[mlsapi.GetLogHeadOutput](t, alice.query(mlsapi.NSIDGetLogHead, "convoId", c.id).must().ok())
		_, document := fetch(t, public+"/.well-known/did.json")
		good := strings.Count(log.Head, "\n— ") == len(keys) && strings.Count(document, "#mlsd_log_") == len(keys)
		for _, k := range keys {
			_, err := verifier.OpenProven(log.Head, []string{k.Text})
			good = good && err == nil && strings.Contains(document, `"`+k.Multikey+`"`)
		}
		return good
	}
	wantSigned := func(when string, keys ...transparency.Key) {
		t.Helper()
		for _, public := range []string{first, second.public} {
			await.Until(t, when, func() bool { return signs(public, keys...) })
		}
	}
	old := listed()[0]
	id := strconv.Itoa(int(old.ID))
	wantSigned("with one key", old)
	w.operate("log-key", "retire", id).fails("log-key.retire", "LogKeyRefused", "add one first")
	added := done[operator.LogKeyAdded](w, "log-key", "add").Key
	wantSigned("with both", old, added)
	w.operate("log-key", "retire", "--now", id).fails("LogKeyRefused", "perhaps not every node")
	pgtest.Age(t, db, "log_keys", time.Minute)
	w.operate("log-key", "retire", id).fails("LogKeyRefused", "or with --now")
	if got := done[operator.LogKeyChanged](w, "log-key", "retire", "--now", id); !got.Changed ||
		!strings.Contains(got.Note, "has checked no head since") {
		t.Errorf("retired: %+v", got)
	}
	if got := done[operator.LogKeyChanged](w, "log-key", "retire", id); got.Changed {
		t.Errorf("retired again: %+v", got)
	}
	wantSigned("with the new one", added)
	if got := done[operator.LogKeyChanged](w, "log-key", "withhold", id); !got.Changed {
		t.Errorf("withheld: %+v", got)
	}
	if keys := listed(); len(keys) != 2 || keys[0].Signs || !keys[0].Withheld || keys[1].Text != added.Text ||
		!keys[1].Signs {
		t.Errorf("listed: %+v", keys)
	}
	third := boot(t, nil, w.flags("--database-url", database)...)
	if !signs(third.public, added) {
		t.Error("a node that has just started signs with other keys")
	}
	w.operate("log-key", "retire", "99").fails("LogKeyNotFound")
	w.operate("log-key", "withhold", "one").fails("id must be a number")
	wantActions(t, actions(t, database),
		operator.Action{Action: "log-key.retire", Subject: id, Outcome: "refused: LogKeyRefused"},
		operator.Action{Action: "log-key.add", Outcome: "done"},
		operator.Action{Action: "log-key.retire", Subject: id + " --now", Outcome: "refused: LogKeyRefused"},
		operator.Action{Action: "log-key.retire", Subject: id, Outcome: "refused: LogKeyRefused"},
		operator.Action{Action: "log-key.retire", Subject: id + " --now", Outcome: "done"},
		operator.Action{Action: "log-key.retire", Subject: id, Outcome: "done"},
		operator.Action{Action: "log-key.withhold", Subject: id, Outcome: "done"},
		operator.Action{Action: "log-key.retire", Subject: "99", Outcome: "refused: LogKeyNotFound"},
		operator.Action{Action: "log-key.withhold", Subject: "one", Outcome: "refused: InvalidRequest"})
	w.wantSound()
}
