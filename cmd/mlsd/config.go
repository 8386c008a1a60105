package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/urfave/cli/v3"

	"mlsd/accounts"
	"mlsd/admin"
	"mlsd/api"
	"mlsd/idem"
	"mlsd/internal/localpg"
	"mlsd/internal/quota"
	"mlsd/internal/relay"
	"mlsd/push"
	"mlsd/welcome"
)

// Config is what an operator can set by flag or by environment variable.
type Config struct {
	// Listen (MLSD_LISTEN) is the address of the public listener.
	Listen string
	// AdminListen (MLSD_ADMIN_LISTEN) is the address of the admin listener: metrics, health,
	// profiles, and what the command admin calls.
	AdminListen string
	// Admin: who may use the admin listener (MLSD_ADMIN_TOKEN, MLSD_ADMIN_READ_TOKEN and their files,
	// MLSD_ADMIN_HOSTS), and where the command admin finds it (MLSD_ADMIN_URL).
	Admin AdminConfig
	// DatabaseURL (MLSD_DATABASE_URL) is a PostgreSQL that the operator runs. Empty: mlsd runs one
	// of its own in DataDir.
	DatabaseURL string
	// DataDir (MLSD_DATA_DIR) holds the private PostgreSQL.
	DataDir string
	// WALArchive (MLSD_WAL_ARCHIVE) is a directory to which the private PostgreSQL copies its WAL, and
	// from which the command restore takes it. Empty: none.
	WALArchive string
	// ServiceDID (MLSD_SERVICE_DID) is the audience of tokens. Empty: did:web:localhost with the
	// public listener's port.
	ServiceDID syntax.DID
	// PublicURL (MLSD_PUBLIC_URL) is where clients reach the service. Empty: the URL of a did:web
	// ServiceDID. With any other ServiceDID it must be set.
	PublicURL string
	// PLCURL (MLSD_PLC_URL) is the PLC directory.
	PLCURL string
	// AllowLoopback (MLSD_ALLOW_LOOPBACK) allows did:web documents and webhooks on this machine.
	// For development only.
	AllowLoopback bool
	// Welcomes: Grace (MLSD_WELCOME_GRACE) and OnExpiry (MLSD_WELCOME_ON_GRACE_EXPIRY).
	Welcomes welcome.Policy
	// APNs (MLSD_APNS_KEY_FILE, MLSD_APNS_KEY_ID, MLSD_APNS_TEAM_ID) is the key for Apple's push
	// service. Set all of it, or none.
	APNs push.APNsKey
	// APNsHost (MLSD_APNS_HOST) replaces Apple's service in tests.
	APNsHost string
	// Webhooks (MLSD_PUSH_WEBHOOKS) allows push targets that are URLs.
	Webhooks bool
	// PushTargets (MLSD_PUSH_TARGETS) is how many devices of one DID can be registered for pushes.
	PushTargets int
	// EpochWindow (MLSD_MESSAGE_EPOCH_WINDOW) is how many epochs a message can be behind its convo.
	EpochWindow int64
	// EventRetention (MLSD_EVENT_RETENTION) is how long events are kept. They are deleted a day at
	// a time, up to a day later.
	EventRetention time.Duration
	// MessageRetention (MLSD_MESSAGE_RETENTION) is how long application messages are kept. 0: for
	// ever. KeptUnasked says that the operator has not set it: the server warns of that.
	MessageRetention time.Duration
	KeptUnasked      bool
	// Lifetimes of idempotency records (MLSD_IDEMPOTENCY_TTL) and of leases
	// (MLSD_IDEMPOTENCY_LEASE), by operation.
	Lifetimes idem.Lifetimes
	// Rates: DID (MLSD_RATE_DID, MLSD_RATE_DID_BURST) and IP (MLSD_RATE_IP, MLSD_RATE_IP_BURST), in
	// requests.
	Rates api.Rates
	// Quotas (MLSD_QUOTA_*) bound what one DID, one address and one convo store and do in a day: see
	// package quota.
	Quotas quota.Limits
	// Admit (MLSD_ADMIT) is whom the node serves. AdmitFile (MLSD_ADMIT_FILE) has the DIDs that
	// accounts.ModeAllowlist serves.
	Admit     accounts.Mode
	AdmitFile string
	// RelayURL (MLSD_RELAY_URL) is what says what becomes of accounts, and RelayKind
	// (MLSD_RELAY_KIND) its protocol. Empty: none is followed; the protocol that the URL's path says.
	RelayURL  string
	RelayKind relay.Kind
	// EraseAfter (MLSD_ERASE_AFTER) is the time from the deletion of an account in the network to
	// the erasure of its data. 0: the data stays.
	EraseAfter time.Duration
	// TrustedProxies (MLSD_TRUSTED_PROXIES) are the networks whose X-Forwarded-For is believed.
	// Empty: none.
	TrustedProxies []netip.Prefix
	// LogLevel (MLSD_LOG_LEVEL) and LogFormat (MLSD_LOG_FORMAT: json or text).
	LogLevel  slog.Level
	LogFormat string
	// TracesURL (MLSD_TRACES_URL) is the collector that gets traces. Empty: there are none.
	// TracesSample (MLSD_TRACES_SAMPLE) is the share of requests that are traced.
	TracesURL    string
	TracesSample float64
	// Failpoints (MLSD_FAILPOINTS) lets the admin listener stop writes at named points (POST
	// /failpoints). For fault tests only.
	Failpoints bool
}

// AdminConfig says who may use the admin listener, and where it is.
type AdminConfig struct {
	Token, TokenFile         string // at most one of each pair
	ReadToken, ReadTokenFile string
	Hosts                    []string // besides loopback and the listener's own address
	URL                      string   // for the command admin
}

// tokens reads the tokens. A file is read once: a new token needs a new start.
func (c AdminConfig) tokens() (t admin.Tokens, err error) {
	if t.Write, err = secret("MLSD_ADMIN_TOKEN", c.Token, c.TokenFile); err != nil {
		return t, err
	}
	t.Read, err = secret("MLSD_ADMIN_READ_TOKEN", c.ReadToken, c.ReadTokenFile)
	return t, err
}

// secret returns the value of a setting that can also stand in a file. White space around it does
// not count there. name is the setting's.
func secret(name, value, file string) (string, error) {
	switch {
	case file == "":
		return value, nil
	case value != "":
		return "", fmt.Errorf("%s and %s_FILE are both set: set one of them", name, name)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s_FILE: %w", name, err)
	}
	if value = strings.TrimSpace(string(text)); value == "" {
		return "", fmt.Errorf("%s_FILE: %s is empty", name, file)
	}
	return value, nil
}

// flags returns the settings as command-line flags. Their defaults come from env.
func flags(env map[string]string) []cli.Flag {
	out := make([]cli.Flag, len(settings))
	for i, s := range settings {
		value, set := env[s.env]
		if !set {
			value = s.value
		}
		out[i] = &cli.StringFlag{Name: s.flag(), Usage: s.usage + " (" + s.env + ")", Value: value, DefaultText: strconv.Quote(s.value)}
	}
	return out
}

// environment reads the MLSD_* variables. An unknown one is an error, because it has no effect.
func environment(environ []string) (map[string]string, error) {
	known := map[string]bool{}
	for _, s := range settings {
		known[s.env] = true
	}
	env := map[string]string{}
	var unknown []string
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		switch {
		case !strings.HasPrefix(name, envPrefix), strings.HasPrefix(name, testPrefix), name == vectorsVariable:
		case !known[name]:
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
)

// configure reads the configuration from the flags.
func configure(cmd *cli.Command) (Config, error) {
	c := Config{Lifetimes: api.Lifetimes(), Quotas: quota.Limits{}}
	for _, s := range settings {
		if err := s.parse(&c, cmd.String(s.flag())); err != nil {
			return c, fmt.Errorf("--%s (%s): %w", s.flag(), s.env, err)
		}
	}
	if least := c.EventRetention + 24*time.Hour; c.MessageRetention != 0 && c.MessageRetention < least {
		// An event names a message, and a late retry needs the message's key. Both must find it.
		// Events are deleted a day at a time.
		return c, fmt.Errorf("--message-retention (MLSD_MESSAGE_RETENTION) must be 0 or at least %s, a day longer than MLSD_EVENT_RETENTION", least)
	}
	if c.DataDir == "" && c.DatabaseURL == "" {
		dir, err := localpg.DefaultDataDir()
		if err != nil {
			return c, fmt.Errorf("find the data directory: %w", err)
		}
		c.DataDir = dir
	}
	return c, nil
}

// checkPublicURL fails unless the URL of the service is known. Tickets for WebSockets name it.
func (c Config) checkPublicURL() error {
	if c.PublicURL == "" && c.ServiceDID != "" && api.PublicURL(c.ServiceDID) == "" {
		return fmt.Errorf("--public-url (MLSD_PUBLIC_URL) must be set: %s does not say where clients reach the service, as a did:web does", c.ServiceDID)
	}
	return nil
}

// checkArchive fails if a WAL archive is set for a PostgreSQL that the operator runs.
func (c Config) checkArchive() error {
	if c.WALArchive != "" && c.DatabaseURL != "" {
		return fmt.Errorf("--wal-archive (MLSD_WAL_ARCHIVE): %w", errNotPrivate)
	}
	return nil
}

// checkAccounts fails if a setting about accounts lacks the one that it belongs to.
func (c Config) checkAccounts() error {
	switch {
	case (c.Admit == accounts.ModeAllowlist) != (c.AdmitFile != ""):
		return errors.New("--admit-file (MLSD_ADMIT_FILE) must be set with MLSD_ADMIT=allowlist, and only then")
	case c.RelayKind != "" && c.RelayURL == "":
		return errors.New("--relay-kind (MLSD_RELAY_KIND) must not be set without MLSD_RELAY_URL")
	}
	return nil
}
