package pgpool

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// rule is what mlsd does about a setting that the server, a database or a role can have set.
type rule int

const (
	usual    rule = iota // each connection sets the value, unless the URL or its pool has another one
	always               // each connection sets the value
	required             // mlsd does not start with another value: see Check
	advised              // mlsd warns of another value
)

// setting is a parameter of a session.
type setting struct {
	name, value string
	also        string // a value that is as good as an advised one, or ""
	rule        rule
	why         string // for a required or an advised one: what another value does
}

// settings are the parameters of a session on which mlsd depends. Times are in milliseconds, unless a
// comment says otherwise. What is not here does no harm: default_transaction_deferrable, for example,
// does not count at our isolation level.
var settings = []setting{
	// They bound what one session can cost.
	{name: "lock_timeout", value: "2000"},                         // how long a duplicate waits for the first request
	{name: "statement_timeout", value: "15000"},                   // none of our statements needs a tenth of this
	{name: "idle_in_transaction_session_timeout", value: "15000"}, // a stopped node must not hold locks
	// A node that the network has cut off must not hold locks either, so the server ends its
	// sessions half a minute later. These values are in seconds.
	{name: "tcp_keepalives_idle", value: "15"},
	{name: "tcp_keepalives_interval", value: "5"},
	{name: "tcp_keepalives_count", value: "3"},
	// The planner's cost estimates for our statements are wrong by a factor of thousands, because
	// it does not know how many rows an array has. With jit, it would compile the statement that
	// indexes events each time, for half a second of processor time.
	{name: "jit", value: "off"},
	{name: "application_name", value: "mlsd"},

	// Pools and listeners keep idle sessions, and a check can take minutes.
	{name: "idle_session_timeout", value: "0", rule: always},
	{name: transactionTimeout, value: "0", rule: always},
	// Each statement relies on its own snapshot.
	{name: "default_transaction_isolation", value: "read committed", rule: always},
	// With off, each statement on a table with row-level security fails.
	{name: "row_security", value: "on", rule: always},
	// Our transactions set both for themselves. A session that has them bypasses row-level security.
	{name: "mlsd.maintenance", value: "off", rule: always},
	{name: "mlsd.caller", value: "", rule: always},
	// With on, a refused statement ends its session.
	{name: "exit_on_error", value: "off", rule: always},
	// The migrations make their tables there.
	{name: "search_path", value: schema, rule: always},
	// The driver and our statements write and read these forms.
	{name: "client_encoding", value: "UTF8", rule: always},
	{name: "standard_conforming_strings", value: "on", rule: always},
	{name: "timezone", value: "UTC", rule: always},
	{name: "DateStyle", value: "ISO, MDY", rule: always},
	{name: "IntervalStyle", value: "postgres", rule: always},
	{name: "bytea_output", value: "hex", rule: always},
	{name: "extra_float_digits", value: "1", rule: always},
	{name: "array_nulls", value: "on", rule: always},

	// Somebody may have stopped all writes on purpose, or the host has, because the disk is full.
	{name: "default_transaction_read_only", value: "off", rule: required, why: "no write works"},
	// Only a superuser can set it.
	{name: "session_replication_role", value: "origin", rule: required, why: "foreign keys and triggers do not work"},
	{name: "synchronous_commit", value: "on", also: "remote_apply", rule: advised,
		why: "a failover loses answered writes (with off, a crash does too)"},
}

// schema is where our tables are.
const schema = "public"

// transactionTimeout is a setting that PostgreSQL has from version 17 on. An older server refuses a
// connection that begins with it, so only SetLater sets it.
const transactionTimeout = "transaction_timeout"

// lookups are the planner settings of the pools that requests use. A request is a handful of index
// look-ups. For a young table, the planner has no statistics, or keeps a plan from when the table
// was small. It then prefers scans, whose cost grows with the table. These settings allow only
// index scans, and save planning time. Without them, each request of a storm of joins needs a third
// more processor time in the database.
var lookups = map[string]string{
	"plan_cache_mode":   "force_generic_plan",
	"enable_indexscan":  "on",
	"enable_seqscan":    "off",
	"enable_bitmapscan": "off",
	"enable_hashjoin":   "off",
	"enable_mergejoin":  "off",
}

// migrationLimits are the settings of a connection that changes the schema. A migration can read a
// large table, so no statement has a time limit. The caller sets lock_timeout.
var migrationLimits = map[string]string{
	"statement_timeout":                   "0",
	"idle_in_transaction_session_timeout": "60000",
	"application_name":                    "mlsd migrate",
}

// apply adds the settings that each connection sets to the parameters of a URL. own are those of the
// pool.
func apply(parameters, own map[string]string) {
	for name, value := range own {
		if _, set := parameters[name]; !set {
			parameters[name] = value
		}
	}
	for _, s := range settings {
		if s.rule == always { // PostgreSQL does not distinguish TimeZone from timezone
			maps.DeleteFunc(parameters, func(name, _ string) bool { return strings.EqualFold(name, s.name) })
		}
		_, set := parameters[s.name]
		if s.name != transactionTimeout && (s.rule == always || s.rule == usual && !set) {
			parameters[s.name] = s.value
		}
	}
}

// ofLibpq are parameters of libpq, so of psql, that the driver does not know.
var ofLibpq = []string{"fallback_application_name", "gssdelegation", "gssencmode", "gsslib", "hostaddr", "keepalives",
	"keepalives_count", "keepalives_idle", "keepalives_interval", "load_balance_hosts", "replication", "requirepeer",
	"requiressl", "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcompression", "sslcrl", "sslcrldir",
	"sslkeylogfile", "tcp_user_timeout"}

// CheckParameters refuses what mlsd does not take from a URL, the environment or a service file.
// parameters are those that the driver does not know, and would send to the server: a misspelt
// sslmode would be one. What mlsd sets always is accepted, and has no effect. Only another
// search_path is refused, because somebody would look for our tables there.
func CheckParameters(parameters map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		_, ofLookups := lookups[name]
		ours := slices.ContainsFunc(settings, func(s setting) bool {
			return s.name == name || s.rule == always && strings.EqualFold(s.name, name)
		})
		switch {
		case strings.EqualFold(name, "search_path") && parameters[name] != schema:
			return fmt.Errorf("%q is no parameter that mlsd takes: its tables are in the schema %s", name, schema)
		case slices.Contains(ofLibpq, name):
			return fmt.Errorf("libpq's %q is not supported here", name)
		case !ours && !ofLookups && name != "options":
			return fmt.Errorf("%q is no parameter of a connection, nor a setting that mlsd takes from the URL (for another "+
				"setting of PostgreSQL: options=-c%%20NAME%%3DVALUE)", name)
		}
		if err := checkValue(name, parameters[name]); err != nil {
			return err
		}
	}
	return nil
}

var (
	numbers  = regexp.MustCompile(`^ *\+?[0-9]+(\.[0-9]+)? *(us|ms|s|min|h|d)? *$`)
	switches = regexp.MustCompile(`(?i)^(on|off|true|false|yes|no|1|0)$`)
)

// checkValue refuses a value that PostgreSQL would refuse for each new session. Our own value tells
// what kind of value a setting has.
func checkValue(name, value string) error {
	own := lookups[name]
	for _, s := range settings {
		if s.name == name && s.rule == usual {
			own = s.value
		}
	}
	switch {
	case numbers.MatchString(own) && !numbers.MatchString(value):
		return fmt.Errorf("%q is %q: want a number or a time, such as %s, 500ms or 15s", name, value, own)
	case switches.MatchString(own) && !switches.MatchString(value):
		return fmt.Errorf("%q is %q: want on or off", name, value)
	}
	return nil
}

// CheckCaches refuses a configuration whose statements the driver cannot keep, because each one
// would fail.
func CheckCaches(cfg *pgx.ConnConfig) error {
	switch {
	case cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && cfg.StatementCacheCapacity < 1:
		return fmt.Errorf("statement_cache_capacity is %d: want at least 1, or none: the driver keeps 512 statements",
			cfg.StatementCacheCapacity)
	case cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheDescribe && cfg.DescriptionCacheCapacity < 1:
		return fmt.Errorf("description_cache_capacity is %d: want at least 1, or none: the driver keeps 512 descriptions",
			cfg.DescriptionCacheCapacity)
	}
	return nil
}
