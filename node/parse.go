package node

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/api"
	"mlsd/features/relay"
	"mlsd/internal/duration"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
)

// The functions below read the values of settings. Their errors say only what is wanted. The caller
// puts the setting's name and value before the error.

// positive reads a duration that is greater than 0.
func positive(v string) (time.Duration, error) {
	d, err := duration.Parse(v)
	if err == nil && d <= 0 {
		err = errors.New("want more than 0, such as 5m, 12h or 30d")
	}
	return d, err
}

// notNegative reads a duration, or 0.
func notNegative(v string) (time.Duration, error) {
	d, err := duration.Parse(v)
	if err == nil && d < 0 {
		err = errors.New("want 0 or more, such as 5m, 12h or 30d")
	}
	return d, err
}

// amount reads a number that is not negative. A number of bytes can have the unit KiB, MiB or GiB.
func amount(v string, bytes bool) (int64, error) {
	shift, wanted := 0, errors.New("want a whole number such as 500; 0 is no limit")
	if bytes {
		wanted = errors.New("want a whole number of bytes such as 1048576 or 512MiB; 0 is no limit")
	}
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if number, found := strings.CutSuffix(v, unit); found && bytes {
			v, shift = number, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, wanted
	}
	return n << shift, nil
}

// value reads a value with parse.
func value[T any](field func(*Config) *T, parse func(string) (T, error)) func(*Config, string) error {
	return func(c *Config, v string) (err error) {
		*field(c), err = parse(v)
		return err
	}
}

// text reads a text that check accepts. check can be nil.
func text(field func(*Config) *string, check func(string) error) func(*Config, string) error {
	return func(c *Config, v string) error {
		*field(c) = v
		if check == nil {
			return nil
		}
		return check(v)
	}
}

// textOrFile reads a text, or the file that file:PATH names.
func textOrFile(field func(*Config) *string, check func(string) error) func(*Config, string) error {
	parse := text(field, check)
	return func(c *Config, v string) error {
		path, named := strings.CutPrefix(v, "file:")
		if !named {
			return parse(c, v)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if v = strings.TrimSpace(string(content)); v == "" {
			return fmt.Errorf("the file %s is empty", path)
		}
		return parse(c, v)
	}
}

func boolean(v string) (bool, error) {
	on, err := strconv.ParseBool(v)
	if err != nil {
		return false, errors.New("want true or false")
	}
	return on, nil
}

// bucket reads a rate and its burst, such as 20/400. Without a burst in the text, the burst is
// usual.
func bucket(usual int) func(string) (api.Rate, error) {
	return func(v string) (r api.Rate, err error) {
		perSecond, burst, whole := strings.Cut(v, "/")
		r.PerSecond, err = strconv.ParseFloat(perSecond, 64)
		if r.Burst = usual; whole && err == nil {
			r.Burst, err = strconv.Atoi(burst)
		}
		if err != nil || !(r.PerSecond > 0) || math.IsInf(r.PerSecond, 0) || r.Burst <= 0 {
			err = fmt.Errorf("want a number above 0, such as 20 or 0.5, and how many at once: 20/%d", usual)
		}
		return r, err
	}
}

func share(v string) (float64, error) {
	n, err := strconv.ParseFloat(v, 64)
	if err != nil || !(n >= 0 && n <= 1) {
		return 0, errors.New("want a number from 0 to 1, such as 0.01 for one in a hundred")
	}
	return n, nil
}

// whole reads a number that is not negative. example is such a number, for the error.
func whole[N int | int64](example string) func(string) (N, error) {
	return func(v string) (N, error) {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("want a whole number such as %s, or 0", example)
		}
		return N(n), nil
	}
}

func serviceDID(v string) (syntax.DID, error) {
	did, err := syntax.ParseDID(v)
	if v != "" && err != nil {
		return "", errors.New("want a DID such as did:web:mls.example.com")
	}
	return did, nil
}

func checkAddress(v string) error {
	_, port, err := net.SplitHostPort(v)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return errors.New("want an address and a port, such as 127.0.0.1:8080, [::1]:8080, or :8080 for every address")
	}
	return nil
}

// The widest networks of proxies, in bits of their prefixes. They are the largest private ones,
// 10.0.0.0/8 and fc00::/7.
const widestIPv4, widestIPv6 = 8, 7

// proxies reads networks. A network that has the clients in it is refused: each of them could say that
// it has another address.
func proxies(v string) (networks []netip.Prefix, err error) {
	for _, text := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' }) {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is no network: want networks such as 10.0.0.0/8,fd00::/8; one address is 192.0.2.7/32",
				text)
		}
		widest := widestIPv6
		if network.Addr().Is4() {
			widest = widestIPv4
		}
		if network.Bits() < widest {
			return nil, fmt.Errorf("%q has clients in it, and they could forge their address: name your "+
				"proxies, such as 10.0.0.2/32", text)
		}
		networks = append(networks, network)
	}
	return networks, nil
}

// aboutParameter are the driver's words about one parameter of a URL that it could split into its
// parts. What follows them quotes no password.
var aboutParameter = []string{"cannot parse ", "pool_max_conns too small", "failed to read service",
	"failed to configure TLS", "invalid connect_timeout", "invalid default_query_exec_mode",
	"invalid max_protocol_version", "invalid min_protocol_version", "invalid require_auth", "invalid sslcertmode",
	"unknown channel_binding", "unknown target_session_attrs"}

// checkDatabaseURL refuses a URL that the driver cannot read, or with a parameter that nobody reads.
// It does not return the driver's whole error, which can quote the password.
func checkDatabaseURL(v string) error {
	if v == "" {
		return nil
	}
	cfg, err := pgxpool.ParseConfig(v)
	var file *fs.PathError // of a certificate, for example
	switch {
	case err == nil:
		return errors.Join(pgpool.CheckParameters(cfg.ConnConfig.RuntimeParams), pgpool.CheckCaches(cfg.ConnConfig))
	case errors.As(err, &file):
		return file
	}
	// Before these words stands the URL.
	text := err.Error()
	for _, words := range aboutParameter {
		if at := strings.LastIndex(text, "`: "+words); at >= 0 {
			return errors.New(text[at+len("`: "):])
		}
	}
	return errors.New("want a URL such as postgres://mlsd:password@db.example.com:5432/mlsd; special characters of a " +
		"password are percent-encoded: @ is %40")
}

func checkURL(v string) error {
	u, err := url.Parse(v)
	if err == nil && v != "" && (u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		err = errors.New("no scheme or host")
	}
	if err != nil {
		return errors.New("want a URL such as https://mls.example.com")
	}
	return nil
}

func oneOf(v string, allowed ...string) error {
	if slices.Contains(allowed, v) {
		return nil
	}
	shown := slices.DeleteFunc(slices.Clone(allowed), func(a string) bool { return a == "" })
	return fmt.Errorf("want one of %s", strings.Join(shown, ", "))
}

// checkPLCURL checks the URL before anything is started.
func checkPLCURL(v string) error {
	_, err := serviceauth.NewDirectory(serviceauth.DirectoryConfig{PLCURL: v})
	return err
}

// checkRelayURL is checkPLCURL for a relay; "" means none.
func checkRelayURL(v string) error {
	if v == "" {
		return nil
	}
	_, err := relay.ParseSource(v)
	return err
}

func checkReportKey(v string) error {
	_, err := reportKey(v)
	return err
}
