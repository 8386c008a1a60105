package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"mlsd/api"
	"mlsd/internal/localpg"
	"mlsd/internal/serviceauth"
	"mlsd/push"
	"mlsd/welcome"
)

// Config is what an operator can set, by flag or by environment variable.
type Config struct {
	// Listen (MLSD_LISTEN) is the address of the public listener.
	Listen string
	// AdminListen (MLSD_ADMIN_LISTEN) is the address of the admin listener: metrics, health, profiles. It authenticates nobody.
	AdminListen string
	// DatabaseURL (MLSD_DATABASE_URL) is a PostgreSQL that the operator runs. Empty: mlsd runs one of its own in DataDir.
	DatabaseURL string
	// DataDir (MLSD_DATA_DIR) holds the private PostgreSQL.
	DataDir string
	// ServiceDID (MLSD_SERVICE_DID) is who tokens are for. Empty: did:web:localhost with the public listener's port.
	ServiceDID syntax.DID
	// PublicURL (MLSD_PUBLIC_URL) is where clients reach the service. Empty: what a did:web ServiceDID says; any other needs it.
	PublicURL string
	// PLCURL (MLSD_PLC_URL) is the PLC directory.
	PLCURL string
	// AllowLoopback (MLSD_ALLOW_LOOPBACK) lets did:web documents be fetched from this machine, and webhooks on it be called. For development only.
	AllowLoopback bool
	// Welcomes: Grace (MLSD_WELCOME_GRACE) and OnExpiry (MLSD_WELCOME_ON_GRACE_EXPIRY).
	Welcomes welcome.Policy
	// APNs (MLSD_APNS_KEY_FILE, MLSD_APNS_KEY_ID, MLSD_APNS_TEAM_ID) is what Apple gave for calling its push service: all of it, or none.
	APNs push.APNsKey
	// APNsHost (MLSD_APNS_HOST) stands for Apple's service in tests.
	APNsHost string
	// Webhooks (MLSD_PUSH_WEBHOOKS) lets devices be told by calls of a URL of theirs.
	Webhooks bool
	// EpochWindow (MLSD_MESSAGE_EPOCH_WINDOW) is how many epochs behind the convo's a message may be.
	EpochWindow int64
	// EventRetention (MLSD_EVENT_RETENTION) is how long events are kept, at least: up to a day more, for they go by the day.
	EventRetention time.Duration
	// MessageRetention (MLSD_MESSAGE_RETENTION) is how long application messages are kept; 0: for ever.
	MessageRetention time.Duration
	// Rates: DID (MLSD_RATE_DID, MLSD_RATE_DID_BURST) and IP (MLSD_RATE_IP, MLSD_RATE_IP_BURST), in requests.
	Rates api.Rates
	// TrustedProxies (MLSD_TRUSTED_PROXIES) are the networks whose X-Forwarded-For is believed. Empty: nobody's.
	TrustedProxies []netip.Prefix
	// LogLevel (MLSD_LOG_LEVEL) and LogFormat (MLSD_LOG_FORMAT: json or text).
	LogLevel  slog.Level
	LogFormat string
	// Failpoints (MLSD_FAILPOINTS) lets the admin listener stop writes at named points (POST /failpoints), and change how messages are
	// written (POST /sends, see messages.Mode). For fault tests and measurements only.
	Failpoints bool
}

// setting is one thing that can be set. Its flag is its variable in small letters, without the prefix and with dashes.
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

var settings = []setting{
	{"MLSD_LISTEN", "address of the public listener", "127.0.0.1:8080", func(c *Config, v string) error {
		c.Listen = v
		return checkAddress(v)
	}},
	{"MLSD_ADMIN_LISTEN", "address of the admin listener (metrics, health, profiles)", "127.0.0.1:8081", func(c *Config, v string) error {
		c.AdminListen = v
		return checkAddress(v)
	}},
	{"MLSD_DATABASE_URL", "PostgreSQL to use; empty: one of mlsd's own", "", func(c *Config, v string) error {
		c.DatabaseURL = v
		return checkDatabaseURL(v)
	}},
	{"MLSD_DATA_DIR", "directory of mlsd's own PostgreSQL; empty: the user's data directory", "", func(c *Config, v string) error {
		c.DataDir = v
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
		_, err := serviceauth.NewDirectory(serviceauth.DirectoryConfig{PLCURL: v}) // its rules, before anything is started
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
	{"MLSD_MESSAGE_RETENTION", "how long messages are kept, a day longer than events at least; 0: for ever", "0", func(c *Config, v string) (err error) {
		if c.MessageRetention, err = time.ParseDuration(v); err == nil && c.MessageRetention < 0 {
			err = errors.New("must not be negative")
		}
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
	{"MLSD_PUSH_WEBHOOKS", "let devices be told by calls of a URL of theirs", "true", boolean(func(c *Config) *bool { return &c.Webhooks })},
	{"MLSD_MESSAGE_EPOCH_WINDOW", "how many epochs behind a message may be", "0", func(c *Config, v string) (err error) {
		if c.EpochWindow, err = strconv.ParseInt(v, 10, 32); err == nil && c.EpochWindow < 0 {
			err = errors.New("must not be negative")
		}
		return err
	}},
	{"MLSD_RATE_DID", "requests per second of one DID", "20", number(func(c *Config) *float64 { return &c.Rates.DID.PerSecond })},
	{"MLSD_RATE_DID_BURST", "requests of one DID at once", "400", count(func(c *Config) *int { return &c.Rates.DID.Burst })},
	{"MLSD_RATE_IP", "requests per second of one IP address", "200", number(func(c *Config) *float64 { return &c.Rates.IP.PerSecond })},
	{"MLSD_RATE_IP_BURST", "requests of one IP address at once", "2000", count(func(c *Config) *int { return &c.Rates.IP.Burst })},
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
	{"MLSD_FAILPOINTS", "let the admin listener inject faults (tests)", "false", boolean(func(c *Config) *bool { return &c.Failpoints })},
}

// flags returns the settings as command-line flags, whose defaults come from env.
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

// environment reads the MLSD_* variables. One that nothing reads is an error: it was meant to do something.
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

// Variables that only tests read, and that may be set in the same shell.
const (
	testPrefix      = "MLSD_TEST_"
	vectorsVariable = "MLSD_MLS_VECTORS"
)

// configure parses what the flags hold.
func configure(cmd *cli.Command) (Config, error) {
	var c Config
	for _, s := range settings {
		if err := s.parse(&c, cmd.String(s.flag())); err != nil {
			return c, fmt.Errorf("--%s (%s): %w", s.flag(), s.env, err)
		}
	}
	if least := c.EventRetention + 24*time.Hour; c.MessageRetention != 0 && c.MessageRetention < least {
		// Events go by the day. One that is still there names a message, and a repetition that comes late meets its key.
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

// checkPublicURL fails unless there is a URL under which clients reach the service: tickets for WebSockets name it.
func (c Config) checkPublicURL() error {
	if c.PublicURL == "" && c.ServiceDID != "" && api.PublicURL(c.ServiceDID) == "" {
		return fmt.Errorf("--public-url (MLSD_PUBLIC_URL) must be set: %s does not say where clients reach the service, as a did:web does", c.ServiceDID)
	}
	return nil
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

// checkDatabaseURL refuses what the driver cannot read. What the driver says of it is not passed on: it quotes the text, from
// which it can only guess where the password is.
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
