package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v3"

	"mlsd/api"
	"mlsd/features/attachments/s3store"
	"mlsd/idem"
	"mlsd/internal/moduletest"
	"mlsd/internal/nsid"
	"mlsd/people/quota"
	"mlsd/welcome"
)

// settingCases has a row for every setting: two valid values, what they and the default mean, and
// invalid values.
func settingCases(t *testing.T) map[string]struct {
	env, flag string // values
	get       func(Config) any
	envWant   any
	flagWant  any
	unset     any
	bad       []string
} {
	t.Helper()
	type row = struct {
		env, flag string
		get       func(Config) any
		envWant   any
		flagWant  any
		unset     any
		bad       []string
	}
	network := netip.MustParsePrefix
	limits := func(name string, unset int64, bytes bool) row {
		r := row{"7", "0", func(c Config) any { return c.Quotas[name] }, int64(7), int64(0), unset,
			[]string{"", "-1", "1.5", "1e6", "9223372036854775808", "7MB"}}
		if bytes {
			r.env, r.envWant = "7MiB", int64(7<<20)
			r.bad = append(r.bad, "8589934592GiB", "MiB", "-1KiB")
		} else {
			r.bad = append(r.bad, "7MiB")
		}
		return r
	}
	return map[string]row{
		"MLSD_ENV_FILE": {os.DevNull, os.DevNull, func(Config) any { return nil }, nil, nil, nil,
			[]string{"/nowhere/mlsd.env"}},
		"MLSD_READ_DATABASE_URL": {"postgres://a/b", "host=c dbname=d", func(c Config) any { return c.ReadDatabaseURL },
			"postgres://a/b",
			"host=c dbname=d", "", []string{"postgres://a:b/c", "x"}},
		"MLSD_WAIT_FOR_DATABASE": {"60s", "2m", func(c Config) any { return c.WaitForDatabase }, time.Minute, 2 * time.Minute,
			time.Duration(0),
			[]string{"", "60", "-1s"}},
		"MLSD_LISTEN": {"127.0.0.1:1", "[::1]:2", func(c Config) any { return c.Listen }, "127.0.0.1:1", "[::1]:2",
			"127.0.0.1:8080",
			[]string{"", "8080", "localhost", "127.0.0.1:port", "127.0.0.1:65536", "127.0.0.1:-1", "::1:80"}},
		"MLSD_ADMIN_LISTEN": {"127.0.0.1:1", ":2", func(c Config) any { return c.AdminListen }, "127.0.0.1:1", ":2",
			"127.0.0.1:8081",
			[]string{"", "8081", "127.0.0.1:port"}},
		"MLSD_DATABASE_URL": {"postgres://a/b", "host=c dbname=d", func(c Config) any { return c.DatabaseURL },
			"postgres://a/b",
			"host=c dbname=d", "", []string{"postgres://a:b/c", "x", "postgres://a/b?sslmode=maybe",
				"postgres://a/b?pool_max_conns=none"}},
		"MLSD_ATTACHMENTS": {"/a", "off", func(c Config) any { return c.Attachments.Dir }, "/a", "", nil,
			[]string{"directory", "S3", "s3.example.com/a", "ftp://s3.example.com/a", "https://s3.example.com",
				"https://u:p@s3.example.com/a", "https://s3.example.com/a?zone=b"}},
		"MLSD_ATTACHMENT_MAX_SIZE": {"7MiB", "100", func(c Config) any { return c.Attachments.MaxSize }, int64(7 << 20),
			int64(100), int64(50 << 20),
			[]string{"", "0", "-1", "2GiB", "7MB"}},
		"MLSD_S3_ACCESS_KEY": {"a", "b", func(c Config) any { return c.Attachments.S3.Key }, "a", "b", "", nil},
		"MLSD_S3_SECRET_KEY": {"a", "b", func(c Config) any { return c.Attachments.S3.Secret }, "a", "b", "", nil},
		// package localpg tests the default
		"MLSD_DATA_DIR":    {"/a", "/b", func(c Config) any { return c.DataDir }, "/a", "/b", nil, nil},
		"MLSD_WAL_ARCHIVE": {"/a", "/b", func(c Config) any { return c.WALArchive }, "/a", "/b", "", nil},
		"MLSD_SERVICE_DID": {"did:web:a.example.com", "did:plc:abc", func(c Config) any { return c.ServiceDID.String() },
			"did:web:a.example.com", "did:plc:abc", "",
			[]string{"a.example.com", "did:web:", "did:web:a.example.com#atproto_mls"}},
		"MLSD_PUBLIC_URL": {"https://a.example.com", "http://b:1", func(c Config) any { return c.PublicURL },
			"https://a.example.com",
			"http://b:1", "", []string{"a.example.com", "ftp://a", "https://", "https://a b"}},
		"MLSD_PLC_URL": {"https://a.example.com", "http://127.0.0.1:1", func(c Config) any { return c.PLCURL },
			"https://a.example.com",
			"http://127.0.0.1:1", "https://plc.directory",
			[]string{"plc.directory", "http://plc.directory", "https://a/b", "https://u:p@a"}},
		"MLSD_SERVICES": {"all", "did:web:a.example.com, B.example.com",
			func(c Config) any { return c.Services.String() },
			"all", "did:web:a.example.com b.example.com", "",
			[]string{"none", "only did:web:a.example.com", "all did:web:a.example.com", "did:web:"}},
		"MLSD_SERVICE_KEY_FILE": {"/a", "/b", func(c Config) any { return c.ServiceKeyFile }, "/a", "/b", "", nil},
		"MLSD_ALLOW_LOOPBACK": {"true", "0", func(c Config) any { return c.AllowLoopback }, true, false, false,
			[]string{"", "yes"}},
		"MLSD_WELCOME_GRACE": {"1m", "2h", func(c Config) any { return c.Welcomes.Grace }, time.Minute, 2 * time.Hour,
			5 * time.Minute,
			[]string{"", "5", "0s", "-1m"}},
		"MLSD_WELCOME_ON_GRACE_EXPIRY": {"consume", "release", func(c Config) any { return c.Welcomes.OnExpiry },
			welcome.Consume,
			welcome.Release, welcome.Release, []string{"", "keep"}},
		"MLSD_EVENT_RETENTION": {"1h", "48h", func(c Config) any { return c.EventRetention }, time.Hour, 48 * time.Hour,
			168 * time.Hour,
			[]string{"", "7", "0s", "-1h"}},
		"MLSD_MESSAGE_RETENTION": {"90d", "192h", func(c Config) any { return c.MessageRetention }, 90 * 24 * time.Hour,
			8 * 24 * time.Hour,
			time.Duration(0), []string{"90", "-1h", "191h"}}, // the default of MLSD_EVENT_RETENTION and a day
		// Finding S5
		"MLSD_IDEMPOTENCY_TTL": {"createConvo=2d,push=2h", "createConvo=1h, getKeyPackages=720h",
			func(c Config) any { return lives(c.Lifetimes) },
			[]string{"createConvo=48h0m0s", "push=2h0m0s", "getKeyPackages=30m0s", "addMembers=168h0m0s"},
			[]string{"createConvo=1h0m0s", "push=24h0m0s", "getKeyPackages=720h0m0s", "addMembers=168h0m0s"},
			[]string{"createConvo=168h0m0s", "push=24h0m0s", "getKeyPackages=30m0s", "addMembers=168h0m0s"},
			[]string{"48h", "createConvo", "createConvo=", "createConvo=2", "createConvo=59m", "createConvo=-1h",
				"createConvo=2161h", "createconvo=48h",
				"blue.catbird.mls.createConvo=48h", "sendMessage=48h", "default=48h", "getEpoch=48h", "getKeyPackages=29m",
				"getKeyPackages=721h", "push=1h", "push=2h,push=3h"}},
		"MLSD_IDEMPOTENCY_LEASE": {"push=15s", "push=1h default=2m", func(c Config) any {
			return []time.Duration{c.Lifetimes[idem.NSIDPush].Lease, c.Lifetimes[""].Lease}
		}, []time.Duration{15 * time.Second, 5 * time.Minute}, []time.Duration{time.Hour, 2 * time.Minute},
			[]time.Duration{time.Minute, 5 * time.Minute},
			[]string{"5m", "push=14s", "push=61m", "default=0s", "createConvo=5m", "push=1m,push=1m", "push=soon"}},
		"MLSD_APNS_KEY_FILE": {"/a.p8", "/b.p8", func(c Config) any { return c.APNs.File }, "/a.p8", "/b.p8", "", nil},
		"MLSD_APNS_KEY_ID":   {"a", "b", func(c Config) any { return c.APNs.KeyID }, "a", "b", "", nil},
		"MLSD_APNS_TEAM_ID":  {"a", "b", func(c Config) any { return c.APNs.TeamID }, "a", "b", "", nil},
		"MLSD_APNS_HOST": {"https://a.example.com", "https://b:1", func(c Config) any { return c.APNsHost },
			"https://a.example.com",
			"https://b:1", "", []string{"a.example.com"}},
		"MLSD_VAPID_KEY_FILE": {"/a.pem", "/b.pem", func(c Config) any { return c.VAPIDKeyFile }, "/a.pem",
			"/b.pem", "", nil},
		"MLSD_PUSH_WEBHOOKS": {"false", "1", func(c Config) any { return c.Webhooks }, false, true, true,
			[]string{"", "yes"}},
		"MLSD_MESSAGE_EPOCH_WINDOW": {"1", "2", func(c Config) any { return c.EpochWindow }, int64(1), int64(2), int64(0),
			[]string{"", "-1", "1.5", "4294967296"}},
		"MLSD_RATE_DID": {"1.5/3", "2", func(c Config) any { return c.Rates.DID }, api.Rate{PerSecond: 1.5, Burst: 3},
			api.Rate{PerSecond: 2, Burst: 400},
			api.Rate{PerSecond: 20, Burst: 400},
			[]string{"", "0", "-1", "NaN", "Inf", "1e999", "/1", "1/", "1/0", "1/-1", "1/1.5"}},
		"MLSD_RATE_IP": {"1/1", "0.5", func(c Config) any { return c.Rates.IP }, api.Rate{PerSecond: 1, Burst: 1},
			api.Rate{PerSecond: 0.5, Burst: 2000},
			api.Rate{PerSecond: 200, Burst: 2000}, []string{"", "0", "many"}},
		"MLSD_ADMIN_TOKEN": {"0123456789abcdef", "fedcba9876543210", func(c Config) any { return c.Admin.Tokens.Write },
			"0123456789abcdef", "fedcba9876543210", "", nil},
		"MLSD_ADMIN_READ_TOKEN": {"0123456789abcdef", "fedcba9876543210", func(c Config) any { return c.Admin.Tokens.Read },
			"0123456789abcdef", "fedcba9876543210", "", nil},
		"MLSD_ADMIN_METRICS_TOKEN": {"0123456789abcdef", "fedcba9876543210",
			func(c Config) any { return c.Admin.Tokens.Metrics }, "0123456789abcdef", "fedcba9876543210", "", nil},
		"MLSD_ADMIN_HOSTS": {"a.example", "b.example, 192.0.2.1",
			func(c Config) any { return strings.Join(c.Admin.Hosts, "+") }, "a.example", "b.example+192.0.2.1", "", nil},
		"MLSD_ADMIN_URL": {"http://a.example:1", "https://b.example", func(c Config) any { return c.Admin.URL },
			"http://a.example:1", "https://b.example", "", []string{"a.example", "ftp://a.example"}},
		"MLSD_ADMIT": {"closed", "/a", func(c Config) any { return string(c.Admit) + c.AdmitFile }, "closed", "allowlist/a",
			"open",
			[]string{"", "all", "allowlist", "admitted"}},
		"MLSD_RELAY_URL": {"wss://relay.example.com", "http://127.0.0.1:1/subscribe",
			func(c Config) any { return c.RelayURL },
			"wss://relay.example.com", "http://127.0.0.1:1/subscribe", "",
			[]string{"relay.example.com", "ftp://a", "wss://u:p@a", "wss://a?cursor=1"}},
		"MLSD_ERASE_AFTER": {"1d", "0", func(c Config) any { return c.EraseAfter }, 24 * time.Hour, time.Duration(0),
			720 * time.Hour,
			[]string{"", "30", "-1h"}},
		"MLSD_TRUSTED_PROXIES": {"10.0.0.0/8", "10.1.0.0/16, fd00::/8", func(c Config) any { return c.TrustedProxies },
			[]netip.Prefix{network("10.0.0.0/8")}, []netip.Prefix{network("10.1.0.0/16"), network("fd00::/8")},
			[]netip.Prefix(nil),
			[]string{"10.0.0.1", "10.0.0.0/33", "all"}},
		"MLSD_QUOTA_MESSAGES":         limits("messages-per-day", 50_000, false),
		"MLSD_QUOTA_BYTES":            limits("bytes-per-day", 512<<20, true),
		"MLSD_QUOTA_CONVOS":           limits("convos-per-day", 500, false),
		"MLSD_QUOTA_OUTSIDERS":        limits("outsiders-invited-per-day", 1000, false),
		"MLSD_QUOTA_KEY_PACKAGES":     limits("key-packages-per-day", 2_000, false),
		"MLSD_QUOTA_REPORTS":          limits("reports-per-day", 20, false),
		"MLSD_QUOTA_CONVO_BYTES":      limits(quota.ConvoBytes, 4<<30, true),
		"MLSD_QUOTA_OPEN_INVITATIONS": limits(quota.OpenInvitations, 200, false),
		"MLSD_QUOTA_INVITATIONS":      limits(quota.OneInviter, 3, false),
		"MLSD_QUOTA_REPORT_BYTES":     limits(quota.ReportBytes, 1<<30, true),
		"MLSD_QUOTA_ATTACHMENT_BYTES": limits("attachment-bytes-per-day", 1<<30, true),
		"MLSD_QUOTA_ADDRESS_SHARE":    limits(quota.AddressShare, 200, false),
		"MLSD_REPORT_KEY": {aReportKey, otherReportKey, func(c Config) any { return c.ReportKey }, aReportKey, otherReportKey,
			"",
			[]string{"x", strings.Replace(aReportKey, "public", "private", 1), aReportKey + "A", "mlsd-report-public-"}},
		"MLSD_REQUEST_SAMPLE": {"7", "0", func(c Config) any { return c.Requests.Sample }, 7, 0, 100,
			[]string{"", "-1", "1%", "0.5"}},
		"MLSD_REQUEST_RETENTION": {"24h", "168h", func(c Config) any { return c.Requests.Keep }, 24 * time.Hour,
			168 * time.Hour, 72 * time.Hour,
			[]string{"", "0", "59m", "169h", "7"}},
		"MLSD_LOG_LEVEL": {"debug", "error", func(c Config) any { return c.LogLevel }, slog.LevelDebug, slog.LevelError,
			slog.LevelInfo,
			[]string{"", "loud"}},
		"MLSD_LOG_FORMAT": {"text", "json", func(c Config) any { return c.LogFormat }, "text", "json", "json",
			[]string{"", "xml"}},
		"MLSD_TRACES_URL": {"http://a.example:4318/v1/traces", "https://b.example", func(c Config) any { return c.TracesURL },
			"http://a.example:4318/v1/traces", "https://b.example", "", []string{"a.example", "ftp://a.example"}},
		"MLSD_TRACES_SAMPLE": {"1", "0", func(c Config) any { return c.TracesSample }, 1.0, 0.0, 0.01,
			[]string{"", "1%", "1.1", "-1", "NaN"}},
		"MLSD_FAILPOINTS": {"true", "false", func(c Config) any { return c.Failpoints }, true, false, false,
			[]string{"", "on"}},
	}
}

// Two keys for reports.
const (
	aReportKey     = "mlsd-report-public-XwUmXPp77xzZX_nHLkaVPB9tKATYAxbR3ztr7ToWoSM"
	otherReportKey = "mlsd-report-public-CQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)

// The URL of a bucket has everything but the keys.
func TestBucket(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]s3store.Config{
		"http://127.0.0.1:9000/files": {Endpoint: "http://127.0.0.1:9000", Bucket: "files"},
		"https://s3.example.com/a/files/?region=eu-north-1": {Endpoint: "https://s3.example.com/a", Bucket: "files",
			Region: "eu-north-1"},
	} {
		want.Key, want.Secret = "k", "s"
		cfg, err := parse(t, []string{"MLSD_S3_ACCESS_KEY=k", "MLSD_S3_SECRET_KEY=s"}, "--attachments", text)
		if diff := cmp.Diff(want, cfg.Attachments.S3); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", text, err, diff)
		}
	}
	if _, err := parse(t, []string{"MLSD_S3_ACCESS_KEY=k"}, "--attachments", "https://s3.example.com/files"); err == nil {
		t.Error("a bucket without a secret key is taken")
	}
}

// A secret can be in a file, which its setting names.
func TestSecretsInFiles(t *testing.T) {
	t.Parallel()
	inFile := func(secret string) string {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		return "file:" + path
	}
	cfg, err := parse(t, []string{
		"MLSD_ADMIN_TOKEN=" + inFile("a\n"), "MLSD_ADMIN_READ_TOKEN=" + inFile("b"),
		"MLSD_DATABASE_URL=" + inFile(" postgres://a/b\n"),
		"MLSD_READ_DATABASE_URL=" + inFile("postgres://c/d"), "MLSD_S3_SECRET_KEY=" + inFile("e"),
		"MLSD_REPORT_KEY=" + inFile(aReportKey),
	})
	if err != nil {
		t.Fatal(err)
	}
	got := []string{cfg.Admin.Tokens.Write, cfg.Admin.Tokens.Read, cfg.DatabaseURL, cfg.ReadDatabaseURL,
		cfg.Attachments.S3.Secret, cfg.ReportKey}
	if diff := cmp.Diff([]string{"a", "b", "postgres://a/b", "postgres://c/d", "e", aReportKey}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{"file:/nowhere/secret", "file:" + os.DevNull, "file:"} {
		if _, err := parse(t, []string{"MLSD_DATABASE_URL=" + bad}); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// lives returns some lifetimes as the setting writes them.
func lives(l idem.Lifetimes) (pairs []string) {
	for _, name := range []string{nsid.CreateConvo, idem.NSIDPush, nsid.GetKeyPackages, nsid.AddMembers} {
		pairs = append(pairs, l[name].Name()+"="+l[name].Life.String())
	}
	return pairs
}

// A lifetime that is not allowed is refused with the reason. Finding S5.
func TestLifetimeMessages(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{
		"MLSD_IDEMPOTENCY_TTL=getKeyPackages=29m": `--idempotency-ttl (MLSD_IDEMPOTENCY_TTL) is "getKeyPackages=29m": ` +
			`getKeyPackages=29m: must be at least 30m0s: without its record a repetition claims other KeyPackages while the ` +
			`first claim still lasts`,
		"MLSD_IDEMPOTENCY_TTL=sendMessage=1h": `--idempotency-ttl (MLSD_IDEMPOTENCY_TTL) is "sendMessage=1h": unknown ` +
			`operation "sendMessage": want one of acceptConvo, acceptInvitation, addMembers, blockActor, ` +
			`completeAttachment, createAttachment, ` +
			`createConvo, declineInvitation, deleteAttachment, demoteAdmin, eraseMyAccount, getKeyPackages, invitation, ` +
			`leaveConvo, processExternalCommit, promoteAdmin, publishKeyPackage, publishKeyPackages, push, ` +
			`registerPushTarget, reportConvo, resetConvo, setCursorPolicy, setInvitationPolicy, submitCommit, unblockActor, ` +
			`unregisterPushTarget, updateConvo, withdrawKeyPackages`,
		"MLSD_IDEMPOTENCY_TTL=2h": `--idempotency-ttl (MLSD_IDEMPOTENCY_TTL) is "2h": "2h" is not a pair ` +
			`such as acceptConvo=24h`,
		"MLSD_IDEMPOTENCY_LEASE=default=2h": `--idempotency-lease (MLSD_IDEMPOTENCY_LEASE) is "default=2h": ` +
			`default=2h: must be from 15s to 1h0m0s`,
		"MLSD_IDEMPOTENCY_LEASE=addMembers=1m": `--idempotency-lease (MLSD_IDEMPOTENCY_LEASE) is "addMembers=1m": unknown ` +
			`operation "addMembers": want one of completeAttachment, default, invitation, push`,
	} {
		if _, err := parse(t, []string{setting}); err == nil || err.Error() != want {
			t.Errorf("%s:\n%v, want\n%s", setting, err, want)
		}
	}
}

// parse parses a command line and its environment as run does.
func parse(t *testing.T, environ []string, args ...string) (cfg Config, err error) {
	t.Helper()
	env, err := environment(environ)
	if err != nil {
		t.Fatal(err)
	}
	cmd := &cli.Command{
		Name: "mlsd", Flags: flags(env), ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Action: func(_ context.Context, cmd *cli.Command) error { cfg, err = configure(cmd); return err },
	}
	err = cmd.Run(t.Context(), append([]string{"mlsd"}, args...))
	return cfg, err
}

func TestSettings(t *testing.T) {
	t.Parallel()
	cases := settingCases(t)
	if len(cases) != len(settings) {
		t.Errorf("%d settings, %d of them tested", len(settings), len(cases))
	}
	for _, s := range settings {
		tc, ok := cases[s.env]
		if !ok {
			t.Errorf("%s is not tested", s.env)
			continue
		}
		t.Run(s.env, func(t *testing.T) {
			t.Parallel()
			check := func(what string, want any, environ []string, args ...string) {
				t.Helper()
				cfg, err := parse(t, environ, args...)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if diff := cmp.Diff(want, tc.get(cfg), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
					t.Errorf("%s (-want +got):\n%s", what, diff)
				}
			}
			if tc.unset != nil {
				check("by default", tc.unset, nil)
			}
			env := []string{s.env + "=" + tc.env}
			check("by environment", tc.envWant, env)
			check("by flag", tc.flagWant, nil, "--"+s.flag()+"="+tc.flag)
			check("by both; the flag wins", tc.flagWant, env, "--"+s.flag()+"="+tc.flag)
			for _, bad := range tc.bad {
				for how, parsed := range map[string]func() (Config, error){
					"variable": func() (Config, error) { return parse(t, []string{s.env + "=" + bad}) },
					"flag":     func() (Config, error) { return parse(t, nil, "--"+s.flag()+"="+bad) },
				} {
					if s.onOff && bad == "" && how == "flag" {
						continue // --switch= is --switch
					}
					if _, err := parsed(); err == nil || !strings.Contains(err.Error(), s.env) ||
						!strings.Contains(err.Error(), "--"+s.flag()) {
						t.Errorf("%s %q: the error does not name it: %v", how, bad, err)
					}
				}
			}
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"--help", "help", "serve --help", "migrate up --help"} {
		var out strings.Builder
		app := &cli.Command{Name: "mlsd", Writer: &out, Commands: []*cli.Command{
			{Name: "serve"}, {Name: "migrate", Commands: []*cli.Command{{Name: "up"}}},
		}}
		environ := []string{"MLSD_DATABASE_URL=postgres://mlsd:battery@127.0.0.1/mlsd"}
		if err := Run(t.Context(), app, append([]string{"mlsd"}, strings.Fields(args)...), environ); err != nil {
			t.Errorf("%s: %v", args, err)
		}
		help := out.String()
		for _, setting := range settings {
			for _, part := range []string{"--" + setting.flag() + " ", setting.env, setting.usage} {
				if !strings.Contains(help, part) {
					t.Errorf("%s does not say %q", args, part)
				}
			}
		}
		if strings.Contains(help, "battery") {
			t.Errorf("%s shows the password: %s", args, help)
		}
	}
}

// Everything that is wrong with single settings is told at once.
func TestAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	_, err := parse(t, []string{"MLSD_RATE_DID=many", "MLSD_LISTEN=8080"}, "--failpoints=maybe")
	for _, want := range []string{"MLSD_RATE_DID", "MLSD_LISTEN", "MLSD_FAILPOINTS"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

// A switch needs no value, before and after a command.
func TestSwitch(t *testing.T) {
	t.Parallel()
	cfg, err := parse(t, []string{"MLSD_ALLOW_LOOPBACK=true"}, "--failpoints", "--listen", "127.0.0.1:9")
	if err != nil || !cfg.Failpoints || !cfg.AllowLoopback || cfg.Listen != "127.0.0.1:9" {
		t.Errorf("%+v, %v", cfg, err)
	}
}

// Settings from a file: a variable and a flag win over it, wherever the flag stands.
func TestEnvFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mlsd.env")
	text := "# settings\n\nMLSD_LISTEN = " +
		"\"127.0.0.1:1\"\r\nMLSD_RATE_DID=7\nMLSD_RATE_IP='8'\nMLSD_FAILPOINTS=true\nMLSD_DATABASE_URL=postgres://a:$b@c/d\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := parse(t, []string{"MLSD_ENV_FILE=" + path, "MLSD_RATE_DID=9"}, "--rate-ip", "10")
	if err != nil || cfg.Listen != "127.0.0.1:1" || cfg.Rates.DID.PerSecond != 9 || cfg.Rates.IP.PerSecond != 10 ||
		!cfg.Failpoints || cfg.DatabaseURL != "postgres://a:$b@c/d" {
		t.Errorf("%+v, %v", cfg, err)
	}
}

// The page of settings has every setting, its default, and the text of --help about it.
func TestSettingsPage(t *testing.T) {
	t.Parallel()
	var want strings.Builder
	want.WriteString("| variable | default | meaning |\n|---|---|---|\n")
	for _, s := range settings {
		value := "none"
		if s.value != "" {
			value = "`" + s.value + "`"
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", s.env, value, s.usage)
	}
	moduletest.Table(t, "docs/SETTINGS.md", "", want.String())
}

func TestBuild(t *testing.T) {
	t.Parallel()
	b := build{version: "v1.2.0", commit: "0123456789abcdef", date: "2026-01-02T03:04:05Z", modified: true}
	if want := "v1.2.0 commit 0123456789ab and changes of 2026-01-02T03:04:05Z"; b.String() != want {
		t.Errorf("%q, want %q", b, want)
	}
}
