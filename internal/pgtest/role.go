package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rolePatience is how long the server may take to read the file that says who may connect.
const rolePatience = time.Minute

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
	for deadline := time.Now().Add(rolePatience); ; { // the server reads the file some time later
		conn, err := pgx.Connect(t.Context(), url)
		if err == nil {
			must(t, conn.Close(t.Context()))
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
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
