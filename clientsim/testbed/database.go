package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	. "mlsd/clientsim/steps"
)

// InDatabase calls do with a connection to a database, and closes it.
func InDatabase(ctx context.Context, url string, do func(*pgx.Conn) error) error {
	pool, err := pgxpool.ParseConfig(url) // the URL of a server may have settings of the pool
	if err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	db, err := pgx.ConnectConfig(ctx, pool.ConnConfig)
	if err == nil {
		err = errors.Join(do(db), db.Close(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	return nil
}

// Exec runs statements in a database.
func Exec(ctx context.Context, url string, statements ...string) error {
	return InDatabase(ctx, url, func(db *pgx.Conn) error {
		for _, sql := range statements {
			if _, err := db.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

// Scan reads the row of a query in a database.
func Scan(ctx context.Context, url, sql string, args []any, into ...any) error {
	return InDatabase(ctx, url, func(db *pgx.Conn) error { return db.QueryRow(ctx, sql, args...).Scan(into...) })
}

// CheckDatabase asks the server's own checker, at its admin listener, about everything that is
// stored. The checker sees the rows, which no client can see. CheckDatabase returns the broken
// promises as text.
func (p *Proc) CheckDatabase(ctx context.Context) (_ []string, err error) {
	defer Catch(&err)
	answer := Must(p.Admin(ctx, http.MethodGet, "/check", nil))
	var broken []string
	err = json.Unmarshal(answer, &broken)
	if err == nil && broken == nil {
		err = errors.New("null is no list")
	}
	if err != nil {
		return nil, fmt.Errorf("server: check: %w", err)
	}
	return broken, nil
}

// checkDatabase reports what the server's own checker finds. It does nothing for a server that is
// not ours.
func (w *World) checkDatabase(ctx context.Context) {
	if w.Server == nil {
		return
	}
	for _, text := range Must(w.Server.CheckDatabase(ctx)) {
		w.Broken("in the database: %s", text)
	}
}

// Operate calls a method of the operator's that changes something, such as "convo/delete".
func (p *Proc) Operate(ctx context.Context, method string, params map[string]string) error {
	body := maps.Clone(params)
	body["operator"], body["reason"] = "clientsim", "the scenario is over"
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("server: %s: %w", method, err)
	}
	_, err = p.Admin(ctx, http.MethodPost, "/admin/"+method, text)
	return err
}

// Admin makes a request to the admin listener, and returns the answer if it is 2xx. A body is JSON.
func (p *Proc) Admin(ctx context.Context, method, path string, body []byte) (_ []byte, err error) {
	defer CatchIn(&err, "server: %s", path)
	req := Must(http.NewRequestWithContext(ctx, method, p.AdminURL()+path, bytes.NewReader(body)))
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp := Must(http.DefaultClient.Do(req))
	answer, err := io.ReadAll(resp.Body)
	Check(errors.Join(err, resp.Body.Close()))
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("server: %s: %s %.200s", path, resp.Status, answer)
	}
	return answer, nil
}
