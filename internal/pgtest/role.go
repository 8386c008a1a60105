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
	if err := admin.QueryRow(t.Context(), `SELECT current_setting('ident_file')`).Scan(&path); err != nil {
		t.Fatal(err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(file, "mlsd %s %s\n", me.Username, role)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(t.Context(), `SELECT pg_reload_conf()`); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(rolePatience); ; { // the server reads the file some time later
		conn, err := pgx.Connect(t.Context(), url)
		if err == nil {
			if err := conn.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
