package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"testing"

	"mlsd/internal/await"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// LetConnect lets this process connect to the private server as role. url is the URL of a database
// with that role. admin is a superuser's pool.
func LetConnect(t testing.TB, admin *pgxpool.Pool, role, url string) {
	t.Helper()
	var path string
	must(t, admin.QueryRow(t.Context(), `SELECT current_setting('ident_file')`).Scan(&path))
	me, err := user.Current()
	must(t, err)
	must(t, appendTo(path, fmt.Sprintf("mlsd %s %s\n", me.Username, role)))
	_, err = admin.Exec(t.Context(), `SELECT pg_reload_conf()`)
	must(t, err)
	await.Until(t, "the server has read the file", func() bool {
		conn, err := pgx.Connect(t.Context(), url)
		if err == nil {
			must(t, conn.Close(t.Context()))
		}
		return err == nil
	})
}

// appendTo adds a line to a file of a server.
func appendTo(path, line string) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(line)
	return errors.Join(err, file.Close())
}
