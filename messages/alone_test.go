package messages_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"mlsd/messages"
)

// A message that is alone has the outcome that judge gives it in a batch, whatever its convo, its
// sender, its key and its token are.
func TestAloneIsJudgedAlike(t *testing.T) {
	t.Parallel()
	const window = 2
	f := newFixture(t, window)
	token := f.mint(t)
	lateToken := f.mintAt(t, func() time.Time { return time.Now().Add(-time.Hour) })
	rng := rand.New(rand.NewPCG(3, 4))
	appended := 0
	for i := range 300 {
		pick := func(n int) bool { return rng.IntN(n) == 0 }
		sql := []string{`UPDATE messages SET created_at = '2026-11-01T00:00:00Z' WHERE convo_id = $1`} // both say this time
		if pick(6) {
			sql = append(sql, `UPDATE convos SET closed_at = now() WHERE id = $1`)
		}
		if pick(6) {
			sql = append(sql, `UPDATE members SET requested_at = now() WHERE convo_id = $1 AND did = 'did:plc:bob'`)
		}
		if pick(6) {
			sql = append(sql,
				`UPDATE members SET left_at = now(), left_seq = 0, left_epoch = 5 WHERE convo_id = $1 AND did = 'did:plc:bob'`)
		}
		sender := bob
		if pick(10) {
			sender = mallory
		}
		epoch := f.epoch + 1 - int64(rng.IntN(window+3))
		said, other, group, late, used := pick(5), pick(2), pick(8), pick(6), pick(6)
		elsewhere := f.convos[0]
		outcome := func(send func(messages.Draft) messages.Result) string {
			convo := uuid.Must(uuid.NewV7())
			f.addConvo(t, convo)
			if said {
				body := "x"
				if other {
					body = "y"
				}
				f.append(t, f.draftAt(convo, bob, "k", body, epoch))
			}
			for _, statement := range sql {
				if _, err := f.db.Exec(t.Context(), statement, convo); err != nil {
					t.Fatal(err)
				}
			}
			d := with(token(), f.draftAt(convo, sender, "k", "x", epoch))
			if used {
				f.append(t, with(d.Token, f.draft(elsewhere, alice, uuid.NewString(), "x")))
			}
			if late {
				d.Token = lateToken()
			}
			if group {
				d.GroupID = elsewhere[:]
			}
			r := send(d)
			return fmt.Sprint(r.Seq, r.Epoch, r.Replayed, r.Err)
		}
		judged := outcome(func(d messages.Draft) messages.Result { return f.append(t, d)[0] })
		alone := outcome(func(d messages.Draft) messages.Result {
			r, err := f.Send(t.Context(), d)
			return messages.Result{Receipt: r, Err: err}
		})
		if alone != judged {
			t.Errorf("%d: alone %q, in a batch %q", i, alone, judged)
		}
		if judged == fmt.Sprint(1, epoch, false, error(nil)) {
			appended++
		}
	}
	if appended < 30 {
		t.Errorf("only %d were appended", appended)
	}
}
