// Command browser runs the SQL from its input in the private PostgreSQL of a data directory. The
// check of the console uses it to insert rows that no client can make quickly.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/localpg"
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs the SQL in one transaction.
func run(ctx context.Context, dataDir string, sql io.Reader) error {
	text, err := io.ReadAll(sql)
	if err != nil {
		return err
	}
	url, err := localpg.Running(dataDir, localpg.Database)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }() // the program ends next
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, string(text))
		return err
	})
}
