package events

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// aheadEvery is how often a line says that cursors are ahead of the stream.
const aheadEvery = time.Minute

// ahead says in the log that clients have events that the database lacks. If an older copy of the
// disk was put back while all nodes were stopped, PostgreSQL shows no trace of it, and the cursors
// of clients are the only evidence. Nothing follows from it by itself, because a client can make up
// a cursor.
type ahead struct {
	log *slog.Logger
	now func() time.Time

	mu    sync.Mutex // guards what follows
	count int        // cursors since the last line
	said  time.Time  // when the last line was written
}

// add counts a cursor. It logs the first one at once, and later ones once a minute.
func (a *ahead) add(ctx context.Context, cursor, end string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count++
	now := a.now()
	if !a.said.IsZero() && now.Sub(a.said) < aheadEvery {
		return
	}
	a.log.WarnContext(ctx, "a client has a later event than the database: if an older copy of the database was put back, "+
		"run mlsd restored", "cursor", cursor, "end", end, "cursors", a.count)
	a.count, a.said = 0, now
}
