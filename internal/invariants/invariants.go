// Package invariants re-verifies the promises of docs/INVARIANTS.md over what is stored. Tests and the simulator call it after
// everything they do; operators reach it on the admin listener. It only reads, and it trusts no code that writes.
package invariants

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/mls"
)

// Check verifies every convo and every KeyPackage, and returns what is violated, in words.
func Check(ctx context.Context, db *pgxpool.Pool) (violations []string, err error) {
	var ids []uuid.UUID
	err = read(ctx, db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT id FROM convos ORDER BY id`)
		if err != nil {
			return err
		}
		if ids, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
			return err
		}
		violations, err = run(ctx, tx, globalChecks)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		found, err := CheckConvo(ctx, db, id)
		if err != nil {
			return nil, err
		}
		violations = append(violations, found...)
	}
	return violations, nil
}

// CheckConvo verifies one convo at one moment, and returns what is violated.
func CheckConvo(ctx context.Context, db *pgxpool.Pool, id uuid.UUID) (violations []string, err error) {
	err = read(ctx, db, func(tx pgx.Tx) error {
		if violations, err = run(ctx, tx, convoChecks, id); err != nil {
			return err
		}
		objects, err := checkObjects(ctx, tx, id)
		violations = append(violations, objects...)
		if err != nil {
			return err
		}
		group, err := checkGroup(ctx, tx, id)
		violations = append(violations, group...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("convo %s: %w", id, err)
	}
	for i, v := range violations {
		violations[i] = fmt.Sprintf("convo %s: %s", id, v)
	}
	return violations, nil
}

// read runs look in a read-only transaction that sees one moment. Unlike everything else here, checks read whole tables, so the
// planner gets back the means for that.
func read(ctx context.Context, db *pgxpool.Pool, look func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		for _, setting := range []string{"enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"} {
			if _, err := tx.Exec(ctx, `SELECT set_config($1, 'on', true)`, setting); err != nil {
				return fmt.Errorf("prepare the check: %w", err)
			}
		}
		return look(tx)
	})
}

func run(ctx context.Context, tx pgx.Tx, checks []check, args ...any) (violations []string, err error) {
	for _, c := range checks {
		rows, err := tx.Query(ctx, c.sql, args...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.promise, err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.promise, err)
		}
		for _, f := range found {
			violations = append(violations, c.promise+": "+f)
		}
	}
	return violations, nil
}

// checkObjects compares what the rows say of the log's MLS objects with what the objects say of themselves.
func checkObjects(ctx context.Context, tx pgx.Tx, id uuid.UUID) (violations []string, err error) {
	rows, err := tx.Query(ctx, `
		SELECT m.seq, m.kind, m.epoch, m.body, c.group_id
		FROM messages m JOIN convos c ON c.id = m.convo_id WHERE m.convo_id = $1 ORDER BY m.seq`, id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var seq, epoch int64
		var kind int16
		var body, groupID []byte
		if err := rows.Scan(&seq, &kind, &epoch, &body, &groupID); err != nil {
			return nil, err
		}
		if mls.ContentType(kind) == mls.ContentTypeCommit {
			epoch-- // the row has the epoch that the commit creates, its header the one it was made in
		}
		h, err := mls.ParseHeader(body)
		switch {
		case err != nil:
			violations = append(violations, fmt.Sprintf("log entry %d: %v", seq, err))
		case !bytes.Equal(h.GroupID, groupID):
			violations = append(violations, fmt.Sprintf("log entry %d is of another group", seq))
		case int16(h.ContentType) != kind || int64(h.Epoch) != epoch:
			violations = append(violations, fmt.Sprintf("log entry %d says %s of epoch %d", seq, h.ContentType, h.Epoch))
		}
	}
	return violations, rows.Err()
}

// checkGroup compares what is known of the convo's group with the convo, its roster and the GroupInfo that is handed out.
func checkGroup(ctx context.Context, tx pgx.Tx, id uuid.UUID) (violations []string, err error) {
	var groupID, state, groupInfo []byte
	var epoch int64
	var people []string
	err = tx.QueryRow(ctx, `
		SELECT c.group_id, c.epoch, g.state, g.group_info, (SELECT array_agg(did) FROM members WHERE convo_id = c.id)
		FROM convos c JOIN public_groups g ON g.convo_id = c.id WHERE c.id = $1`, id).
		Scan(&groupID, &epoch, &state, &groupInfo, &people)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the public group: %w", err)
	}
	group, err := mls.ParseGroup(state)
	if err != nil {
		return []string{fmt.Sprintf("the public group: %v", err)}, nil
	}
	if !bytes.Equal(group.GroupID, groupID) || int64(group.Epoch) != epoch {
		violations = append(violations, fmt.Sprintf("the public group is of epoch %d, or another group's", group.Epoch))
	}
	for m := range group.Tree.Members() {
		if !slices.Contains(people, m.DID()) {
			violations = append(violations, fmt.Sprintf("leaf %d of the public group is a stranger's", m.Leaf))
		}
	}
	if groupInfo == nil {
		return violations, nil
	}
	info, err := mls.ParseGroupInfo(groupInfo)
	if err == nil {
		err = group.Matches(&info)
	}
	if err != nil {
		violations = append(violations, fmt.Sprintf("the GroupInfo is not the public group's: %v", err))
	}
	return violations, nil
}
