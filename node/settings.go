package node

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api"
	"mlsd/features/network"
	"mlsd/people/accounts"
	"mlsd/people/quota"
	"mlsd/welcome"
)

// setting is one value that can be set. Its flag is its variable in lower case, without the prefix
// and with dashes.
type setting struct {
	env    string
	usage  string
	value  string // default
	parse  func(c *Config, text string) error
	onOff  bool // its flag can stand without a value
	secret bool // no error and no list shows its value
}

// one returns a setting with a value that is no secret.
func one(env, usage, value string, parse func(c *Config, text string) error) setting {
	return setting{env: env, usage: usage, value: value, parse: parse}
}

// onOff returns a setting that is true or false.
func onOff(env, usage, initial string, field func(*Config) *bool) setting {
	return setting{env: env, usage: usage, value: initial, parse: value(field, boolean), onOff: true}
}

// secret returns a setting that is not shown. check can be nil.
func secret(env, usage string, field func(*Config) *string, check func(string) error) setting {
	return setting{env: env, usage: usage, secret: true, parse: textOrFile(field, check)}
}

func (s setting) flag() string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.env, envPrefix)), "_", "-")
}

const envPrefix = "MLSD_"

var settings = append([]setting{
	one("MLSD_ENV_FILE", "file with settings, one NAME=VALUE a line; a variable or flag wins over it; empty: none, or /etc/mlsd/mlsd.env if mlsd is the Debian package's", "",
		text(func(c *Config) *string { return &c.EnvFile }, nil)), // choose reads the file
	one("MLSD_LISTEN", "address of the public listener; unless it is on loopback, MLSD_SERVICE_DID must be set", "127.0.0.1:8080",
		text(func(c *Config) *string { return &c.Listen }, checkAddress)),
	one("MLSD_ADMIN_LISTEN", "address of the admin listener: console, metrics, health, checks, profiles; unless it is on loopback, MLSD_ADMIN_TOKEN must be set", "127.0.0.1:8081",
		text(func(c *Config) *string { return &c.AdminListen }, checkAddress)),
	secret("MLSD_ADMIN_TOKEN", "token for everything on the admin listener, 16 characters or more, or file:PATH", adminToken, nil),
	secret("MLSD_ADMIN_READ_TOKEN", "token for what changes nothing there: checks, admin methods that read, or file:PATH", readToken, nil),
	secret("MLSD_ADMIN_METRICS_TOKEN", "token for metrics and nothing else there, or file:PATH", metricsToken, nil),
	one("MLSD_ADMIN_HOSTS", "further names and addresses of the admin listener, comma separated; a request with another Host is refused", "", func(c *Config, v string) error {
		c.Admin.Hosts = strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
		return nil
	}),
	one("MLSD_ADMIN_URL", "where mlsd admin finds the admin listener; empty: MLSD_ADMIN_LISTEN on this machine", "",
		text(func(c *Config) *string { return &c.Admin.URL }, checkURL)),
	secret("MLSD_DATABASE_URL", "PostgreSQL to use, or file:PATH; several hosts: a primary and its standbys; empty: one of mlsd's own", databaseURL, checkDatabaseURL),
	secret("MLSD_READ_DATABASE_URL", "standby of that PostgreSQL, to read pages and exports from, or file:PATH; empty: none", readDatabaseURL, checkDatabaseURL),
	one("MLSD_WAIT_FOR_DATABASE", "how long that PostgreSQL may take to answer at the start, such as 60s; 0: one attempt", "0s",
		value(func(c *Config) *time.Duration { return &c.WaitForDatabase }, notNegative)),
	one("MLSD_DATA_DIR", "directory of mlsd's own PostgreSQL; empty: mlsd in XDG_DATA_HOME or ~/.local/share, as root /var/lib/mlsd", "",
		text(func(c *Config) *string { return &c.DataDir }, nil)),
	one("MLSD_WAL_ARCHIVE", "directory to which mlsd's own PostgreSQL copies its WAL, for restores to a moment; empty: none", "",
		text(func(c *Config) *string { return &c.WALArchive }, nil)),
	one("MLSD_SERVICE_DID", "DID that tokens are for; empty: did:web:localhost with the listener's port", "",
		value(func(c *Config) *syntax.DID { return &c.ServiceDID }, serviceDID)),
	one("MLSD_PUBLIC_URL", "where clients reach the service; empty: what a did:web says; another DID needs it", "",
		text(func(c *Config) *string { return &c.PublicURL }, checkURL)),
	one("MLSD_PLC_URL", "PLC directory", "https://plc.directory",
		text(func(c *Config) *string { return &c.PLCURL }, checkPLCURL)),
	one("MLSD_SERVICES", "other services that this one deals with: DIDs, and domains for the did:web services in them; empty: none; all: whoever asks", "",
		value(func(c *Config) *network.Trust { return &c.Services }, network.ParseTrust)),
	one("MLSD_SERVICE_KEY_FILE", "file with the key that the service signs with for other services, made at the first start with MLSD_SERVICES; empty: service.key in MLSD_DATA_DIR", "",
		text(func(c *Config) *string { return &c.ServiceKeyFile }, nil)),
	onOff("MLSD_ALLOW_LOOPBACK", "fetch did:web documents from this machine too, and call webhooks on it (development)", "false", func(c *Config) *bool { return &c.AllowLoopback }),
	one("MLSD_WELCOME_GRACE", "how long a fetched Welcome waits for its confirmation", "5m",
		value(func(c *Config) *time.Duration { return &c.Welcomes.Grace }, positive)),
	one("MLSD_WELCOME_ON_GRACE_EXPIRY", "what happens to a Welcome that was not confirmed: release (it can be fetched again) or consume (silence counts as success)", string(welcome.Release), func(c *Config, v string) error {
		c.Welcomes.OnExpiry = welcome.ExpiryPolicy(v)
		return oneOf(v, string(welcome.Release), string(welcome.Consume))
	}),
	one("MLSD_EVENT_RETENTION", "how long events are kept for subscribers that were away, at least; up to a day more", "168h",
		value(func(c *Config) *time.Duration { return &c.EventRetention }, positive)),
	one("MLSD_MESSAGE_RETENTION", "how long application messages are kept, a day longer than events at least; 0: for ever; empty: for ever, with a warning", "", func(c *Config, v string) (err error) {
		if c.KeptUnasked = v == ""; c.KeptUnasked {
			return nil
		}
		c.MessageRetention, err = notNegative(v)
		return err
	}),
	one("MLSD_ATTACHMENTS", "where attachments are kept: a directory, a bucket such as https://s3.example.com/BUCKET, or off; "+
		"empty: MLSD_DATA_DIR with mlsd's own PostgreSQL, else off", "",
		func(c *Config, v string) error { return c.Attachments.parse(v) }),
	one("MLSD_ATTACHMENT_MAX_SIZE", "how large an attachment can be, 1GiB at most", "50MiB", func(c *Config, v string) (err error) {
		if c.Attachments.MaxSize, err = amount(v, true); err == nil && (c.Attachments.MaxSize < 1 || c.Attachments.MaxSize > 1<<30) {
			err = errors.New("want 1 byte to 1GiB, such as 50MiB")
		}
		return err
	}),
	one("MLSD_S3_ACCESS_KEY", "access key of the bucket, which may put, get, delete and list objects", "",
		text(func(c *Config) *string { return &c.Attachments.S3.Key }, nil)),
	secret("MLSD_S3_SECRET_KEY", "its secret key, or file:PATH", s3Secret, nil),
	one("MLSD_IDEMPOTENCY_TTL", "how long idempotency records last, by operation, comma separated: createConvo=48h,addMembers=24h", "", func(c *Config, v string) (err error) {
		c.Lifetimes, err = c.Lifetimes.WithLives(v)
		return err
	}),
	one("MLSD_IDEMPOTENCY_LEASE", "how long work outside the database is trusted without a heartbeat, by operation, 15s to 1h: push=1m,default=5m", "", func(c *Config, v string) (err error) {
		c.Lifetimes, err = c.Lifetimes.WithLeases(v)
		return err
	}),
	one("MLSD_APNS_KEY_FILE", "key (.p8) for Apple's push service; set all three or none", "",
		text(func(c *Config) *string { return &c.APNs.File }, nil)),
	one("MLSD_APNS_KEY_ID", "id of that key", "",
		text(func(c *Config) *string { return &c.APNs.KeyID }, nil)),
	one("MLSD_APNS_TEAM_ID", "id of the team that it belongs to", "",
		text(func(c *Config) *string { return &c.APNs.TeamID }, nil)),
	one("MLSD_APNS_HOST", "URL that stands for Apple's push service (tests)", "",
		text(func(c *Config) *string { return &c.APNsHost }, checkURL)),
	one("MLSD_VAPID_KEY_FILE", "key (PEM, PKCS #8, P-256) that identifies the server to push services of browsers and Android; empty: no Web Push", "",
		text(func(c *Config) *string { return &c.VAPIDKeyFile }, nil)),
	onOff("MLSD_PUSH_WEBHOOKS", "let devices register a URL that is called for a push: https, public hosts, port 443", "true", func(c *Config) *bool { return &c.Webhooks }),
	one("MLSD_MESSAGE_EPOCH_WINDOW", "how many epochs a message can be behind its convo", "0",
		value(func(c *Config) *int64 { return &c.EpochWindow }, whole[int64]("3"))),
	one("MLSD_RATE_DID", "units of one DID: per second, and at once; most requests cost one", "20/400",
		value(func(c *Config) *api.Rate { return &c.Rates.DID }, bucket(400))),
	one("MLSD_RATE_IP", "requests of one address whose caller is not known: per second, and at once", "200/2000",
		value(func(c *Config) *api.Rate { return &c.Rates.IP }, bucket(2000))),
	one("MLSD_ADMIT", "whose requests are served: open (everybody's), closed (those of accounts that have something here), or a file "+
		"such as /etc/mlsd/admitted with DIDs, one a line; read again when it changes, and on SIGHUP", string(accounts.ModeOpen),
		func(c *Config, v string) error {
			if filepath.IsAbs(v) {
				c.Admit, c.AdmitFile = accounts.ModeAllowlist, v
				return nil
			}
			if c.Admit = accounts.Mode(v); c.Admit != accounts.ModeOpen && c.Admit != accounts.ModeClosed {
				return errors.New("want open, closed, or a file such as /etc/mlsd/admitted")
			}
			return nil
		}),
	one("MLSD_RELAY_URL", "relay, PDS or Jetstream that says which accounts are deactivated, taken down or deleted, and whose keys changed; empty: none is followed", "",
		text(func(c *Config) *string { return &c.RelayURL }, checkRelayURL)),
	one("MLSD_ERASE_AFTER", "how long after an account was deleted its data is to be erased; 0: never", "720h",
		value(func(c *Config) *time.Duration { return &c.EraseAfter }, notNegative)),
	one("MLSD_TRUSTED_PROXIES", "networks whose X-Forwarded-For is believed, comma separated: 10.0.0.0/8,fd00::/8", "",
		value(func(c *Config) *[]netip.Prefix { return &c.TrustedProxies }, proxies)),
	one("MLSD_REPORT_KEY", "public key that reports of abuse are sealed to, as mlsd report-key writes it, or file:PATH; empty: no reports are taken", "",
		textOrFile(func(c *Config) *string { return &c.ReportKey }, checkReportKey)),
	one("MLSD_REQUEST_SAMPLE", "one of so many successful requests is recorded, as all are that fail or take a second; 0: none", "100",
		value(func(c *Config) *int { return &c.Requests.Sample }, whole[int]("100"))),
	one("MLSD_REQUEST_RETENTION", "how long records of single requests are kept, 1h to 7d; a million rows at most", "72h", func(c *Config, v string) (err error) {
		if c.Requests.Keep, err = positive(v); err == nil && (c.Requests.Keep < time.Hour || c.Requests.Keep > 7*24*time.Hour) {
			err = errors.New("want 1h to 7d, such as 72h")
		}
		return err
	}),
	one("MLSD_LOG_LEVEL", "debug, info, warn or error", "info", func(c *Config, v string) error {
		if c.LogLevel.UnmarshalText([]byte(v)) != nil {
			return errors.New("want one of debug, info, warn, error")
		}
		return nil
	}),
	one("MLSD_LOG_FORMAT", "json or text", "json",
		text(func(c *Config) *string { return &c.LogFormat }, func(v string) error { return oneOf(v, "json", "text") })),
	one("MLSD_TRACES_URL", "OTLP/HTTP endpoint that gets traces, such as http://127.0.0.1:4318/v1/traces; empty: none are made", "",
		text(func(c *Config) *string { return &c.TracesURL }, checkURL)),
	one("MLSD_TRACES_SAMPLE", "share of requests that are traced, from 0 to 1", "0.01", value(func(c *Config) *float64 { return &c.TracesSample }, share)),
	onOff("MLSD_FAILPOINTS", "let the admin listener inject faults (tests)", "false", func(c *Config) *bool { return &c.Failpoints }),
}, quotaSettings()...)

// quotaSettings returns the settings of the table of quotas.
func quotaSettings() (all []setting) {
	for _, q := range quota.All() {
		if q.Setting == "" {
			continue
		}
		value := strconv.FormatInt(q.Default, 10)
		if q.Bytes {
			value = strconv.FormatInt(q.Default>>20, 10) + "MiB"
		}
		all = append(all, one(q.Setting, q.Counts+"; 0: any number", value, func(c *Config, v string) (err error) {
			c.Quotas[q.Name], err = amount(v, q.Bytes)
			return err
		}))
	}
	return all
}

func s3Secret(c *Config) *string        { return &c.Attachments.S3.Secret }
func databaseURL(c *Config) *string     { return &c.DatabaseURL }
func readDatabaseURL(c *Config) *string { return &c.ReadDatabaseURL }
func adminToken(c *Config) *string      { return &c.Admin.Tokens.Write }
func readToken(c *Config) *string       { return &c.Admin.Tokens.Read }
func metricsToken(c *Config) *string    { return &c.Admin.Tokens.Metrics }
