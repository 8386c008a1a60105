package node

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/urfave/cli/v3"

	"mlsd/api"
	"mlsd/features/attachments/s3store"
	"mlsd/features/network"
	"mlsd/features/push"
	"mlsd/idem"
	"mlsd/internal/localpg"
	"mlsd/internal/worker"
	"mlsd/operator"
	"mlsd/people/accounts"
	"mlsd/people/quota"
	"mlsd/welcome"
)

// Config is what an operator can set by flag, by environment variable or in a file.
type Config struct {
	// EnvFile (MLSD_ENV_FILE) is the file with settings. Empty means none.
	EnvFile string
	// Listen (MLSD_LISTEN) is the address of the public listener.
	Listen string
	// AdminListen (MLSD_ADMIN_LISTEN) is the address of the admin listener: metrics, health,
	// profiles, and what the command admin calls.
	AdminListen string
	// Admin says who may use the admin listener (MLSD_ADMIN_TOKEN, _READ_TOKEN, _METRICS_TOKEN,
	// MLSD_ADMIN_HOSTS), and where the command admin finds the listener (MLSD_ADMIN_URL).
	Admin AdminConfig
	// DatabaseURL (MLSD_DATABASE_URL) is a PostgreSQL that the operator runs. Empty means that mlsd
	// runs its own in DataDir.
	DatabaseURL string
	// ReadDatabaseURL (MLSD_READ_DATABASE_URL) is a standby of DatabaseURL, for reads. Empty means
	// none.
	ReadDatabaseURL string
	// WaitForDatabase (MLSD_WAIT_FOR_DATABASE) is how long the operator's PostgreSQL may take to
	// answer at the start.
	WaitForDatabase time.Duration
	// DataDir (MLSD_DATA_DIR) holds the private PostgreSQL.
	DataDir string
	// WALArchive (MLSD_WAL_ARCHIVE) is a directory to which the private PostgreSQL copies its WAL, and
	// from which the command restore takes the WAL. Empty means none.
	WALArchive string
	// ServiceDID (MLSD_SERVICE_DID) is the audience of tokens. Empty means did:web:localhost with the
	// public listener's port.
	ServiceDID syntax.DID
	// PublicURL (MLSD_PUBLIC_URL) is where clients reach the service. Empty means the URL of
	// ServiceDID, if that is a did:web. With any other ServiceDID, PublicURL must be set.
	PublicURL string
	// PLCURL (MLSD_PLC_URL) is the PLC directory.
	PLCURL string
	// Services (MLSD_SERVICES) are the other services that this service deals with.
	Services network.Trust
	// ServiceKeyFile (MLSD_SERVICE_KEY_FILE) has the key that the service signs with for other
	// services. It is made at the first start, unless there are no Services.
	ServiceKeyFile string
	// AllowLoopback (MLSD_ALLOW_LOOPBACK) allows did:web documents and webhooks on this machine.
	// For development only.
	AllowLoopback bool
	// Welcomes has Grace (MLSD_WELCOME_GRACE) and OnExpiry (MLSD_WELCOME_ON_GRACE_EXPIRY).
	Welcomes welcome.Policy
	// APNs (MLSD_APNS_KEY_FILE, MLSD_APNS_KEY_ID, MLSD_APNS_TEAM_ID) is the key for Apple's push
	// service. Set all three variables, or none.
	APNs push.APNsKey
	// APNsHost (MLSD_APNS_HOST) replaces Apple's service in tests.
	APNsHost string
	// VAPIDKeyFile (MLSD_VAPID_KEY_FILE) is the key that identifies the server to the push services of
	// browsers. Empty: there is no Web Push.
	VAPIDKeyFile string
	// Webhooks (MLSD_PUSH_WEBHOOKS) allows push targets that are URLs.
	Webhooks bool
	// EpochWindow (MLSD_MESSAGE_EPOCH_WINDOW) is how many epochs a message can be behind its convo.
	EpochWindow int64
	// EventRetention (MLSD_EVENT_RETENTION) is how long events are kept. They are deleted a day at
	// a time, up to a day later.
	EventRetention time.Duration
	// MessageRetention (MLSD_MESSAGE_RETENTION) is how long application messages are kept. 0 means for
	// ever. KeptUnasked says that the operator has not set the retention: the server warns of that.
	MessageRetention time.Duration
	KeptUnasked      bool
	// Attachments says where encrypted files are kept (MLSD_ATTACHMENTS, MLSD_S3_*),
	// and how large they can be (MLSD_ATTACHMENT_MAX_SIZE).
	Attachments AttachmentsConfig
	// Lifetimes of idempotency records (MLSD_IDEMPOTENCY_TTL) and of leases
	// (MLSD_IDEMPOTENCY_LEASE), by operation.
	Lifetimes idem.Lifetimes
	// Rates are in requests, by DID (MLSD_RATE_DID) and by IP address (MLSD_RATE_IP).
	Rates api.Rates
	// Quotas (MLSD_QUOTA_*) bound what one DID, one address and one convo store and do in a day: see
	// package quota.
	Quotas quota.Limits
	// Admit (MLSD_ADMIT) says whom the node serves. AdmitFile, from the same setting, is the file with
	// the DIDs that accounts.ModeAllowlist serves.
	Admit     accounts.Mode
	AdmitFile string
	// RelayURL (MLSD_RELAY_URL) is the relay whose events tell the status of accounts. Empty means
	// none.
	RelayURL string
	// EraseAfter (MLSD_ERASE_AFTER) is the time from the deletion of an account in the network to the
	// erasure of its data. 0 means that the data stays.
	EraseAfter time.Duration
	// ReportKey (MLSD_REPORT_KEY or its file) is the public half of the operator's key for reports of
	// abuse. Empty means that no reports are taken.
	ReportKey string
	// TrustedProxies (MLSD_TRUSTED_PROXIES) are the networks whose X-Forwarded-For is believed. Empty
	// means none.
	TrustedProxies []netip.Prefix
	// LogLevel (MLSD_LOG_LEVEL) and LogFormat (MLSD_LOG_FORMAT: json or text).
	LogLevel  slog.Level
	LogFormat string
	// Requests says which share of successes is recorded: one in Sample (MLSD_REQUEST_SAMPLE; 0 means
	// none). It also says how long rows of requests are kept (MLSD_REQUEST_RETENTION).
	Requests RequestsConfig
	// TracesURL (MLSD_TRACES_URL) is the collector that gets traces. Empty means that there are no
	// traces. TracesSample (MLSD_TRACES_SAMPLE) is the share of requests that are traced.
	TracesURL    string
	TracesSample float64
	// Clock is not a setting. It is the clock of workers, extensions of leases, and scrapes.
	Clock worker.Clock
	// Now is not a setting. It is the clock that judges the times of tokens. The default is time.Now.
	Now func() time.Time
	// Failpoints (MLSD_FAILPOINTS) lets the admin listener stop writes at named points (POST
	// /failpoints). For fault tests only.
	Failpoints bool
}

// Kinds of stores of attachments.
const (
	attachmentsByDefault = "" // a directory if mlsd runs its own PostgreSQL, otherwise off
	attachmentsOff       = "off"
	attachmentsDirectory = "directory"
	attachmentsS3        = "s3"
)

// AttachmentsConfig says where attachments are kept.
type AttachmentsConfig struct {
	kind    string // one of the kinds above
	Dir     string
	MaxSize int64 // in bytes
	S3      s3store.Config
}

// parse reads where attachments are kept: a directory, the URL of a bucket, or off.
func (a *AttachmentsConfig) parse(v string) error {
	switch {
	case v == attachmentsByDefault, v == attachmentsOff:
		a.kind = v
	case filepath.IsAbs(v):
		a.kind, a.Dir = attachmentsDirectory, v
	default:
		a.kind = attachmentsS3
		return a.parseBucket(v)
	}
	return nil
}

// parseBucket reads the URL of a bucket, such as https://s3.example.com/files?region=eu-central-1.
func (a *AttachmentsConfig) parseBucket(v string) error {
	u, err := url.Parse(v)
	wanted := errors.New("want off, a directory such as /srv/mlsd-files, or a bucket such as " +
		"https://s3.example.com/BUCKET?region=us-east-1")
	if err != nil || checkURL(v) != nil || u.User != nil || u.Fragment != "" {
		return wanted
	}
	query := u.Query()
	a.S3.Region = query.Get("region")
	query.Del("region")
	endpoint, bucket := path.Split(strings.TrimSuffix(u.Path, "/"))
	if bucket == "" || len(query) > 0 {
		return wanted
	}
	a.S3.Bucket = bucket
	a.S3.Endpoint = u.Scheme + "://" + u.Host + strings.TrimSuffix(endpoint, "/")
	return nil
}

// RequestsConfig says what is recorded of requests: see package requests.
type RequestsConfig struct {
	Sample int
	Keep   time.Duration
}

// AdminConfig says who may use the admin listener, and where it is.
type AdminConfig struct {
	Tokens operator.Tokens
	Hosts  []string // besides loopback and the listener's own address
	URL    string   // for the command admin
}

// flags returns the settings as command-line flags. A variable of env sets its flag unless the
// command line does.
func flags(env map[string]string) []cli.Flag {
	out := make([]cli.Flag, len(settings))
	for i, s := range settings {
		var (
			usage   = s.usage + " (" + s.env + ")"
			sources = cli.NewValueSourceChain(fromEnv{env, s.env})
		)
		if s.onOff {
			out[i] = &switchFlag{Name: s.flag(), Usage: usage, Value: s.value, DefaultText: s.value, Sources: sources}
		} else {
			out[i] = &cli.StringFlag{Name: s.flag(), Usage: usage, Value: s.value, DefaultText: strconv.Quote(s.value),
				Sources: sources}
		}
	}
	return out
}

// environment reads the MLSD_* variables. An unknown one is an error, because it has no effect.
func environment(environ []string) (map[string]string, error) {
	env := map[string]string{}
	var unknown []string
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		switch {
		case !strings.HasPrefix(name, envPrefix), strings.HasPrefix(name, testPrefix), name == vectorsVariable,
			name == agentsVariable:
		case !known(name):
			unknown = append(unknown, name)
		default:
			env[name] = value
		}
	}
	if len(unknown) > 0 {
		sort.Strings(unknown)
		return nil, fmt.Errorf("unknown environment variables: %s", strings.Join(unknown, ", "))
	}
	return env, nil
}

// Variables that only tests read. They can be set in the same shell.
const (
	testPrefix      = "MLSD_TEST_"
	vectorsVariable = "MLSD_MLS_VECTORS"
	agentsVariable  = "MLSD_MLS_AGENTS"
)

// Chosen is the value of a setting, and where the value was set.
type Chosen struct {
	Variable, Value string
	File            string // file and line; "" if the value is not from a file
}

// choose returns the value of each setting, by its variable: what the command line says, else the
// environment, else the file that MLSD_ENV_FILE names, else the default.
func choose(cmd *cli.Command) (map[string]Chosen, error) {
	path := cmd.String(envFileFlag)
	file, err := readEnvFile(path)
	if err != nil {
		return nil, explainUnreadable(err, path, cmd.FullName())
	}
	all := map[string]Chosen{}
	for _, s := range settings {
		inFile, found := file[s.env]
		if cmd.IsSet(s.flag()) || !found {
			inFile = Chosen{Variable: s.env, Value: cmd.String(s.flag())}
		}
		all[s.env] = inFile
	}
	return all, nil
}

// Changed returns the settings that differ from their defaults. It does not show secrets.
func Changed(cmd *cli.Command) (changed []Chosen, err error) {
	all, err := choose(cmd)
	for _, s := range settings {
		v := all[s.env]
		if v.Value == s.value {
			continue
		}
		if s.secret {
			v.Value = "(not shown)"
		}
		changed = append(changed, v)
	}
	return changed, err
}

// configure reads the configuration. The error names every setting whose value is wrong by itself.
func configure(cmd *cli.Command) (Config, error) {
	c := Config{Lifetimes: api.Lifetimes(), Quotas: quota.Limits{}}
	all, err := choose(cmd)
	if err != nil {
		return c, err
	}
	var errs []error
	for _, s := range settings {
		if err := s.parse(&c, all[s.env].Value); err != nil {
			errs = append(errs, s.refuse(all[s.env], err))
		}
	}
	if len(errs) > 0 {
		return c, errors.Join(errs...)
	}
	c.Quotas.Complete()
	if least := c.EventRetention + 24*time.Hour; c.MessageRetention != 0 && c.MessageRetention < least {
		// A reader of an event must find its message, and a late retry must find the message's key.
		// Events are deleted a day at a time.
		return c, fmt.Errorf("--message-retention (MLSD_MESSAGE_RETENTION) must be 0 or at least %s, a day longer than "+
			"MLSD_EVENT_RETENTION", least)
	}
	if c.DataDir == "" && c.DatabaseURL == "" {
		dir, err := localpg.DefaultDataDir()
		if err != nil {
			return c, fmt.Errorf("find the data directory: %w", err)
		}
		c.DataDir = dir
	}
	if c.ServiceKeyFile == "" && !c.Services.Nobody() {
		dir, err := localpg.DefaultDataDir()
		if c.DataDir == "" && err != nil {
			return c, fmt.Errorf("set MLSD_SERVICE_KEY_FILE: %w", err)
		}
		c.ServiceKeyFile = filepath.Join(cmp.Or(c.DataDir, dir), "service.key")
	}
	return c, c.completeAttachments()
}

// Sources says where the settings are read from.
func (c Config) Sources() string {
	if c.EnvFile == "" {
		return "flags and the environment, and no file: --env-file (MLSD_ENV_FILE) names none"
	}
	return "flags, the environment and " + c.EnvFile
}

// completeAttachments chooses the store of attachments, and checks that it is described.
func (c *Config) completeAttachments() error {
	a := &c.Attachments
	switch {
	case a.kind == attachmentsByDefault && c.DatabaseURL == "":
		a.kind, a.Dir = attachmentsDirectory, filepath.Join(c.DataDir, "attachments")
	case a.kind == attachmentsByDefault:
		a.kind = attachmentsOff
	case a.kind == attachmentsS3 && (a.S3.Key == "" || a.S3.Secret == ""):
		return errors.New("--attachments (MLSD_ATTACHMENTS) is a bucket: set MLSD_S3_ACCESS_KEY and MLSD_S3_SECRET_KEY")
	}
	return nil
}

// refuse says which setting has which value, and what is wrong with the value. It shows no secret.
func (s setting) refuse(v Chosen, err error) error {
	where := s.env
	if v.File != "" {
		where += " in " + v.File
	}
	if s.secret {
		return fmt.Errorf("--%s (%s): %w", s.flag(), where, err)
	}
	return fmt.Errorf("--%s (%s) is %q: %w", s.flag(), where, v.Value, err)
}
