package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/internal/await"
	"mlsd/internal/pgtest"
)

// wrongConfiguration is a mistake that people make, and the sentence that they get.
type wrongConfiguration struct {
	name    string
	environ []string
	args    []string
	want    string
}

// wrongConfigurations returns mistakes. taken is an address on which a program listens.
func wrongConfigurations(t *testing.T, taken string) []wrongConfiguration {
	t.Helper()
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "mlsd.env")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	unknown, twice, broken := file("# of the node\nMLSD_LISTN=:8080\n"), file("MLSD_RATE_DID=1\nMLSD_RATE_DID=2\n"),
		file("export MLSD_RATE_DID=1\n")
	wrong, key := file("\nMLSD_RATE_DID='many'\n"), file("no key")
	return []wrongConfiguration{
		{"a port alone", []string{"MLSD_LISTEN=8080"}, nil,
			`--listen (MLSD_LISTEN) is "8080": want an address and a port, such as 127.0.0.1:8080, [::1]:8080, or :8080 for ` +
				`every address`},
		{"a port in use", nil, []string{"--listen", taken},
			`--listen (MLSD_LISTEN) is "` + taken +
				`": another program listens there: stop it, or choose another address, such as 127.0.0.1:18080`},
		{"the admin's port in use", nil, []string{"--admin-listen", taken},
			`--admin-listen (MLSD_ADMIN_LISTEN) is "` + taken + `": another program listens there`},
		{"an address of another machine", nil,
			[]string{"--service-did", "did:web:a.example.com", "--listen", "192.0.2.1:8080"},
			`--listen (MLSD_LISTEN) is "192.0.2.1:8080": this machine has no such address; 0.0.0.0 stands for all that it has`},
		{"the default DID on a public address", nil, []string{"--listen", ":0"},
			`--service-did (MLSD_SERVICE_DID) must be set, because --listen (MLSD_LISTEN) is ":0", which other machines can ` +
				`reach: ` +
				`the default did:web:localhost is good on this one only; for https://mls.example.com it is ` +
				`did:web:mls.example.com`},
		{"a host for a DID", []string{"MLSD_SERVICE_DID=mls.example.com"}, nil,
			`--service-did (MLSD_SERVICE_DID) is "mls.example.com": want a DID such as did:web:mls.example.com`},
		{"a number for a duration", []string{"MLSD_MESSAGE_RETENTION=90"}, nil,
			`--message-retention (MLSD_MESSAGE_RETENTION) is "90": want a duration such as 90s, 5m, 12h or 30d`},
		{"a duration in words", nil, []string{"--welcome-grace", "five minutes"},
			`--welcome-grace (MLSD_WELCOME_GRACE) is "five minutes": want a duration such as 90s, 5m, 12h or 30d`},
		{"no duration at all", nil, []string{"--event-retention", "0s"},
			`--event-retention (MLSD_EVENT_RETENTION) is "0s": want more than 0, such as 5m, 12h or 30d`},
		{"messages shorter than events", nil, []string{"--message-retention", "1d"},
			`--message-retention (MLSD_MESSAGE_RETENTION) must be 0 or at least 192h0m0s, a day longer than ` +
				`MLSD_EVENT_RETENTION`},
		{"a switch with a word", []string{"MLSD_PUSH_WEBHOOKS=yes"}, nil,
			`--push-webhooks (MLSD_PUSH_WEBHOOKS) is "yes": want true or false`},
		{"a switch with a space", nil, []string{"--failpoints", "false"},
			`mlsd: unknown command or argument "false" (the value of a switch stands after =: --failpoints=false)`},
		{"a rate of nothing", nil, []string{"--rate-did", "0"},
			`--rate-did (MLSD_RATE_DID) is "0": want a number above 0, such as 20 or 0.5, and how many at once: 20/400`},
		{"a unit that is none", nil, []string{"--quota-bytes", "1GB"},
			`--quota-bytes (MLSD_QUOTA_BYTES) is "1GB": want a whole number of bytes such as 1048576 or 512MiB; 0 is no limit`},
		{"an address for a network", nil, []string{"--trusted-proxies", "10.0.0.1"},
			`--trusted-proxies (MLSD_TRUSTED_PROXIES) is "10.0.0.1": "10.0.0.1" is no network: want networks such as ` +
				`10.0.0.0/8,fd00::/8; one address is 192.0.2.7/32`},
		{"every address for a proxy", []string{"MLSD_TRUSTED_PROXIES=10.0.0.2/32,0.0.0.0/0"}, nil,
			`"0.0.0.0/0" has clients in it, and they could forge their address: name your proxies, such as ` +
				`10.0.0.2/32`},
		{"every address of IPv6 for a proxy", nil, []string{"--trusted-proxies", "::/0"}, `"::/0" has clients in it`},
		{"half of the addresses for a proxy", nil, []string{"--trusted-proxies", "128.0.0.0/1"}, `"128.0.0.0/1" has clients`},
		{"a misspelt parameter of a URL", []string{"MLSD_DATABASE_URL=postgres://a:battery@db/mlsd?sslmod=verify-full"}, nil,
			`--database-url (MLSD_DATABASE_URL): "sslmod" is no parameter of a connection, nor a setting that mlsd takes from ` +
				`the URL (for another setting of PostgreSQL: options=-c%20NAME%3DVALUE)`},
		{"a misspelt parameter of a standby's URL", []string{"MLSD_DATABASE_URL=postgres://db/mlsd",
			"MLSD_READ_DATABASE_URL=postgres://db2/mlsd?target_session_attr=standby"}, nil,
			`--read-database-url (MLSD_READ_DATABASE_URL): "target_session_attr" is no parameter`},
		{"a setting that is mlsd's", nil, []string{"--database-url", "postgres://db/mlsd?search_path=chat"},
			`--database-url (MLSD_DATABASE_URL): "search_path" is no parameter`},
		{"a time in words for PostgreSQL", nil, []string{"--database-url", "postgres://db/mlsd?lock_timeout=soon"},
			`--database-url (MLSD_DATABASE_URL): "lock_timeout" is "soon": want a number or a time, such as 2000, 500ms or 15s`},
		{"a switch of PostgreSQL with a word", nil, []string{"--database-url", "postgres://db/mlsd?enable_seqscan=seldom"},
			`--database-url (MLSD_DATABASE_URL): "enable_seqscan" is "seldom": want on or off`},
		{"no statements", nil, []string{"--database-url", "postgres://db/mlsd?statement_cache_capacity=0"},
			`--database-url (MLSD_DATABASE_URL): statement_cache_capacity is 0: want at least 1`},
		{"a number of connections in letters", []string{"MLSD_DATABASE_URL=postgres://a:battery@db/mlsd?pool_max_conns=abc"},
			nil,
			`--database-url (MLSD_DATABASE_URL): cannot parse pool_max_conns (strconv.ParseInt: parsing "abc": invalid syntax)`},
		{"no connections", nil, []string{"--database-url", "postgres://db/mlsd?pool_max_conns=0"},
			`--database-url (MLSD_DATABASE_URL): pool_max_conns too small`},
		{"a service that is not there", []string{"MLSD_DATABASE_URL=postgres://db?service=chat&servicefile=/dev/null"}, nil,
			`--database-url (MLSD_DATABASE_URL): failed to read service (unable to find service: chat)`},
		{"an sslmode that is none", nil, []string{"--database-url", "postgres://a:battery@db/mlsd?sslmode=always"},
			`--database-url (MLSD_DATABASE_URL): failed to configure TLS`},
		{"a parameter of psql", nil, []string{"--database-url", "postgres://db/mlsd?gssencmode=disable"},
			`--database-url (MLSD_DATABASE_URL): libpq's "gssencmode" is not supported here`},
		{"another parameter of psql", nil, []string{"--database-url", "postgres://db/mlsd?keepalives=1"},
			`--database-url (MLSD_DATABASE_URL): libpq's "keepalives" is not supported here`},
		{"a word that is none", nil, []string{"--log-level", "verbose"},
			`--log-level (MLSD_LOG_LEVEL) is "verbose": want one of debug, info, warn, error`},
		{"a password with an @", []string{"MLSD_DATABASE_URL=postgres://mlsd:battery@staple:x@db/mlsd"}, nil,
			`--database-url (MLSD_DATABASE_URL): want a URL such as postgres://mlsd:password@db.example.com:5432/mlsd; ` +
				`special characters of a password are percent-encoded: @ is %40`},
		{"a secret's file that is not there", []string{"MLSD_DATABASE_URL=file:/nowhere/url"}, nil,
			`--database-url (MLSD_DATABASE_URL): open /nowhere/url: no such file or directory`},
		{"a standby of nothing", []string{"MLSD_READ_DATABASE_URL=postgres://db/mlsd"}, nil,
			"--read-database-url (MLSD_READ_DATABASE_URL) must not be set without MLSD_DATABASE_URL: it is a standby of that " +
				"PostgreSQL"},
		{"an admin listener for everybody", nil, []string{"--admin-listen", ":0"},
			"the admin listener :0 can be reached from other machines: set MLSD_ADMIN_TOKEN, or listen on 127.0.0.1"},
		{"half of the key for pushes", []string{"MLSD_APNS_KEY_FILE=" + key}, nil,
			"--apns-key-file, --apns-key-id, --apns-team-id (MLSD_APNS_KEY_FILE, MLSD_APNS_KEY_ID, MLSD_APNS_TEAM_ID): the " +
				"APNs key needs its id and the id of its team"},
		{"a key that is none", []string{"MLSD_APNS_KEY_FILE=" + key, "MLSD_APNS_KEY_ID=a", "MLSD_APNS_TEAM_ID=b"}, nil,
			"--apns-key-file, --apns-key-id, --apns-team-id (MLSD_APNS_KEY_FILE, MLSD_APNS_KEY_ID, MLSD_APNS_TEAM_ID): read " +
				"the APNs key"},
		{"a list that is not there", []string{"MLSD_ADMIT=/nowhere/admitted"}, nil,
			"--admit (MLSD_ADMIT): open /nowhere/admitted: no such file or directory"},
		{"a misspelt variable", []string{"MLSD_LISTN=:8080"}, nil, "unknown environment variables: MLSD_LISTN"},
		{"a misspelt flag", nil, []string{"--listn", ":8080"}, "flag provided but not defined: -listn"},
		{"a misspelt name in the file", nil, []string{"--env-file", unknown},
			unknown + " line 2: MLSD_LISTN is not a setting that a file can have: mlsd --help lists them"},
		{"a name twice in the file", nil, []string{"--env-file", twice},
			twice + " line 2: MLSD_RATE_DID stands in " + twice + " line 1 already"},
		{"a shell's line in the file", nil, []string{"--env-file", broken},
			broken + " line 1: want NAME=VALUE, such as MLSD_LISTEN=127.0.0.1:8080"},
		{"a bad value in the file", nil, []string{"--env-file", wrong},
			`--rate-did (MLSD_RATE_DID in ` + wrong +
				` line 2) is "many": want a number above 0, such as 20 or 0.5, and how many at once: 20/400`},
	}
}

// O5, O6, O9: a mistake in the settings gets a sentence that says which setting, what it got and
// what it wants, before anything is started. No sentence has a secret.
func TestWrongConfigurations(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	for _, c := range wrongConfigurations(t, taken.Addr().String()) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			environ := append([]string{"MLSD_DATA_DIR=" + dir, "MLSD_LISTEN=127.0.0.1:0", "MLSD_ADMIN_LISTEN=127.0.0.1:0"},
				c.environ...)
			err := run(t.Context(), append([]string{"mlsd"}, c.args...), environ, io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\nwant\n%s", err, c.want)
			}
			wantNoPassword(t, err.Error())
			checked := run(t.Context(), append([]string{"mlsd", "check-config"}, c.args...), environ, io.Discard, io.Discard)
			// It opens no listener, because the service may run.
			listens := strings.Contains(c.want, "another program listens") || strings.Contains(c.want, "no such address")
			if checked == nil && !listens {
				t.Error("check-config does not find it")
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("the database was made before the settings were checked: %v", err)
			}
			t.Logf("%s: %v", strings.Join(append(c.environ, c.args...), " "), err)
		})
	}
}

// Settings from a file: a variable and a flag win over it, wherever the flag stands. check-config
// says where each setting stands, and no secret.
func TestCheckConfigOfAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mlsd.env")
	text := "\n\nMLSD_LISTEN=127.0.0.1:1\nMLSD_RATE_DID=7\nMLSD_RATE_IP=8\n\nMLSD_DATABASE_URL=postgres://a:battery@c/d\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--env-file", path, "check-config"}, {"check-config", "--env-file", path}} {
		var out strings.Builder
		if err := run(t.Context(), append([]string{"mlsd"}, append(args, "--rate-did", "11")...), []string{"MLSD_RATE_IP=12"},
			&out, io.Discard); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{path + " line 3", "MLSD_DATABASE_URL | (not shown) | " + path + " line 7",
			"MLSD_RATE_DID | 11", "MLSD_RATE_IP | 12",
			"the settings are usable, with warnings", "warning: messages are kept for ever"} {
			if !strings.Contains(strings.Join(lines(out.String()), "\n"), want) {
				t.Errorf("%v: no %q in\n%s", args, want, out.String())
			}
		}
		wantNoPassword(t, out.String())
	}
}

// check-config asks for the database if it is told to.
func TestCheckConfigReachesTheDatabase(t *testing.T) {
	t.Parallel()
	for url, good := range map[string]bool{pgtest.URL(t): true, "postgres://mlsd:battery@127.0.0.1:1/mlsd": false} {
		err := run(t.Context(), []string{"mlsd", "check-config", "--database"}, []string{"MLSD_DATABASE_URL=" + url},
			io.Discard, io.Discard)
		if (err == nil) != good {
			t.Errorf("%v", err)
		}
	}
}

// A start waits for a database that comes up, and does not wait for what waiting cannot mend.
func TestWaitForDatabase(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	late, open := lateDatabase(t, url)
	s := launch(t, []string{"MLSD_DATABASE_URL=" + late, "MLSD_WAIT_FOR_DATABASE=5m"})
	await.Until(t, "it says that it waits",
		func() bool { return strings.Contains(s.stderr.String(), "the database does not answer yet") })
	open()
	await.Until(t, "it serves", func() bool { return strings.Contains(s.stdout.String(), "mlsd listening on") })
	s.stop()

	begun := time.Now()
	launch(t, []string{"MLSD_DATABASE_URL=" + withOption(t, url, "dbname=none"),
		"MLSD_WAIT_FOR_DATABASE=5m"}).fails("does not exist")
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("it waited %v for a database that is not there", took)
	}
	never, _ := lateDatabase(t, url)
	launch(t, []string{"MLSD_DATABASE_URL=" + never, "MLSD_WAIT_FOR_DATABASE=10ms"}).fails("MLSD_DATABASE_URL")
}

// lateDatabase returns the URL of a database at an address where nobody listens before open is
// called.
func lateDatabase(t *testing.T, of string) (url string, open func()) {
	t.Helper()
	cfg, err := pgconn.ParseConfig(of)
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().(*net.TCPAddr)
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	return withOption(t, of, fmt.Sprintf("host=127.0.0.1 port=%d sslmode=disable", address.Port)), func() {
		t.Helper()
		l, err := net.ListenTCP("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				client, err := l.Accept()
				if err != nil {
					return // closed
				}
				go join(client, cfg)
			}
		}()
	}
}

// join connects a client with a database until one of them hangs up.
func join(client net.Conn, to *pgconn.Config) {
	defer client.Close()
	network, address := pgconn.NetworkAddress(to.Host, to.Port)
	database, err := net.Dial(network, address)
	if err != nil {
		return
	}
	defer database.Close()
	go func() {
		_, _ = io.Copy(database, client)
		_ = database.Close()
	}()
	_, _ = io.Copy(client, database)
}

// withOption returns the settings of a connection with another option, in PostgreSQL's form of
// pairs.
func withOption(t *testing.T, of, option string) string {
	t.Helper()
	cfg, err := pgconn.ParseConfig(of)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s %s", cfg.Host, cfg.Port, cfg.User, cfg.Password,
		cfg.Database, option)
}

func TestVersion(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"version", "--version"} {
		var out strings.Builder
		if err := run(t.Context(), []string{"mlsd", args}, nil, &out, io.Discard); err != nil ||
			!strings.Contains(out.String(), "mlsd") || !strings.Contains(out.String(), "dev") {
			t.Errorf("%s: %q, %v", args, out.String(), err)
		}
	}
}
