package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/accounts"
	"mlsd/internal/quota"
	"mlsd/internal/relay"
	"mlsd/internal/serviceauth"
	"mlsd/welcome"
)

// setting is one value that can be set. Its flag is its variable in lower case, without the prefix
// and with dashes.
type setting struct {
	env   string
	usage string
	value string // default
	parse func(c *Config, text string) error
}

func (s setting) flag() string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.env, envPrefix)), "_", "-")
}

const envPrefix = "MLSD_"

var settings = append([]setting{
	{"MLSD_LISTEN", "address of the public listener", "127.0.0.1:8080", func(c *Config, v string) error {
		c.Listen = v
		return checkAddress(v)
	}},
	{"MLSD_ADMIN_LISTEN", "address of the admin listener (metrics, health, profiles)", "127.0.0.1:8081", func(c *Config, v string) error {
		c.AdminListen = v
		return checkAddress(v)
	}},
	{"MLSD_ADMIN_TOKEN", "token for everything on the admin listener; needed unless that is on loopback", "", func(c *Config, v string) error {
		c.Admin.Token = v
		return nil
	}},
	{"MLSD_ADMIN_TOKEN_FILE", "file that holds that token instead", "", func(c *Config, v string) error {
		c.Admin.TokenFile = v
		return nil
	}},
	{"MLSD_ADMIN_READ_TOKEN", "token for what changes nothing there: metrics, checks, admin methods that read", "", func(c *Config, v string) error {
		c.Admin.ReadToken = v
		return nil
	}},
	{"MLSD_ADMIN_READ_TOKEN_FILE", "file that holds that token instead", "", func(c *Config, v string) error {
		c.Admin.ReadTokenFile = v
		return nil
	}},
	{"MLSD_ADMIN_HOSTS", "further names and addresses of the admin listener, comma separated", "", func(c *Config, v string) error {
		c.Admin.Hosts = strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
		return nil
	}},
	{"MLSD_ADMIN_URL", "where mlsd admin finds the admin listener; empty: MLSD_ADMIN_LISTEN on this machine", "", func(c *Config, v string) error {
		c.Admin.URL = v
		return checkURL(v)
	}},
	{"MLSD_DATABASE_URL", "PostgreSQL to use; empty: one of mlsd's own", "", func(c *Config, v string) error {
		c.DatabaseURL = v
		return checkDatabaseURL(v)
	}},
	{"MLSD_DATA_DIR", "directory of mlsd's own PostgreSQL; empty: the user's data directory", "", func(c *Config, v string) error {
		c.DataDir = v
		return nil
	}},
	{"MLSD_WAL_ARCHIVE", "directory to which mlsd's own PostgreSQL copies its WAL, for restores to a moment; empty: none", "", func(c *Config, v string) error {
		c.WALArchive = v
		return nil
	}},
	{"MLSD_SERVICE_DID", "DID that tokens are for; empty: did:web:localhost with the listener's port", "", func(c *Config, v string) (err error) {
		if v != "" {
			c.ServiceDID, err = syntax.ParseDID(v)
		}
		return err
	}},
	{"MLSD_PUBLIC_URL", "where clients reach the service; empty: what a did:web says", "", func(c *Config, v string) error {
		c.PublicURL = v
		return checkURL(v)
	}},
	{"MLSD_PLC_URL", "PLC directory", "https://plc.directory", func(c *Config, v string) error {
		c.PLCURL = v
		_, err := serviceauth.NewDirectory(serviceauth.DirectoryConfig{PLCURL: v}) // checks the URL before anything is started
		return err
	}},
	{"MLSD_ALLOW_LOOPBACK", "fetch did:web documents from this machine too, and call webhooks on it (development)", "false", boolean(func(c *Config) *bool { return &c.AllowLoopback })},
	{"MLSD_WELCOME_GRACE", "how long a fetched Welcome waits for its confirmation", "5m", func(c *Config, v string) (err error) {
		if c.Welcomes.Grace, err = time.ParseDuration(v); err == nil && c.Welcomes.Grace <= 0 {
			err = errors.New("must be positive")
		}
		return err
	}},
	{"MLSD_WELCOME_ON_GRACE_EXPIRY", "release or consume a Welcome that was not confirmed", string(welcome.Release), func(c *Config, v string) error {
		c.Welcomes.OnExpiry = welcome.ExpiryPolicy(v)
		return oneOf(v, string(welcome.Release), string(welcome.Consume))
	}},
	{"MLSD_EVENT_RETENTION", "how long events are kept for subscribers that were away, at least", "168h", func(c *Config, v string) (err error) {
		if c.EventRetention, err = time.ParseDuration(v); err == nil && c.EventRetention <= 0 {
			err = errors.New("must be positive")
		}
		return err
	}},
	{"MLSD_MESSAGE_RETENTION", "how long messages are kept, a day longer than events at least; 0: for ever; empty: for ever, with a warning", "", func(c *Config, v string) (err error) {
		if c.KeptUnasked = v == ""; c.KeptUnasked {
			return nil
		}
		if c.MessageRetention, err = time.ParseDuration(v); err == nil && c.MessageRetention < 0 {
			err = errors.New("must not be negative")
		}
		return err
	}},
	{"MLSD_IDEMPOTENCY_TTL", "how long idempotency records last, by operation, comma separated: createConvo=48h,addMembers=24h", "", func(c *Config, v string) (err error) {
		c.Lifetimes, err = c.Lifetimes.WithLives(v)
		return err
	}},
	{"MLSD_IDEMPOTENCY_LEASE", "how long work outside the database is trusted without a heartbeat, by operation: push=1m,default=5m", "", func(c *Config, v string) (err error) {
		c.Lifetimes, err = c.Lifetimes.WithLeases(v)
		return err
	}},
	{"MLSD_APNS_KEY_FILE", "key (.p8) for Apple's push service; empty: none", "", func(c *Config, v string) error {
		c.APNs.File = v
		return nil
	}},
	{"MLSD_APNS_KEY_ID", "id of that key", "", func(c *Config, v string) error {
		c.APNs.KeyID = v
		return nil
	}},
	{"MLSD_APNS_TEAM_ID", "id of the team that it belongs to", "", func(c *Config, v string) error {
		c.APNs.TeamID = v
		return nil
	}},
	{"MLSD_APNS_HOST", "URL that stands for Apple's push service (tests)", "", func(c *Config, v string) error {
		c.APNsHost = v
		return checkURL(v)
	}},
	{"MLSD_PUSH_WEBHOOKS", "let devices register a URL that is called for a push", "true", boolean(func(c *Config) *bool { return &c.Webhooks })},
	{"MLSD_PUSH_TARGETS", "devices of one account that can be registered for pushes", "10", count(func(c *Config) *int { return &c.PushTargets })},
	{"MLSD_MESSAGE_EPOCH_WINDOW", "how many epochs a message can be behind its convo", "0", func(c *Config, v string) (err error) {
		if c.EpochWindow, err = strconv.ParseInt(v, 10, 32); err == nil && c.EpochWindow < 0 {
			err = errors.New("must not be negative")
		}
		return err
	}},
	{"MLSD_RATE_DID", "requests per second of one DID", "20", number(func(c *Config) *float64 { return &c.Rates.DID.PerSecond })},
	{"MLSD_RATE_DID_BURST", "requests of one DID at once", "400", count(func(c *Config) *int { return &c.Rates.DID.Burst })},
	{"MLSD_RATE_IP", "requests per second of one IP address", "200", number(func(c *Config) *float64 { return &c.Rates.IP.PerSecond })},
	{"MLSD_RATE_IP_BURST", "requests of one IP address at once", "2000", count(func(c *Config) *int { return &c.Rates.IP.Burst })},
	{"MLSD_ADMIT", "whose requests are served: open (everybody's), allowlist (those of MLSD_ADMIT_FILE) or closed (those of accounts that are known here)", string(accounts.ModeOpen), func(c *Config, v string) error {
		c.Admit = accounts.Mode(v)
		return oneOf(v, string(accounts.ModeOpen), string(accounts.ModeAllowlist), string(accounts.ModeClosed))
	}},
	{"MLSD_ADMIT_FILE", "file with the DIDs that are served with MLSD_ADMIT=allowlist, one a line", "", func(c *Config, v string) error {
		c.AdmitFile = v
		return nil
	}},
	{"MLSD_RELAY_URL", "relay, PDS or Jetstream that says which accounts are deactivated, taken down or deleted, and whose keys changed; empty: none is followed", "", func(c *Config, v string) (err error) {
		if c.RelayURL = v; v != "" {
			_, err = relay.ParseSource(v, "") // checks the URL before anything is started
		}
		return err
	}},
	{"MLSD_RELAY_KIND", "repos (a relay or a PDS) or jetstream; empty: jetstream if the URL's path ends with /subscribe, else repos", "", func(c *Config, v string) error {
		c.RelayKind = relay.Kind(v)
		return oneOf(v, "", string(relay.Repos), string(relay.Jetstream))
	}},
	{"MLSD_ERASE_AFTER", "how long after an account was deleted its data is to be erased; 0: never", "720h", func(c *Config, v string) (err error) {
		if c.EraseAfter, err = time.ParseDuration(v); err == nil && c.EraseAfter < 0 {
			err = errors.New("must not be negative")
		}
		return err
	}},
	{"MLSD_TRUSTED_PROXIES", "networks whose X-Forwarded-For is believed, comma separated", "", func(c *Config, v string) error {
		for _, text := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' }) {
			network, err := netip.ParsePrefix(text)
			if err != nil {
				return err
			}
			c.TrustedProxies = append(c.TrustedProxies, network)
		}
		return nil
	}},
	{"MLSD_LOG_LEVEL", "debug, info, warn or error", "info", func(c *Config, v string) error {
		return c.LogLevel.UnmarshalText([]byte(v))
	}},
	{"MLSD_LOG_FORMAT", "json or text", "json", func(c *Config, v string) error {
		c.LogFormat = v
		return oneOf(v, "json", "text")
	}},
	{"MLSD_TRACES_URL", "OTLP/HTTP endpoint that gets traces, such as http://127.0.0.1:4318/v1/traces; empty: none are made", "", func(c *Config, v string) error {
		c.TracesURL = v
		return checkURL(v)
	}},
	{"MLSD_TRACES_SAMPLE", "share of requests that are traced, from 0 to 1", "0.01", func(c *Config, v string) (err error) {
		if c.TracesSample, err = strconv.ParseFloat(v, 64); err == nil && !(c.TracesSample >= 0 && c.TracesSample <= 1) {
			err = errors.New("must be from 0 to 1")
		}
		return err
	}},
	{"MLSD_FAILPOINTS", "let the admin listener inject faults (tests)", "false", boolean(func(c *Config) *bool { return &c.Failpoints })},
}, quotaSettings()...)

// quotaSettings returns the settings of the table of quotas.
func quotaSettings() (all []setting) {
	for _, q := range quota.All() {
		value := strconv.FormatInt(q.Default, 10)
		if q.Bytes {
			value = strconv.FormatInt(q.Default>>20, 10) + "MiB"
		}
		all = append(all, setting{q.Setting, q.Counts + "; 0: any number", value, func(c *Config, v string) (err error) {
			c.Quotas[q.Name], err = amount(v, q.Bytes)
			return err
		}})
	}
	return all
}

// amount parses a number that is not negative. One of bytes can have the unit KiB, MiB or GiB.
func amount(v string, bytes bool) (int64, error) {
	shift := 0
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if number, found := strings.CutSuffix(v, unit); found && bytes {
			v, shift = number, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err == nil && (n < 0 || n > math.MaxInt64>>shift) {
		err = errors.New("must not be negative, and fit into 63 bits")
	}
	return n << shift, err
}

func boolean(field func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, v string) (err error) {
		*field(c), err = strconv.ParseBool(v)
		return err
	}
}

func number(field func(*Config) *float64) func(*Config, string) error {
	return func(c *Config, v string) (err error) {
		if *field(c), err = strconv.ParseFloat(v, 64); err == nil && (!(*field(c) > 0) || math.IsInf(*field(c), 0)) {
			err = errors.New("must be positive and finite")
		}
		return err
	}
}

func count(field func(*Config) *int) func(*Config, string) error {
	return func(c *Config, v string) (err error) {
		if *field(c), err = strconv.Atoi(v); err == nil && *field(c) <= 0 {
			err = errors.New("must be positive")
		}
		return err
	}
}

func checkAddress(v string) error {
	_, port, err := net.SplitHostPort(v)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	return err
}

// checkDatabaseURL refuses a URL that the driver cannot read. It does not return the driver's
// error, which can quote the password.
func checkDatabaseURL(v string) error {
	if v == "" {
		return nil
	}
	_, err := pgxpool.ParseConfig(v)
	var file *fs.PathError // of a certificate, say
	switch {
	case err == nil:
		return nil
	case errors.As(err, &file):
		return file
	}
	return errors.New("is not a PostgreSQL URL that can be read (special characters in a password must be percent-encoded)")
}

func checkURL(v string) error {
	u, err := url.Parse(v)
	if err == nil && v != "" && (u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		err = errors.New("must be an http or https URL")
	}
	return err
}

func oneOf(v string, allowed ...string) error {
	for _, a := range allowed {
		if v == a {
			return nil
		}
	}
	return fmt.Errorf("must be one of %s", strings.Join(allowed, ", "))
}
