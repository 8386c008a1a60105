package main

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.yaml.in/yaml/v3"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
)

// composed is the part of deploy/compose.yaml that says who may what in the database.
type composed struct {
	Services map[string]struct {
		Environment map[string]string
		Secrets     []string
		Volumes     []string
	}
}

// G10: compose runs mlsd as a role that owns its database, and no more. The superuser's password is
// not given to it.
func TestComposeRole(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "deploy/compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file composed
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	postgres, node := file.Services["postgres"], file.Services["mlsd"]
	database, err := url.Parse(node.Environment["MLSD_DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	superuser := postgres.Environment["POSTGRES_USER"]
	if superuser == "" {
		superuser = "postgres" // as the image has it
	}
	if database.User.Username() == superuser || strings.Contains(strings.Join(node.Secrets, " "), "superuser") {
		t.Errorf("mlsd is %s, with the secrets %v, and the superuser is %s", database.User, node.Secrets, superuser)
	}
	script := ""
	for _, volume := range postgres.Volumes {
		if from, to, _ := strings.Cut(volume, ":"); strings.HasPrefix(to, "/docker-entrypoint-initdb.d/") {
			script = filepath.Join(root, "deploy", from)
		}
	}
	sql, err := os.ReadFile(script)
	if err != nil {
		t.Fatalf("compose.yaml gives PostgreSQL no script for its first start: %v", err)
	}

	// A server of these tests has more roles: this one gets another name.
	admin, name := pgtest.Empty(t), "mlsd_"+strings.ReplaceAll(uuid.NewString(), "-", "")
	manage(t, admin, name)
	own := admin.Config().ConnConfig
	run := psql(t, own.Host, own.User, own.Database)
	run.Stdin = strings.NewReader(strings.NewReplacer(
		"ROLE mlsd", "ROLE "+name, "DATABASE mlsd", "DATABASE "+name, "OWNER mlsd", "OWNER "+name,
		"cat /run/secrets/database-password", "echo password").Replace(string(sql)))
	if output, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, output)
	}
	renamed := func(text string) string { return strings.Replace(text, "mlsd", name, 1) }
	served := (&url.URL{Scheme: "postgres", Path: renamed(database.Path), RawQuery: url.Values{
		"host": {own.Host}, "port": {"5432"}, "sslmode": {"disable"}, "user": {renamed(database.User.Username())},
	}.Encode()}).String()
	pgtest.LetConnect(t, admin, name, served)

	w := newWorld(t)
	s := boot(t, []string{"MLSD_DATABASE_URL=" + served}, w.flags()...)
	w.use(s.admin, s.public)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "as compose runs it")).must().ok()
	w.wantSound()
	s.stop()
	checked := launch(t, []string{"MLSD_DATABASE_URL=" + served, "MLSD_SERVICE_DID=" + serviceDID},
		"check-config", "--database")
	if err := checked.wait(); err != nil || strings.Contains(checked.stdout.String(), "role") {
		t.Errorf("check-config: %v\n%s", err, checked.stdout)
	}
	var rights string
	err = pgtest.Session(t, served).QueryRow(t.Context(), `
		SELECT concat_ws(' ', rolsuper, rolcreaterole, rolcreatedb, rolbypassrls, rolreplication)
		FROM pg_roles WHERE rolname = current_user`).Scan(&rights)
	if err != nil || rights != "f f f f f" {
		t.Errorf("rights %q, %v", rights, err)
	}
}

// psql returns the program psql, as the image of PostgreSQL calls it.
func psql(t *testing.T, host, user, database string) *exec.Cmd {
	t.Helper()
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skipf("the script is not run: %v", err)
	}
	return exec.CommandContext(t.Context(), "psql", "--set", "ON_ERROR_STOP=1", "--no-password", "--no-psqlrc", "--quiet",
		"--host", host, "--username", user, "--dbname", database)
}
