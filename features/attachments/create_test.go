package attachments_test

import (
	"crypto/sha256"
	"log/slog"
	"runtime"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/features/attachments"
	"mlsd/internal/pgtest"
	"mlsd/messages"
)

// A content that is announced again in the moment in which its attachment is deleted gets a new one. It
// was answered with InternalServerError.
func TestAnnouncedWhileItIsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	service := attachments.New(attachments.Config{DB: w.db, Store: w.store, MaxSize: 10,
		ServiceDID: "did:web:mlsd.example.com", Log: slog.New(slog.DiscardHandler)})
	announce := func() (a *attachments.Attachment, made bool, err error) {
		err = pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error {
			a, made, err = service.Create(t.Context(), tx, attachments.Announcement{
				Window: messages.Window{ConvoID: uuid.MustParse(convo), Last: 1}, Caller: "did:plc:alice", Size: 1,
				SHA256: sha256.Sum256([]byte("a")),
			})
			return err
		})
		return a, made, err
	}
	first, made, err := announce()
	if err != nil || !made {
		t.Fatal(made, err)
	}
	waiting, release := pgtest.HoldInserts(t, w.db, "attachments")
	again := make(chan *attachments.Attachment)
	go func() {
		a, made, err := announce()
		if err != nil || !made {
			t.Errorf("made %v, %v", made, err)
		}
		again <- a
	}()
	for waiting() < 1 {
		runtime.Gosched()
	}
	w.exec(`UPDATE attachments SET state = 'deleted' WHERE id = $1`, first.ID)
	release()
	if a := <-again; a != nil && a.ID == first.ID {
		t.Error("the attachment is the one that was deleted")
	}
}
