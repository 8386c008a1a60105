package testbed

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"

	"github.com/jackc/pgx/v5"

	. "mlsd/clientsim/steps"
)

// Traces returns the tables of the server's database that hold some bytes, as bytes or in base64.
func (p *Proc) Traces(ctx context.Context, of []byte) (found []string, err error) {
	err = p.inDatabase(ctx, func(tx pgx.Tx) (err error) {
		defer Catch(&err)
		rows := Must(tx.Query(ctx,
			`SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace ORDER
					BY relname`))
		tables := Must(pgx.CollectRows(rows, pgx.RowTo[string]))
		if len(tables) < 20 {
			return fmt.Errorf("the database has only %d tables", len(tables))
		}
		for _, table := range tables {
			var holds bool
			// Without its last group, the base64 of the bytes stands in the base64 of what begins with them.
			Check(tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+pgx.Identifier{table}.Sanitize()+
				` t WHERE strpos(t::text, $1) > 0 OR strpos(t::text, $2) > 0)`,
				hex.EncodeToString(of), base64.StdEncoding.EncodeToString(of[:len(of)/3*3])).Scan(&holds))
			if holds {
				found = append(found, table)
			}
		}
		return nil
	})
	return found, err
}
