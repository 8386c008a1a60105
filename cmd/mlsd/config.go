package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/urfave/cli/v3"

	"mlsd/api"
	"mlsd/idem"
	"mlsd/internal/localpg"
	"mlsd/push"
	"mlsd/welcome"
)

// Config is what an operator can set by flag or by environment variable.
type Config struct {
	// Listen (MLSD_LISTEN) is the address of the public listener.
	Listen string
	// AdminListen (MLSD_ADMIN_LISTEN) is the address of the admin listener: metrics, health,
	// profiles. It does not authenticate.
	AdminListen string
	// DatabaseURL (MLSD_DATABASE_URL) is a PostgreSQL that the operator runs. Empty: mlsd runs one
	// of its own in DataDir.
	DatabaseURL string
	// DataDir (MLSD_DATA_DIR) holds the private PostgreSQL.
	DataDir string
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
	// EpochWindow (MLSD_MESSAGE_EPOCH_WINDOW) is how many epochs a message can be behind its convo.
	EpochWindow int64
	// EventRetention (MLSD_EVENT_RETENTION) is how long events are kept. They are deleted a day at
	// a time, up to a day later.
	EventRetention time.Duration
	// MessageRetention (MLSD_MESSAGE_RETENTION) is how long application messages are kept. 0: for
	// ever.
	MessageRetention time.Duration
	// Lifetimes of idempotency records (MLSD_IDEMPOTENCY_TTL) and of leases
	// (MLSD_IDEMPOTENCY_LEASE), by operation.
	Lifetimes idem.Lifetimes
	// Rates: DID (MLSD_RATE_DID, MLSD_RATE_DID_BURST) and IP (MLSD_RATE_IP, MLSD_RATE_IP_BURST), in
	// requests.
	Rates api.Rates
	// TrustedProxies (MLSD_TRUSTED_PROXIES) are the networks whose X-Forwarded-For is believed.
	// Empty: none.
	TrustedProxies []netip.Prefix
	// LogLevel (MLSD_LOG_LEVEL) and LogFormat (MLSD_LOG_FORMAT: json or text).
	LogLevel  slog.Level
	LogFormat string
	// Failpoints (MLSD_FAILPOINTS) lets the admin listener stop writes at named points (POST
	// /failpoints). For fault tests only.
	Failpoints bool
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
	c := Config{Lifetimes: api.Lifetimes()}
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
