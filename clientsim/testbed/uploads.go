package testbed

import (
	"context"
)

// Uploads is what the database says of the attachments of a cluster.
type Uploads struct {
	Complete, TakenOver int
	Twice               int // contents that a convo has more than once
	HighestFence        int64
	Fence               int64 // of the attachment that was asked for
}

// Uploads reads what the database says of attachments, and of one of them.
func (f *Cluster) Uploads(ctx context.Context, id string) (u Uploads, err error) {
	err = Scan(ctx, f.Postgres.URL(), `
		SELECT count(*) FILTER (WHERE state = 'complete'), count(*) FILTER (WHERE fence > 1), coalesce(max(fence), 0),
			coalesce(max(fence) FILTER (WHERE id::text = $1), 0),
			(SELECT count(*) FROM (
				SELECT FROM attachments WHERE state = 'complete' GROUP BY convo_id, sha256 HAVING count(*) > 1) twice)
		FROM attachments`,
		[]any{id}, &u.Complete, &u.TakenOver, &u.HighestFence, &u.Fence, &u.Twice)
	return u, err
}
